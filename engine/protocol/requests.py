"""What may be asked of the sequencer, and what it answers. Values only; they travel as JSON in a letter.

What a client's code puts in is bounded by its type and refused on decoding; what a user may get wrong is refused by
deciding, with an error of its own.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .errors import Refusal

MAX_SEQUENCE = 2**31 - 1
MAX_EPOCH = 2**15 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Rows, bytes, indexes: small enough that no sum of a letter's numbers overflows 64 bits."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Millis = Annotated[int, msgspec.Meta(ge=-(2**54), le=2**54)]
"""Epoch milliseconds; what a timestamp in microseconds can hold fits."""

Hash = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
FileIndex = Annotated[int, msgspec.Meta(ge=-1, le=2**31)]
BatchId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class Request(msgspec.Struct, frozen=True, tag_field="request", omit_defaults=True):
    """Base of all requests."""


class CreateTopic(Request, frozen=True, tag="create_topic"):
    topic: str
    partitions: int
    config: dict[str, Any] = {}
    subscriptions: list[str] = []


class AlterTopic(Request, frozen=True, tag="alter_topic"):
    """`config` sets keys, null resets one to its default; `partitions` and `subscriptions` replace what is there."""

    topic: str
    config: dict[str, Any] = {}
    partitions: int | None = None
    subscriptions: list[str] | None = None


class DeleteTopic(Request, frozen=True, tag="delete_topic"):
    topic: str


class DeleteRecords(Request, frozen=True, tag="delete_records"):
    """Partition -> offset before which all is deleted; -1 stands for the high watermark."""

    topic: str
    before: dict[int, int]


class InitProducer(Request, frozen=True, tag="init_producer"):
    """Ask for a producer id. With a transactional id it is that id's, and whoever had it before is fenced.

    timeout_ms: transaction.timeout.ms, how long a transaction may stay open.
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000


class TransactionRef(msgspec.Struct, frozen=True, array_like=True):
    """Who asks for something inside a transaction; no transaction begins twice under one (producer_id, epoch)."""

    transactional_id: str
    producer_id: Number
    producer_epoch: Epoch


class TopicRef(msgspec.Struct, frozen=True, array_like=True):
    """A topic as the client knew it when it hashed the keys."""

    topic: str
    topic_id: Number
    partition_count: Count


