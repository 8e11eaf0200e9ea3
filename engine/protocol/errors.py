"""Every refusal is one class, named after its code; the docstring's first line is what it means.

Kafka's names and numbers are kept where Kafka has the error (``org.apache.kafka.common.protocol.Errors``);
ours have no number. An error travels in a reply as `Refusal` and is raised again by the client.
"""

from __future__ import annotations

import reprlib
from typing import Any, ClassVar

import msgspec

MAX_SHOWN = 1000
"""Characters of what a client sent that a reply repeats."""

_BY_NAME: dict[str, type[LakeMQError]] = {}


class Refusal(msgspec.Struct, frozen=True, tag="refused", tag_field="outcome"):
    """A refused request, as it stands in a reply: nothing of the request happened."""

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
        text = f"{self.name}: {self.detail or self.meaning()}"
        if self.found is not None:
            text += f" Found {_brief(self.found)}."
        if self.expected is not None:
            text += f" Expected {self.expected}."
        return text + (" Retrying may help." if self.retriable else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.name, self.detail, self.found, self.expected))

    @classmethod
    def meaning(cls) -> str:
        """The first line of the docstring (which `python -OO` takes away)."""
        return (cls.__doc__ or cls.name).partition("\n")[0]

    def refusal(self) -> Refusal:
        """For a reply: what was found and expected cut to a length that a journal can bear."""
        return Refusal(self.name, self.detail[:MAX_SHOWN], _shown(self.found), _shown(self.expected))


class _Brief(reprlib.Repr):
    """As repr, cut where it is deep or long, whatever the value does."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, MAX_SHOWN, MAX_SHOWN, 60
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = self.maxdeque = 20


def _brief(value: Any) -> str:
    try:
        return _Brief().repr(value)
    except Exception:  # such as a number too long to be told
        return f"an object of type {type(value).__name__}"


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else _brief(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def error_of(refusal: Refusal) -> LakeMQError:
    """The error a refusal stands for; an unknown name (a newer engine) becomes the base class."""
    return _rebuild(refusal.error, refusal.message, refusal.found, refusal.expected)


def _rebuild(name: str, detail: str, found: Any, expected: Any) -> LakeMQError:
    cls = _BY_NAME.get(name)
    if cls is None:
        return LakeMQError(f"{name}: {detail}", found=found, expected=expected)
    return cls(detail, found=found, expected=expected)


def all_errors() -> list[type[LakeMQError]]:
    """Every error class, in order of name (for the docs)."""
    return [_BY_NAME[name] for name in sorted(_BY_NAME)]


# -- names, topics, limits ------------------------------------------------------------------------------


class OffsetOutOfRange(LakeMQError, name="OFFSET_OUT_OF_RANGE", code=1):
    """The offset lies outside what the partition holds."""


class UnknownTopicOrPartition(LakeMQError, name="UNKNOWN_TOPIC_OR_PARTITION", code=3):
    """There is no such topic or partition."""


class UnknownTopicId(LakeMQError, name="UNKNOWN_TOPIC_ID", code=100):
    """The topic was deleted: one made anew under its name is another one, whose offsets are its own."""


class MessageTooLarge(LakeMQError, name="MESSAGE_TOO_LARGE", code=10):
    """A message is larger than the topic's max.message.bytes."""


class InvalidTopic(LakeMQError, name="INVALID_TOPIC_EXCEPTION", code=17):
    """The name is not a valid topic name."""


class InvalidTimestamp(LakeMQError, name="INVALID_TIMESTAMP", code=32):
    """A timestamp is before 1970 or after 9999."""


class TopicAlreadyExists(LakeMQError, name="TOPIC_ALREADY_EXISTS", code=36):
    """A topic of this name exists already."""


class InvalidPartitions(LakeMQError, name="INVALID_PARTITIONS", code=37):
    """The number of partitions cannot be what was asked."""


class OffsetMetadataTooLarge(LakeMQError, name="OFFSET_METADATA_TOO_LARGE", code=12):
    """What a consumer noted beside an offset is too long."""


class InvalidGroupId(LakeMQError, name="INVALID_GROUP_ID", code=24):
    """The name is not a valid group name."""


class GroupIdNotFound(LakeMQError, name="GROUP_ID_NOT_FOUND", code=69):
    """There is no such group: it was never made, and has committed nothing."""


