"""Data files: message rows as Parquet, written once under a random name.

Spark executors run this, too. They have only pyarrow, numpy and xxhash.
Rows of docs/architecture.md: publish 5; fetch 5.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from lakemq.tables.specs.messages import (
    BODY_SCHEMA,
    FILE_SCHEMA,
    FINAL_FILES,
    FINAL_MESSAGES,
    MAX_TIMESTAMP_US,
    MESSAGES,
    SEQUENCERS_FILES,
    FileFacts,
    file_stem,
    final_file_path,
)
from lakemq.tables.storage.delta.commits import NewFile
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import ROW_GROUP_ROWS

if TYPE_CHECKING:
    from ..protocol.values.log import DataFile

ROW_GROUP_BYTES = 32 << 20
"""Bytes of rows that publishers write at a time. A reader of few rows reads a whole row group, and keeps it."""

BODY: list[str] = BODY_SCHEMA.names

_ENCODINGS = {
    "row": "DELTA_BINARY_PACKED",
    "partition": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
}


_DICTIONARY = pa.dictionary(pa.int32(), pa.string())

# as text in the file; as a dictionary here, because hashing a million equal names takes longer than writing them
_WRITTEN_SCHEMA: pa.Schema = pa.schema(
    [pa.field(f.name, _DICTIONARY) if f.name == "topic" else f for f in MESSAGES.stored_schema]
)


def repeat_name(name: str, count: int) -> pa.DictionaryArray:
    """Return `count` times the same text, in the form that writers of data files take."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([name], pa.string()))


class WrittenFile(NamedTuple):
    """A finished data file. The fields are those of a request's DataFile."""

    file_id: int
    size_bytes: int
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    footer_hash: int


def new_file_id() -> int:
    """Return a random id for a publisher's file, from the system: forked processes must not share a sequence."""
    return secrets.randbelow(SEQUENCERS_FILES)


def file_name(file_id: int, topic: str = "") -> str:
    """Return the name of a file of `messages`, or of a file of `final_messages`, which has one topic."""
    if file_id >= FINAL_FILES:
        return f"{FINAL_MESSAGES.name}/{final_file_path(topic, file_id)}"
    return f"{MESSAGES.name}/{file_stem(file_id)}.parquet"


class DataFileWriter:
    """Writes one file. Rows get consecutive numbers in the order of writing.

    Attributes:
        size_bytes: of the file, when it is finished. 0 before.
    """

    def __init__(self, writer: pq.ParquetWriter, file_id: int) -> None:
        self._writer, self.file_id = writer, file_id
        self.record_count = self.size_bytes = 0
        self.min_timestamp_ms, self.max_timestamp_ms = 2**62, -(2**62)

    def write(self, body: pa.Table) -> int:
        """Append rows, and return the number of the first one.

        Args:
            body: columns of BODY; the topic as text or as a dictionary.
        """
        first, n = self.record_count, body.num_rows
        if n == 0:
            return first
        columns = {name: body.column(name) for name in BODY}
        if not pa.types.is_dictionary(columns["topic"].type):
            columns["topic"] = columns["topic"].dictionary_encode()
        columns |= {"file_id": pa.repeat(self.file_id, n), "row": pa.array(np.arange(first, first + n))}
        placed = pa.table([columns[f.name] for f in _WRITTEN_SCHEMA], schema=_WRITTEN_SCHEMA)
        self._writer.write_table(placed, ROW_GROUP_ROWS)
        self.record_count += n
        stamps = body.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        self.min_timestamp_ms = min(self.min_timestamp_ms, int(stamps.min()))
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(stamps.max()))
        return first

    def write_all(self, bodies: Iterable[pa.Table]) -> int:
        """Append the rows of several tables, each as a row group, and return the number of the first row."""
        first = self.record_count
        for body in bodies:
            self.write(body)
            del body  # so that the next one gets its memory
        return first

    def written(self, files: Files) -> WrittenFile:
        """Return the facts of the finished file, read back from the store. Raises OSError."""
        facts = read_file_facts(files, self.file_id)
        if facts is None or facts.flaw:
            raise OSError(f"data file {file_stem(self.file_id)} was written and is gone, or {facts and facts.flaw}")
        times_ms = (self.min_timestamp_ms, self.max_timestamp_ms)
        return WrittenFile(self.file_id, facts.size_bytes, facts.record_count, *times_ms, facts.footer_hash)


@contextmanager
def new_data_file(files: Files, file_id: int, mark: Mapping[str, str] | None = None) -> Iterator[DataFileWriter]:
    """Yield a writer. Its file appears, whole and durable, when the block ends without an exception.

    mark: entries for its footer. By default a random one, so that no two files have the same footer.
    """
    with files.open_output(file_name(file_id)) as sink:
        with pq.ParquetWriter(
            sink,
            _WRITTEN_SCHEMA,
            compression="snappy",
            use_dictionary=["file_id", "topic"],  # one value each, or few
            column_encoding=_ENCODINGS,
            write_statistics=["file_id", "row", "topic", "partition", "timestamp"],
            store_schema=False,
            write_page_checksum=True,
        ) as writer:
            data_file = DataFileWriter(writer, file_id)
            yield data_file
            # a file that is rewritten with other values of the same length must have another footer
            writer.add_key_value_metadata(mark or {"lakemq.written": uuid.uuid4().hex})
        data_file.size_bytes = sink.tell()