class DataFile(msgspec.Struct, frozen=True):
    """A file of message rows: `messages/<batch_id>.parquet`. footer_hash: as in `segments`."""

    batch_id: BatchId
    size_bytes: Count
    record_count: Count
    min_timestamp_ms: Millis
    max_timestamp_ms: Millis
    footer_hash: Hash


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of rows as columns of equal length, in the order in which they take their offsets.

    topic: index into the request's topics; file: index into its files, -1 for the rows that ride in the letter.
    """

    topic: list[Count] = []
    partition: list[Count] = []
    file: list[FileIndex] = []
    first_row: list[Count] = []
    record_count: list[Count] = []
    min_timestamp_ms: list[Millis] = []
    max_timestamp_ms: list[Millis] = []


class RefusedRows(msgspec.Struct, frozen=True):
    """Rows that cannot be messages: they become dead letters, the rest is published."""

    source: str
    file: FileIndex
    first_row: Count
    record_count: Count
    error: str
    reason: str


class ProducerSequences(msgspec.Struct, frozen=True):
    """Sequence of the first record per unit, a unit being all a request puts into one (topic, partition).

    refused_sequence: of the first of its refused rows, which are a unit of their own; None: it has none.
    """

    producer_id: Number
    producer_epoch: Epoch
    topic: list[Count]
    partition: list[Count]
    base_sequence: list[Sequence]
    refused_sequence: Sequence | None = None


class ApplicationVersion(msgspec.Struct, frozen=True):
    """Delta's `txnAppId` and `txnVersion`, for one target: a version not above the last is not published again.

    follows: the version that must have been the last (-1: none), for who publishes all since then as one; None: any.
    """

    txn_app_id: str
    txn_version: int
    target: str
    follows: int | None = None


class Produce(Request, frozen=True, tag="produce"):
    """Publish rows of files; or, where it names no file, rows that ride in the letter from its row `first_row` on."""

    topics: list[TopicRef]
    ranges: Ranges
    metadata_step: Number
    files: list[DataFile] = []
    refused: list[RefusedRows] = []
    producer: ProducerSequences | None = None
    application: ApplicationVersion | None = None
    transaction: TransactionRef | None = None
    first_row: Count = 0


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True):
    """How far a group has consumed a partition: `offset` is the next one it wants.

    topic_id: of the topic that was read; None: whichever has the name when it is decided.
    """

    topic: str
    partition: int
    offset: int
    metadata: str | None = None
    topic_id: Number | None = None


class CommitOffsets(Request, frozen=True, tag="commit_offsets"):
    """Note how far a group has come, at once or, inside a transaction, when that commits."""

    group: str
    offsets: list[OffsetCommit]
    transaction: TransactionRef | None = None


class FetchOffsets(Request, frozen=True, tag="fetch_offsets"):
    """Ask how far a group has come, in these (topic, partition) pairs or in all it has committed.

    require_stable: refuse while an open transaction has offsets for one of them.
    """

    group: str
    partitions: list[tuple[str, int]] | None = None
    require_stable: bool = True


class EndTransaction(Request, frozen=True, tag="end_transaction"):
    """Commit or abort.

    part_count: how many publishes, and groups with offsets, the transaction has, so that none is lost unnoticed;
    batch_id: of a stream's micro-batch; one not above the last that was committed under this transactional id is
    aborted instead.
    """

    transaction: TransactionRef
    commit: bool
    part_count: Count = 0
    batch_id: Number | None = None


class AbortTransaction(Request, frozen=True, tag="abort_transaction"):
    """An operator ends a transaction; its producer is fenced."""

    transactional_id: str


AnyRequest = (
    CreateTopic
    | AlterTopic
    | DeleteTopic
    | DeleteRecords
    | InitProducer
    | Produce
    | CommitOffsets
    | FetchOffsets
    | EndTransaction
    | AbortTransaction
)


class Result(msgspec.Struct, frozen=True, tag_field="outcome", omit_defaults=True):
    """Base of all results but Refusal."""


class Done(Result, frozen=True, tag="done"):
    pass


class TopicDone(Result, frozen=True, tag="topic"):
    topic_id: int
    partitions: int


class ProducerDone(Result, frozen=True, tag="producer"):
    """`batch_id`: the last micro-batch that was committed under the transactional id, -1 before the first."""

    producer_id: int
    producer_epoch: int
    batch_id: int = -1


class TransactionEnded(Result, frozen=True, tag="transaction_ended"):
    """The producer's id and epoch for its next transaction.

    duplicate: it had ended so before; or its micro-batch was committed before, and this repeat of it is aborted.
    """

    producer_id: int
    producer_epoch: int
    duplicate: bool = False


class OffsetsFetched(Result, frozen=True, tag="offsets"):
    """What was committed; a partition without an offset is left out."""

    offsets: list[OffsetCommit]


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """What one request put into one partition: offsets base_offset .. base_offset + record_count."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class Published(Result, frozen=True, tag="published"):
    """`duplicate`: the same was published before, nothing was added; a unit's base_offset is then the first one's."""

    units: list[Unit]
    refused_count: int = 0
    duplicate: bool = False


AnyResult = Done | TopicDone | ProducerDone | TransactionEnded | OffsetsFetched | Published | Refusal


class Unreadable(msgspec.Struct, frozen=True):
    """In place of a request that is none, or one of a newer version: it is refused, and those beside it are not."""

    refusal: Refusal


class Letter(msgspec.Struct, frozen=True):
    """What one client puts at once: requests that are decided in one step, in order."""

    client_id: str
    number: int
    requests: list[AnyRequest | Unreadable]
    sent_at_ms: int


class Answer(msgspec.Struct, frozen=True):
    """The reply to a letter: one result per request."""

    client_id: str
    number: int
    step: int
    results: list[AnyResult]
