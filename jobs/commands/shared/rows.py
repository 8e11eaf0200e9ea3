"""Read JSON lines, plain lines, CSV and Parquet piece by piece, as tables that can be published.

A table has the column `value`, and `key`, `headers`, `timestamp` and `partition` if the caller named columns for them.
The size of a piece bounds the memory, whatever the size of the file.
"""

import codecs
import csv
import gzip
import io
import select
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from lakemq.errors import InvalidRecord
from lakemq.jobs.commands.shared.fields import Columns, FieldCounts, json_table, lines_table, rows_table

PIECE_BYTES = 4 << 20
PIECE_ROWS = 100_000
MAX_LINE_BYTES = 64 << 20

# How long a pipe may be silent before the bytes read so far are passed on.
_SILENCE_S = 0.05


class Format(StrEnum):
    """The format of a file with messages."""

    jsonl = "jsonl"
    lines = "lines"
    csv = "csv"
    parquet = "parquet"


_BY_ENDING = {
    "jsonl": Format.jsonl,
    "ndjson": Format.jsonl,
    "json": Format.jsonl,
    "txt": Format.lines,
    "csv": Format.csv,
    "parquet": Format.parquet,
}


def format_of(name: str) -> Format | None:
    """Return the format that a file's name tells, without `.gz`; None if it tells none."""
    return _BY_ENDING.get(name.removesuffix(".gz").rpartition(".")[2].lower())


def read(
    stream: BinaryIO, format: Format, columns: Columns, counts: FieldCounts, key_separator: bytes | None = None
) -> Iterator[pa.Table]:
    """Yield the messages of a file in order. Raises InvalidRecord.

    counts: counts the fields of JSON lines. key_separator: what stands between key and value of a plain line.
    """
    readers: dict[Format, Callable[[BinaryIO, Columns], Iterator[pa.Table]]] = {
        Format.jsonl: lambda file, names: _read_json(file, names, counts),
        Format.lines: lambda file, names: _read_lines(file, names, key_separator),
        Format.csv: _read_csv,
        Format.parquet: _read_parquet,
    }
    try:
        yield from readers[format](stream, columns)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidRecord(f"The file cannot be unpacked: {error}") from None


def _read_json(stream: BinaryIO, columns: Columns, counts: FieldCounts) -> Iterator[pa.Table]:
    for number, lines in _lines(stream):
        table = json_table(lines, number, columns, counts)
        if table.num_rows:
            yield table


def _read_lines(stream: BinaryIO, columns: Columns, key_separator: bytes | None) -> Iterator[pa.Table]:
    if any(vars(columns).values()):
        raise InvalidRecord("Plain lines have no columns.", expected="--format jsonl, csv or parquet")
    for _, lines in _lines(stream):
        yield lines_table(lines, key_separator)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, list[bytes]]]:
    """Yield pieces of lines without line ends and byte order mark, each with the number of its first line, from 1."""
    number, rest, is_first = 1, b"", True
    for block in _blocks(stream):
        *lines, rest = (rest + block).split(b"\n")
        if is_first and lines:
            lines[0], is_first = lines[0].removeprefix(codecs.BOM_UTF8), False
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidRecord(
                f"Line {number + len(lines)} is too long.", found=len(rest), expected=f"at most {MAX_LINE_BYTES} bytes"
            )
        for at in range(0, len(lines), PIECE_ROWS):
            yield number + at, [line.removesuffix(b"\r") for line in lines[at : at + PIECE_ROWS]]
        number += len(lines)
    rest = rest.removeprefix(codecs.BOM_UTF8) if is_first else rest
    if rest:
        yield number, [rest.removesuffix(b"\r")]


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield blocks of up to PIECE_BYTES. If a pipe falls silent, the bytes read so far are a block."""
    read = getattr(stream, "read1", stream.read)
    parts: list[bytes] = []
    size = 0
    while block := read(PIECE_BYTES - size):
        parts.append(block)
        size += len(block)
        if size >= PIECE_BYTES or not _more_soon(stream):
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _more_soon(stream: BinaryIO) -> bool:
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):
        return True
    return bool(select.select([descriptor], [], [], _SILENCE_S)[0])


def _read_csv(stream: BinaryIO, columns: Columns) -> Iterator[pa.Table]:
    names = _csv_header(stream)
    if not names:
        return
    # all columns as text: 007 stays 007
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    layout = pyarrow.csv.ReadOptions(column_names=names, block_size=PIECE_BYTES)
    try:
        batches = pyarrow.csv.open_csv(stream, layout, parse, convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        raise InvalidRecord(f"The CSV cannot be read: {error}") from None
    yield from _tables(batches, columns, "CSV")


def _csv_header(stream: BinaryIO) -> list[str]:
    """Read the names in the first record, and leave the stream behind it."""
    try:
        lines = (line.decode("utf-8-sig") for line in iter(stream.readline, b""))
        names = next(csv.reader(lines, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRecord(f"The CSV's header cannot be read: {error}") from None
    _check_names(names, "CSV's header")
    return names


def _check_names(names: Sequence[str], where: str) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRecord(f"A column occurs twice in the {where}.", found=twice[0])


def _read_parquet(stream: BinaryIO, columns: Columns) -> Iterator[pa.Table]:
    try:
        file = pq.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read()))
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidRecord(f"This is not a Parquet file: {error}") from None
    _check_names(file.schema_arrow.names, "Parquet file")
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    bytes_per_row = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=0)
    rows = min(PIECE_ROWS, max(1, PIECE_BYTES // max(bytes_per_row, 1)))
    yield from _tables(file.iter_batches(batch_size=rows), columns, "Parquet file")


def _tables(batches: Iterator[pa.RecordBatch], columns: Columns, what: str) -> Iterator[pa.Table]:
    number = 1
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidRecord(f"The {what} cannot be read after row {number - 1}: {error}") from None
        if batch is None:
            return
        if batch.num_rows:
            yield rows_table(pa.Table.from_batches([batch]), number, columns)
        number += batch.num_rows
