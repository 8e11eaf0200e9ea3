"""Every refusal is a class, named after its code. The first line of its docstring is its meaning.

Names and numbers are Kafka's where Kafka has the error (``org.apache.kafka.common.protocol.Errors``); other errors have
no number. An error travels in an answer as `Refusal`, and the client raises it again.
"""

from __future__ import annotations

import re
import reprlib
from typing import Any, ClassVar, TypeAlias

import msgspec

MAX_SHOWN = 1000
"""Characters of a client's value that an answer repeats."""

_BY_NAME: dict[str, type[LakeMQError]] = {}


class Refusal(msgspec.Struct, frozen=True, tag="refused", tag_field="outcome"):
    """A refused request, as an answer contains it. Nothing of the request happened."""

    error: str
    message: str
    found: Any = None
    expected: Any = None


class LakeMQError(Exception):
    """A request was refused, or an operation failed, for the reason its class names."""

    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    code: ClassVar[int | None] = -1
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls, name: str = "", code: int | None = None, retriable: bool = False) -> None:
        cls.name, cls.code, cls.retriable = name, code, retriable
        _BY_NAME[name] = cls

    def __init__(self, detail: str = "", *, found: Any = None, expected: Any = None) -> None:
        self.detail, self.found, self.expected = detail, found, expected
        super().__init__(detail)

    def __str__(self) -> str:
        text = f"{self.name}: {_end_sentence(self.detail or self.meaning())}"
        if self.found is not None:
            text += f" Found {show_briefly(self.found)}."
        if self.expected is not None:
            text += f" Expected {_end_sentence(str(self.expected))}"
        return text + (" Retrying may help." if self.retriable else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.name, self.detail, self.found, self.expected))

    @classmethod
    def meaning(cls) -> str:
        """Return the first line of the docstring, which `python -OO` removes."""
        return (cls.__doc__ or cls.name).partition("\n")[0]

    def refusal(self) -> Refusal:
        """Return the error for an answer, with its values cut to a length that the journal can hold."""
        return Refusal(self.name, self.detail[:MAX_SHOWN], _truncate(self.found), _truncate(self.expected))


def _end_sentence(text: str) -> str:
    """Add a full stop if there is none. Texts of other libraries, which some details end with, often have none."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


class _BriefRepr(reprlib.Repr):
    """A repr that is cut where a value is deep or long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, MAX_SHOWN, MAX_SHOWN, 60
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = self.maxdeque = 20


def show_briefly(value: Any) -> str:
    """Return the repr of a value, cut where it is deep or long."""
    try:
        return _BriefRepr().repr(value)
    except Exception:  # for example a number with more digits than Python prints
        return f"an object of type {type(value).__name__}"