class NonEmptyGroup(LakeMQError, name="NON_EMPTY_GROUP", code=68):
    """The group has members: they must leave first."""


class GroupSubscribedToTopic(LakeMQError, name="GROUP_SUBSCRIBED_TO_TOPIC", code=86):
    """A member of the group reads this topic, and would commit again what is to be deleted."""


class UnknownMemberId(LakeMQError, name="UNKNOWN_MEMBER_ID", code=25):
    """The group has no such member: it has left, or was silent for too long. Join again."""


class InvalidSessionTimeout(LakeMQError, name="INVALID_SESSION_TIMEOUT", code=26):
    """The session timeout is out of range."""


class InvalidRegularExpression(LakeMQError, name="INVALID_REGULAR_EXPRESSION", code=128):
    """The pattern is not a regular expression that can be matched in bounded time."""


class IllegalGeneration(LakeMQError, name="ILLEGAL_GENERATION", code=22):
    """The classic group is in another generation: what was read in one before it does not count any more."""


class RebalanceInProgress(LakeMQError, name="REBALANCE_IN_PROGRESS", code=27):
    """The classic group shares its partitions anew, and nobody has any: poll, then commit what that brings."""


class InconsistentGroupProtocol(LakeMQError, name="INCONSISTENT_GROUP_PROTOCOL", code=23):
    """The group has members of another protocol."""


class FencedInstanceId(LakeMQError, name="FENCED_INSTANCE_ID", code=82):
    """Another process has joined with the same group.instance.id: this one is at an end."""


class FencedMemberEpoch(LakeMQError, name="FENCED_MEMBER_EPOCH", code=110):
    """The partition is not this member's any more, or was given to it anew: what it says of it does not count."""


class UnsupportedAssignor(LakeMQError, name="UNSUPPORTED_ASSIGNOR", code=112):
    """There is no assignor of this name, or it cannot be loaded."""


class InvalidRecordState(LakeMQError, name="INVALID_RECORD_STATE", code=121):
    """The member does not have this message: it was never delivered to it, or was given back."""


class InvalidConfig(LakeMQError, name="INVALID_CONFIG", code=40):
    """A parameter is unknown, of the wrong type or out of range."""


class InvalidRequest(LakeMQError, name="INVALID_REQUEST", code=42):
    """The request contradicts itself or what it names."""


class InvalidRecord(LakeMQError, name="INVALID_RECORD", code=87):
    """A row cannot be a message: a column is missing or of the wrong type."""


class ExpectationFailed(LakeMQError, name="EXPECTATION_FAILED"):
    """Rows do not hold what the topic's suite of expectations says: those that fail, or all, are refused."""


class StaleTopicMetadata(LakeMQError, name="STALE_TOPIC_METADATA", retriable=True):
    """The client knew another shape of the topic; it must reload its metadata and repeat."""


class StaleApplicationVersion(LakeMQError, name="STALE_APPLICATION_VERSION", retriable=True):
    """Another instance of the application has published since: go on after the version found."""


class FileMissing(LakeMQError, name="FILE_MISSING"):
    """A data file the request names is not there, or is not the file it tells of: its size, its rows, its footer."""


# -- idempotent producers -------------------------------------------------------------------------------


class OutOfOrderSequenceNumber(LakeMQError, name="OUT_OF_ORDER_SEQUENCE_NUMBER", code=45):
    """The producer's sequence leaves a gap: an earlier batch was lost."""


class InvalidProducerEpoch(LakeMQError, name="INVALID_PRODUCER_EPOCH", code=47):
    """A newer producer with the same id exists: this one is fenced."""


class UnknownProducerId(LakeMQError, name="UNKNOWN_PRODUCER_ID", code=59):
    """The producer id was never given out, or has expired."""


# -- transactions ---------------------------------------------------------------------------------------


class InvalidTxnState(LakeMQError, name="INVALID_TXN_STATE", code=48):
    """The transaction is not in a state in which this can be asked."""


class InvalidProducerIdMapping(LakeMQError, name="INVALID_PRODUCER_ID_MAPPING", code=49):
    """The producer id is not the one of this transactional id, or the transactional id is not known."""


class InvalidTransactionTimeout(LakeMQError, name="INVALID_TRANSACTION_TIMEOUT", code=50):
    """The transaction timeout is not positive, or larger than transaction.max.timeout.ms."""


