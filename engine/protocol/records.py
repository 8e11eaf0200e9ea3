"""Decisions: what the journal holds and `evolve` folds. Facts in the past tense; each names its subject."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .requests import AnyResult, DataFile, OffsetCommit
from .segments import NO_SEGMENTS, Segments

FORMAT_VERSION = 1


class Record(msgspec.Struct, frozen=True, tag_field="record"):
    """Base of all decisions. `tag` is the journal's kind."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def subject(self) -> str:
        return ""


class LeaderElected(Record, frozen=True, tag="leader_elected"):
    """A sequencer took the lease, or renewed it; an empty leader gave it back."""

    leader: str
    epoch: int
    lease_ms: int

    @property
    def subject(self) -> str:
        return self.leader


class TopicCreated(Record, frozen=True, tag="topic_created"):
    topic_id: int
    topic: str
    partitions: int
    config: dict[str, Any]
    subscriptions: list[str]

    @property
    def subject(self) -> str:
        return self.topic


class TopicAltered(Record, frozen=True, tag="topic_altered"):
    """The topic as it is from now on."""

    topic_id: int
    topic: str
    partitions: int
    config: dict[str, Any]
    subscriptions: list[str]

    @property
    def subject(self) -> str:
        return self.topic


class TopicDeleted(Record, frozen=True, tag="topic_deleted"):
    """partitions: how many it had."""

    topic_id: int
    topic: str
    partitions: int

    @property
    def subject(self) -> str:
        return self.topic


class RecordsDeleted(Record, frozen=True, tag="records_deleted"):
    """Partition -> new log start offset."""

    topic_id: int
    topic: str
    log_starts: dict[int, int]

    @property
    def subject(self) -> str:
        return self.topic


class FilesAdded(Record, frozen=True, tag="files_added"):
    """Data files that segments or dead letters of this step point at: to be registered in `messages`."""

    files: list[DataFile]


class UnitAppended(msgspec.Struct, frozen=True, array_like=True):
    """What a producer's request put into one partition."""

    topic_id: int
    partition: int
    base_sequence: int
    record_count: int
    base_offset: int


class Produced(Record, frozen=True, tag="produced"):
    """Rows became offsets. The segments travel beside the JSON, as columns.

    transactional_id: of the transaction it is a part of.
    """

    target: str
    producer_id: int | None = None
    producer_epoch: int | None = None
    units: list[UnitAppended] = []
    txn_app_id: str | None = None
    txn_version: int | None = None
    transactional_id: str | None = None

    @property
    def subject(self) -> str:
        return self.target


class DeadLettered(Record, frozen=True, tag="dead_lettered"):
    """Rows that were refused, with the reason."""

    source: str
    batch_id: str
    first_row: int
    record_count: int
    error: str
    reason: str

    @property
    def subject(self) -> str:
        return self.source


class ProducerInitialized(Record, frozen=True, tag="producer_initialized"):
    producer_id: int
    producer_epoch: int

    @property
    def subject(self) -> str:
        return str(self.producer_id)


class ProducerExpired(Record, frozen=True, tag="producer_expired"):
    producer_id: int

    @property
    def subject(self) -> str:
        return str(self.producer_id)


TransactionStatus = Literal[
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead"
]


class TransactionMoved(Record, frozen=True, tag="transaction_moved"):
    """A transactional id is in this state from now on: one row of the transaction log.

    producer_id, producer_epoch: who may go on from here; partitions, groups: all that the transaction touches.
    reason: who ended it (producer, timeout, fenced, operator); batch_id: the micro-batch that a commit carries.
    used_up: the producer id that has given way to this one because it has no epochs left.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    status: TransactionStatus
    timeout_ms: int
    started_at_ms: int | None = None
    partitions: list[tuple[int, int]] = []
    groups: list[str] = []
    reason: str | None = None
    batch_id: int | None = None
    used_up: int | None = None

    @property
    def subject(self) -> str:
        return self.transactional_id


class TransactionFailed(Record, frozen=True, tag="transaction_failed"):
    """Something of the transaction was refused: it can only be aborted."""

    transactional_id: str
    error: str
    message: str

    @property
    def subject(self) -> str:
        return self.transactional_id


class MarkersWritten(Record, frozen=True, tag="markers_written"):
    """A transaction ended in its partitions. The markers are segments of kind `commit` or `abort`."""

    transactional_id: str

    @property
    def subject(self) -> str:
        return self.transactional_id


class OffsetsCommitted(Record, frozen=True, tag="offsets_committed"):
    """How far a group has come; with a transactional id it counts once that transaction commits.

    topic_ids: of the topics of `offsets`, in the same order.
    """

    group: str
    topic_ids: list[int]
    offsets: list[OffsetCommit]
    transactional_id: str | None = None

    @property
    def subject(self) -> str:
        return self.group


class OffsetsRemoved(Record, frozen=True, tag="offsets_removed"):
    """What a group had committed in these partitions is forgotten."""

    group: str
    topic_id: int
    topic: str
    partitions: list[int]

    @property
    def subject(self) -> str:
        return self.group


class Answered(Record, frozen=True, tag="answered"):
    """A letter was decided with these results; the client's last ones are kept for a repeat."""

    client_id: str
    number: int
    results: list[AnyResult]

    @property
    def subject(self) -> str:
        return self.client_id


class ClientRemoved(Record, frozen=True, tag="client_removed"):
    """A client was silent for too long, or left a gap in its letters."""

    client_id: str
    reason: str

    @property
    def subject(self) -> str:
        return self.client_id


AnyRecord = (
    LeaderElected
    | TopicCreated
    | TopicAltered
    | TopicDeleted
    | RecordsDeleted
    | FilesAdded
    | Produced
    | DeadLettered
    | ProducerInitialized
    | ProducerExpired
    | TransactionMoved
    | TransactionFailed
    | MarkersWritten
    | OffsetsCommitted
    | OffsetsRemoved
    | Answered
    | ClientRemoved
)


class Decided(msgspec.Struct, frozen=True):
    """A record with the segments that belong to it."""

    record: AnyRecord
    segments: Segments = NO_SEGMENTS
    request_id: str | None = None


class StepDecisions(msgspec.Struct, frozen=True):
    """All that one micro-batch decided: one commit of the journal."""

    step: int
    decided_at_ms: int
    leader_epoch: int
    decisions: list[Decided]
