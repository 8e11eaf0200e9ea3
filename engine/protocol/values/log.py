"""The log: requests and records of publishing, and of ranges that become final."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lakemq.tables.specs.messages import file_stem

from .base import (
    Count,
    DueMillis,
    FileId,
    FileIndex,
    Hash,
    MessageMillis,
    Millis,
    Number,
    Record,
    Request,
    Result,
    TopicRecord,
)
from .producers import ProducerSequences, TransactionRef, UnitAppended
from .topics import TopicRef


class DataFile(msgspec.Struct, frozen=True):
    """A file of message rows: `messages/<file_id as 16 hex digits>.parquet`. footer_hash: as in `segments`."""

    file_id: FileId
    size_bytes: Count
    record_count: Count
    min_timestamp_ms: Millis
    max_timestamp_ms: Millis
    footer_hash: Hash


class PendingFile(msgspec.Struct, frozen=True):
    """A data file that has an id before it is written. Until then its rows are in step objects.

    record_count: the rows that are assigned to it so far. The hash of its footer is not known yet.
    """

    file_id: FileId
    record_count: Count
    footer_hash: None = None


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of rows as columns of equal length, in the order in which they get their offsets.

    topic_index: index into the request's topics. file: index into its files; -1 for rows that travel in the letter.
    first_due_ms, last_due_ms: when the first and the last row of a delayed range are due, within one hour; -1 for other
    ranges. Both columns are empty if no range is delayed.
    """

    topic_index: list[Count] = []
    partition: list[Count] = []
    file: list[FileIndex] = []
    first_row: list[Count] = []
    record_count: list[Count] = []
    min_timestamp_ms: list[MessageMillis] = []
    max_timestamp_ms: list[MessageMillis] = []
    first_due_ms: list[DueMillis] = []
    last_due_ms: list[DueMillis] = []


class RejectedRows(msgspec.Struct, frozen=True):
    """Rows that cannot be messages. The other rows are published."""

    source: str
    file: FileIndex
    first_row: Count
    record_count: Count
    error: str
    reason: str


class ApplicationVersion(msgspec.Struct, frozen=True):
    """Delta's `txnAppId` and `txnVersion` for one target.

    A version that is not above the last one is not published again.

    follows: the version that must be the last one (-1: none), for an application that publishes several versions at
    once; None: any.
    """

    txn_app_id: str
    txn_version: int
    target: str
    follows: int | None = None


class Produce(Request, frozen=True, tag="produce"):  # Decided by `rules/log.py`.
    """Publish rows of files or, without files, rows that travel in the letter from its row `first_row` on.

    has_ttl: some rows have a time to live of their own.
    """

    topics: list[TopicRef]
    ranges: Ranges
    metadata_step: Number
    files: list[DataFile] = []
    rejected: list[RejectedRows] = []
    producer: ProducerSequences | None = None
    application: ApplicationVersion | None = None
    transaction: TransactionRef | None = None
    first_row: Count = 0
    has_ttl: bool = False


class Unit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rows that one request put into one partition: offsets base_offset to base_offset + record_count - 1."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class WaitingUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Delayed rows that one request sent to one partition.

    file_id, first_row: where rows begin that travelled in the letter; other rows are where the request says.
    """

    topic_id: int
    partition: int
    record_count: int
    file_id: int | None = None
    first_row: int = 0


class Published(Result, frozen=True, tag="published"):
    """A publish was accepted. duplicate: it was published before, and base_offset of each unit is the first one's.

    waiting: delayed rows, which are not in the log yet.
    """

    units: list[Unit]
    rejected_count: int = 0
    duplicate: bool = False
    waiting: list[WaitingUnit] = []


class FilesAdded(Record, frozen=True, tag="files_added"):
    """Data files that segments or rejected rows of this step refer to. They are registered in `messages`."""

    files: list[DataFile]


class RowsJournaled(Record, frozen=True, tag="rows_journaled"):
    """Rows that travel beside the JSON until the next projection writes all such rows of its steps as the data file.

    first_row: the number of the first one in that file.
    """

    file_id: int
    first_row: int
    record_count: int

    @property
    def subject(self) -> str:
        return file_stem(self.file_id)


class Produced(Record, frozen=True, tag="produced"):
    """Rows got offsets. The segments travel beside the JSON, as columns.

    transactional_id: the transaction that this is a part of.
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


class RowsRejected(Record, frozen=True, tag="rows_rejected"):
    """Rows were rejected, with the reason."""

    source: str
    file_id: int
    first_row: int
    record_count: int
    error: str
    reason: str

    @property
    def subject(self) -> str:
        return self.source


@dataclass
class Application:
    """The last txn_version that an application has published to a target."""

    version: int
    seen_at_ms: int


# Final messages: ranges of offsets whose messages are in files of `final_messages`.


class FinalFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of `final_messages`. footer_hash: as of data files."""

    file_id: int
    footer_hash: int


class FinalRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets of a partition, both ends included, with so many messages.

    file: number of the file that has them. None: the offsets have no message, only markers and aborted rows.
    """

    partition: int
    base_offset: int
    last_offset: int
    record_count: int
    file: int | None
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None


class RangesWritten(msgspec.Struct, frozen=True):
    """The leader has written the messages of these ranges to files, but no step knows them yet.

    ranges: ascending within each partition, without gaps.
    """

    topic_id: int
    files: list[FinalFile]
    ranges: list[FinalRange]


class RangesFinalized(TopicRecord, frozen=True, tag="ranges_finalized"):
    """The messages of these ranges are in these files from now on."""

    files: list[FinalFile]
    ranges: list[FinalRange]


def find_range_ends(ranges: Iterable[FinalRange]) -> dict[int, tuple[int, int]]:
    """Return by partition the first offset of its ranges, and the offset after the last one.

    Raises ValueError: there is a gap, or a range ends before it begins.
    """
    ends: dict[int, tuple[int, int]] = {}
    for range_ in ranges:
        first, end = ends.get(range_.partition, (range_.base_offset,) * 2)
        if range_.base_offset != end or range_.last_offset < end:
            raise ValueError(f"partition {range_.partition}: found offsets from {range_.base_offset}, expected {end}")
        ends[range_.partition] = first, range_.last_offset + 1
    return ends


REQUESTS = (Produce,)
RESULTS = (Published,)
RECORDS = (
    FilesAdded,
    RowsJournaled,
    Produced,
    RowsRejected,
    RangesFinalized,
)