class UnstableOffsetCommit(LakeMQError, name="UNSTABLE_OFFSET_COMMIT", code=88, retriable=True):
    """A transaction that is still open has offsets for this partition: ask again when it has ended."""


class ProducerFenced(LakeMQError, name="PRODUCER_FENCED", code=90):
    """A newer producer with the same transactional id has taken over: this one is at an end."""


class TransactionalIdNotFound(LakeMQError, name="TRANSACTIONAL_ID_NOT_FOUND", code=105):
    """There is no such transactional id, or it has expired."""


class TransactionAbortable(LakeMQError, name="TRANSACTION_ABORTABLE", code=120):
    """Something of the transaction was refused: it can only be aborted. Abort it and begin another."""


class TransactionAborted(LakeMQError, name="TRANSACTION_ABORTED"):
    """The transaction was aborted before this was sent."""


class UnsupportedVersion(LakeMQError, name="UNSUPPORTED_VERSION", code=35):
    """This version of the engine does not offer what was asked."""


# -- clients, mailbox, engine ---------------------------------------------------------------------------


class UnknownServerError(LakeMQError, name="UNKNOWN_SERVER_ERROR", code=-1):
    """An error nobody foresaw: a mistake of LakeMQ's, which refuses this request and no other."""


class NoOffsetForPartition(LakeMQError, name="NO_OFFSET_FOR_PARTITION"):
    """The group has committed no offset for the partition, and auto_offset_reset is none."""


class RequestTimedOut(LakeMQError, name="REQUEST_TIMED_OUT", code=7, retriable=True):
    """No sequencer answered in time; the outcome of the request is unknown."""


class ClientEnded(LakeMQError, name="CLIENT_ENDED"):
    """This client's requests left a gap for too long, or it was silent past its expiry: open a new one."""


class InconsistentClusterId(LakeMQError, name="INCONSISTENT_CLUSTER_ID", code=104):
    """The namespace at this path is another one than the connection has opened: it was made anew. Connect again."""


class MailboxFullError(LakeMQError, name="MAILBOX_FULL", retriable=True):
    """Too many requests wait for the sequencer."""


class ThrottlingQuotaExceeded(LakeMQError, name="THROTTLING_QUOTA_EXCEEDED", code=89, retriable=True):
    """The requests before this one in its letter were told so much that it is to be asked again."""


class StorageError(LakeMQError, name="KAFKA_STORAGE_ERROR", code=56, retriable=True):
    """The store could not be read or written, such as for want of space."""


class DelayQueueFull(LakeMQError, name="DELAY_QUEUE_FULL", retriable=True):
    """As many messages wait for their time as the topic lets wait (delay.max.pending)."""


class DelayTooLong(LakeMQError, name="DELAY_TOO_LONG"):
    """The delay is longer than the last of the topic's levels (delay.levels)."""


class InvalidReceipt(LakeMQError, name="INVALID_RECEIPT"):
    """This is no receipt of a delayed message, or one of another namespace."""


class BufferFull(LakeMQError, name="BUFFER_FULL", retriable=True):
    """The producer's buffer is full and did not drain in time."""


class IllegalState(LakeMQError, name="ILLEGAL_STATE"):
    """The call is not legal now: it came in the wrong order, or the object is closed."""


class StepTooOld(LakeMQError, name="STEP_TOO_OLD"):
    """The step asked for has been compacted away."""


class FileTruncated(LakeMQError, name="FILE_TRUNCATED"):
    """A data file is gone, or is not as it was written: put it back from a backup."""


class TableDamaged(LakeMQError, name="TABLE_DAMAGED"):
    """A table does not hold what was written to it: somebody else has changed it, or a file of it is damaged."""


class NamespaceError(LakeMQError, name="NOT_A_NAMESPACE"):
    """The path holds no LakeMQ namespace, or one this version cannot open."""


class MissingExtra(LakeMQError, name="MISSING_EXTRA"):
    """This needs a package that comes with an extra of LakeMQ, which is not installed."""


class NewerFormat(LakeMQError, name="NEWER_FORMAT"):
    """The namespace was written by a newer version of LakeMQ: upgrade this one."""


class NotLeader(LakeMQError, name="NOT_LEADER", retriable=True):
    """Another sequencer leads this namespace."""
