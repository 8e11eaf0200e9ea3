"""The log: what is published, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lakemq.tables.specs.messages import file_stem

from .base import Count, DueMillis, FileId, FileIndex, Hash, Millis, Number, Record, Request, Result
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
    """A data file that is named before it is written: the rows ride in the journal until then.

    record_count: of the rows it will have, those named so far. No hash of its footer can be known.
    """

    file_id: FileId
    record_count: Count
    footer_hash: None = None


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of rows as columns of equal length, in the order in which they take their offsets.

    topic_index: into the request's topics; file: index into its files, -1 for the rows that ride in the letter.
    first_due_ms, last_due_ms: of rows that wait when their first and their last is due, within one hour; -1 for others.
    Empty where no row waits.
    """

    topic_index: list[Count] = []
    partition: list[Count] = []
    file: list[FileIndex] = []
    first_row: list[Count] = []
    record_count: list[Count] = []
    min_timestamp_ms: list[Millis] = []
    max_timestamp_ms: list[Millis] = []
    first_due_ms: list[DueMillis] = []
    last_due_ms: list[DueMillis] = []


class RefusedRows(msgspec.Struct, frozen=True):
    """Rows that cannot be messages: they become dead letters, the rest is published."""

    source: str
    file: FileIndex
    first_row: Count
    record_count: Count
    error: str
    reason: str


class ApplicationVersion(msgspec.Struct, frozen=True):
    """Delta's `txnAppId` and `txnVersion`, for one target: a version not above the last is not published again.

    follows: the version that must have been the last (-1: none), for who publishes all since then as one; None: any.
    """

    txn_app_id: str
    txn_version: int
    target: str
    follows: int | None = None


class Produce(Request, frozen=True, tag="produce"):
    """Publish rows of files; or, where it names no file, rows that ride in the letter from its row `first_row` on.

    has_ttl: some of them have a time to live of their own.
    """

    topics: list[TopicRef]
    ranges: Ranges
    metadata_step: Number
    files: list[DataFile] = []
    refused: list[RefusedRows] = []
    producer: ProducerSequences | None = None
    application: ApplicationVersion | None = None
    transaction: TransactionRef | None = None
    first_row: Count = 0
    has_ttl: bool = False


class Unit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one request put into one partition: offsets base_offset .. base_offset + record_count."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class WaitingUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows of a request that wait for their time to come into one partition.

    file_id, first_row: where those begin that rode in the letter; else they are where the request says.
    """

    topic_id: int
    partition: int
    record_count: int
    file_id: int | None = None
    first_row: int = 0


class Published(Result, frozen=True, tag="published"):
    """`duplicate`: the same was published before, nothing was added; a unit's base_offset is then the first one's.

    waiting: of rows that are not in the log yet.
    """

    units: list[Unit]
    refused_count: int = 0
    duplicate: bool = False
    waiting: list[WaitingUnit] = []


class FilesAdded(Record, frozen=True, tag="files_added"):
    """Data files that segments or dead letters of this step point at: to be registered in `messages`."""

    files: list[DataFile]


class RowsJournaled(Record, frozen=True, tag="rows_journaled"):
    """Rows that travel beside the JSON, until the next pass writes all such rows of its steps as the data file.

    first_row: the number that the first of them will have in the file.
    """

    file_id: int
    first_row: int
    record_count: int

    @property
    def subject(self) -> str:
        return file_stem(self.file_id)


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
    """Last txn_version published by an application to a target."""

    version: int
    seen_at_ms: int


REQUESTS = (Produce,)
RESULTS = (Published,)
RECORDS = (FilesAdded, RowsJournaled, Produced, DeadLettered)