def write_data_file(files: Files, file_id: int, body: pa.Table) -> WrittenFile:
    """Write one file with these rows."""
    with new_data_file(files, file_id) as writer:
        writer.write(body)
    return writer.written(files)


# -- existing files ----------------------------------------------------------------------------------------

_TAIL_BYTES = 1 << 14
"""Bytes that are read from the end of a file at once. Most footers fit."""

_MAGIC = b"PAR1"


JOURNALED = "lakemq.journaled"
"""Key in the footer of a file whose rows came in steps: the digest of these rows as encoded there."""


def read_journaled_digest(metadata: pq.FileMetaData) -> str | None:
    """Return the digest of the rows if they came in steps, else None."""
    digest: bytes | None = (metadata.metadata or {}).get(JOURNALED.encode())
    return None if digest is None else digest.decode("ascii", "replace")


class ParquetFooter(NamedTuple):
    """The bytes of a Parquet file's footer. hash: of them, seeded with the file's size, as a signed number.

    Compare the hash before parsing, where it is known: Arrow trusts what a footer says, and can crash on a damaged one.
    """

    size_bytes: int
    hash: int
    content: bytes

    def is_other_than(self, expected_hash: int | None) -> bool:
        """Return whether the footer has another hash; False if none is known."""
        return expected_hash is not None and self.hash != expected_hash

    def parse(self) -> pq.FileMetaData:
        """Parse the footer. Raises ValueError: the file is not Parquet."""
        try:
            return pq.read_metadata(pa.BufferReader(self.content))
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"not a Parquet file: {error}") from error


def read_footer(source: pa.NativeFile) -> ParquetFooter:
    """Read the footer. Raises ValueError if there is none, OSError if it cannot be read."""
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES)) if size else b""
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < 12 or tail[-4:] != _MAGIC or length > size:
        raise ValueError("not a Parquet file")
    if length > len(tail):
        tail = source.read_at(length, size - length)
    footer = tail[-length:]
    unsigned = xxhash.xxh64_intdigest(footer, seed=size)
    return ParquetFooter(size, unsigned - (1 << 64) if unsigned >> 63 else unsigned, footer)


def read_file_facts(files: Files, file_id: int, expected_hash: int | None = None, topic: str = "") -> FileFacts | None:
    """Return the facts of a data file from one or two small reads. None: there is no such file.

    If the file is unreadable, has another footer, or holds no message rows, the facts have a flaw.

    expected_hash: of its footer, where it is known. topic: of a file of `final_messages`.
    """
    name = file_name(file_id, topic)
    size = files.size(name)
    if size is None:
        return None
    try:
        with files.open_input(name) as source:
            footer = read_footer(source)
        if footer.is_other_than(expected_hash):
            return FileFacts(footer.size_bytes, footer_hash=footer.hash, flaw="rewritten or damaged")
        metadata = footer.parse()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return FileFacts(size, flaw=" ".join(str(error).split()))
    columns = metadata.schema.to_arrow_schema()
    expected = FILE_SCHEMA if file_id >= FINAL_FILES else MESSAGES.stored_schema
    flaw = "" if columns.equals(expected) else "no file of message rows"
    is_journaled = read_journaled_digest(metadata) is not None
    return FileFacts(footer.size_bytes, metadata.num_rows, footer.hash, flaw, is_journaled)


def is_expected_file(expected_hash: int | None, found_hash: int, is_journaled: bool) -> bool:
    """Return whether a file is the one that segments name.

    expected_hash: their `footer_hash`. None: the rows came in steps, so only the digest identifies the file.
    """
    return is_journaled if expected_hash is None else found_hash == expected_hash


# -- as part of the table ---------------------------------------------------------------------------------


def to_table_file(file: WrittenFile | DataFileWriter | DataFile) -> NewFile:
    """Return the file as an entry of `messages`, with the statistics that let engines skip it."""
    least: dict[str, Any] = {"file_id": file.file_id, "row": 0}
    most: dict[str, Any] = {"file_id": file.file_id, "row": file.record_count - 1}
    # the file also has rows that were rejected for their time. Few readers know a year 0 or 10000: leave it out then
    if file.min_timestamp_ms >= 0 and file.max_timestamp_ms < MAX_TIMESTAMP_US // 1000:
        least["timestamp"], most["timestamp"] = (
            _format_time(file.min_timestamp_ms),
            _format_time(file.max_timestamp_ms + 1),
        )
    statistics = {
        "numRecords": file.record_count,
        "minValues": least,
        "maxValues": most,
        "nullCount": dict.fromkeys(most, 0),
    }
    return NewFile(f"{file_stem(file.file_id)}.parquet", file.size_bytes, file.max_timestamp_ms, statistics)


def _format_time(ms: int) -> str:
    # Delta's statistics know milliseconds; the upper one is rounded up by the caller
    return str(pc.strftime(pa.scalar(ms, pa.timestamp("ms", "UTC")), "%Y-%m-%dT%H:%M:%SZ"))