def _truncate(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else show_briefly(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def error_from_refusal(refusal: Refusal) -> LakeMQError:
    """Return the error of a refusal. An unknown name, from a newer engine, becomes the base class."""
    return _rebuild(refusal.error, refusal.message, refusal.found, refusal.expected)


def _rebuild(name: str, detail: str, found: Any, expected: Any) -> LakeMQError:
    cls = _BY_NAME.get(name)
    if cls is None:
        return LakeMQError(f"{name}: {detail}", found=found, expected=expected)
    return cls(detail, found=found, expected=expected)


def all_errors() -> list[type[LakeMQError]]:
    """Return every error class, sorted by name, for the docs."""
    return [_BY_NAME[name] for name in sorted(_BY_NAME)]


# -- names, topics, limits ------------------------------------------------------------------------------


class OffsetOutOfRange(LakeMQError, name="OFFSET_OUT_OF_RANGE", code=1):
    """The offset lies outside what the partition holds."""


class UnknownTopicOrPartition(LakeMQError, name="UNKNOWN_TOPIC_OR_PARTITION", code=3):
    """There is no such topic or partition."""


class UnknownTopicId(LakeMQError, name="UNKNOWN_TOPIC_ID", code=100):
    """The topic was deleted. A new topic of the same name has another id and its own offsets."""


MissingTopic: TypeAlias = UnknownTopicOrPartition | UnknownTopicId
"""An error about a topic that may have been deleted."""


class MessageTooLarge(LakeMQError, name="MESSAGE_TOO_LARGE", code=10):
    """A message is larger than the topic's max.message.bytes."""


class InvalidTopic(LakeMQError, name="INVALID_TOPIC_EXCEPTION", code=17):
    """The name is not a valid topic name."""


class InvalidTimestamp(LakeMQError, name="INVALID_TIMESTAMP", code=32):
    """A timestamp is before 1970 or after 9999, or looks like seconds instead of milliseconds."""


class TopicAlreadyExists(LakeMQError, name="TOPIC_ALREADY_EXISTS", code=36):
    """A topic of this name exists already."""


class InvalidPartitions(LakeMQError, name="INVALID_PARTITIONS", code=37):
    """The requested number of partitions is not possible."""


class OffsetMetadataTooLarge(LakeMQError, name="OFFSET_METADATA_TOO_LARGE", code=12):
    """The metadata of a committed offset is too long."""


class InvalidGroupId(LakeMQError, name="INVALID_GROUP_ID", code=24):
    """The name is not a valid group name."""


class GroupIdNotFound(LakeMQError, name="GROUP_ID_NOT_FOUND", code=69):
    """There is no such group: it was never created, and has committed nothing."""


class NonEmptyGroup(LakeMQError, name="NON_EMPTY_GROUP", code=68):
    """The group has members: they must leave first."""


class GroupSubscribedToTopic(LakeMQError, name="GROUP_SUBSCRIBED_TO_TOPIC", code=86):
    """A member of the group reads this topic, and would commit its offsets again."""


class UnknownMemberId(LakeMQError, name="UNKNOWN_MEMBER_ID", code=25):
    """The group has no such member: it has left, or was silent for too long. Join again."""


class InvalidSessionTimeout(LakeMQError, name="INVALID_SESSION_TIMEOUT", code=26):
    """The session timeout is out of range."""


class InvalidRegularExpression(LakeMQError, name="INVALID_REGULAR_EXPRESSION", code=128):
    """The pattern is not a regular expression that can be matched in bounded time."""


class IllegalGeneration(LakeMQError, name="ILLEGAL_GENERATION", code=22):
    """The classic group is in another generation: offsets that were read in an earlier one cannot be committed."""


class RebalanceInProgress(LakeMQError, name="REBALANCE_IN_PROGRESS", code=27):
    """The classic group is rebalancing, and no member has partitions: poll, and commit what that returns."""


class InconsistentGroupProtocol(LakeMQError, name="INCONSISTENT_GROUP_PROTOCOL", code=23):
    """The group has members of another protocol, or members that support other assignors."""


class FencedInstanceId(LakeMQError, name="FENCED_INSTANCE_ID", code=82):
    """Another process has joined with the same group.instance.id: this member is closed."""


class FencedMemberEpoch(LakeMQError, name="FENCED_MEMBER_EPOCH", code=110):
    """The member no longer owns the partition, or got it again since: its commit or acknowledgement does not count."""


class UnsupportedAssignor(LakeMQError, name="UNSUPPORTED_ASSIGNOR", code=112):
    """There is no assignor of this name, or it cannot be loaded."""


class InvalidRecordState(LakeMQError, name="INVALID_RECORD_STATE", code=121):
    """The member does not have this message: it was never delivered to the member, or was given back."""


class InvalidConfig(LakeMQError, name="INVALID_CONFIG", code=40):
    """A parameter is unknown, of the wrong type or out of range."""


class InvalidRequest(LakeMQError, name="INVALID_REQUEST", code=42):
    """The request contradicts itself or the state."""


class InvalidRecord(LakeMQError, name="INVALID_RECORD", code=87):
    """A row cannot be a message: a column is missing or of the wrong type."""


class ExpectationFailed(LakeMQError, name="EXPECTATION_FAILED"):
    """Rows violate the topic's suite of expectations. Either those rows are rejected, or all rows are refused."""


class SchemaMismatch(LakeMQError, name="SCHEMA_MISMATCH"):
    """Values do not fit the topic's schema. Those rows are rejected, or all rows are refused."""


class IncompatibleSchema(LakeMQError, name="INCOMPATIBLE_SCHEMA"):
    """The topic's schema may not change like this: messages of one version could not be read under the other."""


class StaleTopicMetadata(LakeMQError, name="STALE_TOPIC_METADATA", retriable=True):
    """The topic has changed since the client loaded its metadata: the client must reload and repeat."""


class StaleApplicationVersion(LakeMQError, name="STALE_APPLICATION_VERSION", retriable=True):
    """Another instance of the application has published since: continue after the version that was found."""


class FileMissing(LakeMQError, name="FILE_MISSING"):
    """A data file of the request does not exist, or its size, rows or footer are not as the request says."""


# -- idempotent producers -------------------------------------------------------------------------------


class OutOfOrderSequenceNumber(LakeMQError, name="OUT_OF_ORDER_SEQUENCE_NUMBER", code=45):
    """The producer's sequence leaves a gap: an earlier batch was lost."""


class InvalidProducerEpoch(LakeMQError, name="INVALID_PRODUCER_EPOCH", code=47):
    """A newer producer with the same id exists: this one is fenced."""


class UnknownProducerId(LakeMQError, name="UNKNOWN_PRODUCER_ID", code=59):
    """The producer id was never given out, or has expired."""


# -- transactions ---------------------------------------------------------------------------------------


class InvalidTxnState(LakeMQError, name="INVALID_TXN_STATE", code=48):
    """The transaction is in a state that does not allow this."""


class InvalidProducerIdMapping(LakeMQError, name="INVALID_PRODUCER_ID_MAPPING", code=49):
    """The producer id is not the one of this transactional id, or the transactional id is not known."""


class InvalidTransactionTimeout(LakeMQError, name="INVALID_TRANSACTION_TIMEOUT", code=50):
    """The transaction timeout is not positive, or larger than transaction.max.timeout.ms."""


class UnstableOffsetCommit(LakeMQError, name="UNSTABLE_OFFSET_COMMIT", code=88, retriable=True):
    """An open transaction has offsets for this partition: ask again when it has ended."""


class EndNotReached(LakeMQError, name="END_NOT_REACHED", retriable=True):
    """The group did not read to the end in time: other members, or no member yet, have the rest."""


class ProducerFenced(LakeMQError, name="PRODUCER_FENCED", code=90):
    """A newer producer with the same transactional id has taken over: this one is closed."""


class TransactionalIdNotFound(LakeMQError, name="TRANSACTIONAL_ID_NOT_FOUND", code=105):
    """There is no such transactional id, or it has expired."""


class TransactionAbortable(LakeMQError, name="TRANSACTION_ABORTABLE", code=120):
    """A part of the transaction was refused, so it can only be aborted. Abort it and begin another."""


class TransactionAborted(LakeMQError, name="TRANSACTION_ABORTED"):
    """The transaction was aborted before this was sent."""


# -- clients, mailbox, engine ---------------------------------------------------------------------------


class UnknownServerError(LakeMQError, name="UNKNOWN_SERVER_ERROR", code=-1):
    """An unexpected error, which is a bug of LakeMQ. It refuses this request and no other."""


class NoOffsetForPartition(LakeMQError, name="NO_OFFSET_FOR_PARTITION"):
    """The group has committed no offset for the partition, and auto_offset_reset is `none`."""


class RequestTimedOut(LakeMQError, name="REQUEST_TIMED_OUT", code=7, retriable=True):
    """No sequencer answered in time. Whether the request was carried out is unknown."""


class ClientEnded(LakeMQError, name="CLIENT_ENDED"):
    """This client's requests left a gap for too long, or it was silent past its expiry: open a new one."""


class InconsistentClusterId(LakeMQError, name="INCONSISTENT_CLUSTER_ID", code=104):
    """The namespace at this path is not the one that the connection opened: it was created again. Connect again."""


class MailboxFullError(LakeMQError, name="MAILBOX_FULL", retriable=True):
    """Too many requests wait for the sequencer."""


class ThrottlingQuotaExceeded(LakeMQError, name="THROTTLING_QUOTA_EXCEEDED", code=89, retriable=True):
    """The answers to earlier requests of the same letter are too large: send this request again."""


class StorageError(LakeMQError, name="KAFKA_STORAGE_ERROR", code=56, retriable=True):
    """The store could not be read or written, for example because it is full."""


class ReadOvertaken(LakeMQError, name="READ_OVERTAKEN", retriable=True):
    """Tables were merged faster than this process could open them, many times in a row: it gets too little CPU time."""


class StorageAccessDenied(StorageError, name="STORAGE_ACCESS_DENIED"):
    """The store denies access to this user or process: change its permissions first."""


class DelayQueueFull(LakeMQError, name="DELAY_QUEUE_FULL", retriable=True):
    """The topic has as many delayed messages as it allows (delay.max.pending)."""


class DelayTooLong(LakeMQError, name="DELAY_TOO_LONG"):
    """The delay is longer than the last of the topic's levels (delay.levels)."""


class InvalidSchedule(LakeMQError, name="INVALID_SCHEDULE"):
    """The name, cron expression or time zone of a schedule is not valid, or it never occurs."""


class ScheduleAlreadyExists(LakeMQError, name="SCHEDULE_ALREADY_EXISTS"):
    """A schedule of this name exists."""


class UnknownSchedule(LakeMQError, name="UNKNOWN_SCHEDULE"):
    """No schedule has this name. It may have been deleted with its topic."""


class InvalidReceipt(LakeMQError, name="INVALID_RECEIPT"):
    """This is not a receipt of a delayed message, or it belongs to another namespace."""


class BufferFull(LakeMQError, name="BUFFER_FULL", retriable=True):
    """The producer's buffer is full and did not drain in time."""


class IllegalState(LakeMQError, name="ILLEGAL_STATE"):
    """The call is not allowed now: it comes in the wrong order, or the object is closed."""


class StepTooOld(LakeMQError, name="STEP_TOO_OLD"):
    """Merges have removed what the tables held at the requested step."""


class FileTruncated(LakeMQError, name="FILE_TRUNCATED"):
    """A data file is missing or has changed since it was written: restore it from a backup."""


class TableDamaged(LakeMQError, name="TABLE_DAMAGED"):
    """A table has lost or changed what LakeMQ wrote: it was changed from outside, or a file of it is damaged."""


class NamespaceError(LakeMQError, name="NOT_A_NAMESPACE"):
    """The path holds no LakeMQ namespace, or one that this version cannot open."""


class MissingExtra(LakeMQError, name="MISSING_EXTRA"):
    """This needs a package of an extra of LakeMQ that is not installed."""


class NewerFormat(LakeMQError, name="NEWER_FORMAT"):
    """The namespace was written by a newer version of LakeMQ: upgrade this one."""


class NotLeader(LakeMQError, name="NOT_LEADER", retriable=True):
    """Another sequencer leads this namespace."""


# Errors of a store: one that denies access, and one that fails.
#
# Spark executors load this file, so it imports neither deltalake nor `pyarrow.dataset`, which imports pandas.


_DENIED = re.compile(r"Permission denied|Operation not permitted|Access ?Denied|PermissionDenied", re.IGNORECASE)
"""How a file system, an object store and delta-rs, which has no errno, report denied access."""


_UNREACHABLE = re.compile(r"timed out|error sending request|connection (?:refused|reset|closed)", re.IGNORECASE)
"""How obstore and delta-rs report a store that gave no answer."""


def flatten_error(error: Exception) -> str:
    """Return the text of an error in one line: delta-rs draws a tree of causes over several."""
    return " ".join(re.sub(r"\x1b\[\d*m|↳", " ", str(error)).split())


def is_unreachable(error: Exception) -> bool:
    """Return whether the store gave no answer, so that nothing is known about what it holds."""
    return _UNREACHABLE.search(str(error)) is not None


def storage_error(detail: str, error: Exception, found: str | None = None) -> StorageError:
    """Return the error for a store that failed. Retrying helps unless the store denies access.

    Args:
        found: the part of the error to show. By default all of its text.
    """
    denied = isinstance(error, PermissionError) or _DENIED.search(str(error)) is not None
    text = " ".join(str(error).split()) if found is None else found
    if not denied:
        return StorageError(detail, found=text)
    return StorageAccessDenied(detail, found=text, expected="a user who may read and write the namespace")
