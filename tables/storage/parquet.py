"""Open Parquet files so that each page is verified by its checksum, and bounded before it is unpacked.

LakeMQ writes a CRC-32 into the header of every page. A read that meets a page with another one ends with OSError. Pages
without a checksum, which other engines write, are read as they are.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

# Bound what the pages of a Parquet file unpack to, by the pages' own headers.
#
# A footer says what it likes. A dictionary of one long value, used by each of a million rows, is a few kilobytes in the
# file and hundreds of gigabytes in Arrow. Arrow has no bound for this, so the headers of all pages are read before
# Arrow sees their bytes.


BASE_BYTES = 64 << 20
"""Bytes that a file may unpack to whatever its size is."""
_MOST_TIMES = 24
"""Times its stored bytes that a larger file may unpack to. Snappy, in which data files are written, reaches 21."""
_WHOLE_BYTES = 1 << 20
"""A file up to this size is read at once: Arrow calls Python for each read, from threads of its own."""
_WEAK_CODECS = ("SNAPPY", "UNCOMPRESSED")
"""Codecs that cannot reach `_MOST_TIMES`."""
_FEW_BYTES = 1 << 20
"""A column that can be no larger is not looked at page by page."""
_BYTES_PER_ITEM = 4
"""Bytes of a null in a list in Arrow."""
_BYTES_PER_NUMBER = 8
ROW_GROUP_ROWS = 1 << 20
"""Rows of a row group at most. Numbers and nulls that are all alike take no bytes in a file, however many they are."""

_DICTIONARY_PAGE = 2
_DELTA_BYTE_ARRAY = 7
_BY_DICTIONARY = (2, 8)


class TooLargeUnpacked(OSError):
    """The pages of a file unpack to more than they may."""


class _ColumnChunk(NamedTuple):
    """A column of a row group.

    keeps_dictionary: Arrow does not unpack its dictionary. unpacked_bytes: None if only the pages tell. value_count:
    how many values Arrow makes room for, with nulls.
    """

    begin: int
    size_bytes: int
    row_count: int
    value_count: int
    is_text: bool
    is_repeated: bool
    keeps_dictionary: bool
    unpacked_bytes: int | None


class _PageHeader(NamedTuple):
    """The header of a page. size_bytes: once it is decompressed."""

    size_bytes: int
    is_dictionary: bool
    value_count: int
    encoding: int


def limit_reads(
    source: pa.NativeFile, metadata: pq.FileMetaData, kept: list[str], most_bytes: int | None
) -> pa.NativeFile:
    """Return the file as Arrow may read it. Reads of pages that unpack to too much raise OSError.

    Args:
        source: the file. It stays open.
        metadata: its footer.
        kept: columns that are read as dictionaries.
        most_bytes: that all pages may unpack to; None: in proportion to the file's size.
    """
    bounded = _BoundedSource(source, list(_list_chunks(metadata, kept)), most_bytes)
    if source.size() > _WHOLE_BYTES:
        return pa.PythonFile(bounded, mode="r")
    source.seek(0)
    content = source.read_buffer(source.size())
    bounded.check(memoryview(content).cast("B"), 0)
    return pa.BufferReader(content)


class _BoundedSource:
    """An open Parquet file, for `pyarrow.PythonFile`."""

    closed = False

    def __init__(self, source: pa.NativeFile, chunks: list[_ColumnChunk], most_bytes: int | None) -> None:
        self._source, self._position = source, 0
        self._size: int = source.size()
        self._chunks, self._most_bytes = chunks, most_bytes
        self._stored_bytes = self._unpacked_bytes = 0

    def seek(self, position: int, whence: int = 0) -> int:
        begin: int = (0, self._position, self._size)[whence]
        self._position = begin + position
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """Leave the file open: whoever opened it closes it."""

    def read(self, count: int) -> bytes:
        content: bytes = self.read_buffer(count).to_pybytes()
        return content

    def read_buffer(self, count: int) -> pa.Buffer:
        """Read into Arrow's memory, which is used again. Arrow calls this where it can."""
        self._source.seek(self._position)
        content = self._source.read_buffer(count)
        self.check(memoryview(content).cast("B"), self._position)
        self._position += content.size
        return content

    def check(self, content: memoryview, position: int) -> None:
        """Check the pages of all columns that begin in bytes from a position of the file. Raises OSError."""
        chunks = [chunk for chunk in self._chunks if 0 <= chunk.begin - position < len(content)]
        if not chunks:
            raise OSError(f"found no column at byte {position}")
        for chunk in chunks:
            begin = chunk.begin - position
            self._spend(chunk, content[begin : begin + chunk.size_bytes])

    def _spend(self, chunk: _ColumnChunk, pages: memoryview) -> None:
        self._stored_bytes += len(pages)
        self._unpacked_bytes += _measure_pages(chunk, pages)
        if self._most_bytes is not None:  # else only the rows that the reader wants take this room
            self._unpacked_bytes += chunk.value_count * (_BYTES_PER_ITEM if chunk.is_text else _BYTES_PER_NUMBER)
        most = BASE_BYTES + _MOST_TIMES * self._stored_bytes if self._most_bytes is None else self._most_bytes
        if self._unpacked_bytes > most:
            raise TooLargeUnpacked(
                f"{self._stored_bytes} bytes of pages would unpack to {self._unpacked_bytes}; at most {most} are read"
            )


def _list_chunks(metadata: pq.FileMetaData, kept: list[str]) -> Iterator[_ColumnChunk]:
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            begin, dictionary, path = column.data_page_offset, column.dictionary_page_offset, column.path_in_schema
            is_text, is_repeated, is_kept = column.physical_type == "BYTE_ARRAY", "." in path, path in kept
            value_count = max(group.num_rows, column.num_values)
            if group.num_rows > ROW_GROUP_ROWS or (value_count > ROW_GROUP_ROWS and not is_repeated):
                raise TooLargeUnpacked(f"a row group has {value_count} rows; at most {ROW_GROUP_ROWS} are read")
            most_bytes = column.total_compressed_size * _MOST_TIMES
            most_bytes *= value_count if is_text and not is_kept else 1
            has_pages_to_read = is_repeated or column.compression not in _WEAK_CODECS or most_bytes > _FEW_BYTES
            yield _ColumnChunk(
                begin if not dictionary or dictionary < 0 else min(begin, dictionary),
                column.total_compressed_size,
                group.num_rows,
                value_count,
                is_text,
                is_repeated,
                is_kept,
                None if has_pages_to_read else min(column.total_uncompressed_size, most_bytes),
            )


def _measure_pages(chunk: _ColumnChunk, pages: memoryview) -> int:
    """Return about how many bytes the pages unpack to, at least."""
    if chunk.unpacked_bytes is not None:
        return chunk.unpacked_bytes
    unpacked = longest = value_count = position = 0
    while position < len(pages):
        page, position = _read_page(pages, position)
        unpacked += page.size_bytes
        if page.is_dictionary:
            longest = max(longest, page.size_bytes)
            continue
        value_count += page.value_count
        if chunk.is_text and page.encoding == _DELTA_BYTE_ARRAY:
            unpacked += page.size_bytes * page.value_count
        elif chunk.is_text and page.encoding in _BY_DICTIONARY and not chunk.keeps_dictionary:
            unpacked += longest * page.value_count
    if chunk.is_repeated:
        with_contents = unpacked // _BYTES_PER_ITEM  # at most; the length of an item takes as many bytes
        unpacked += _BYTES_PER_ITEM * max(0, value_count - chunk.row_count - with_contents)
    return unpacked


def _read_page(pages: memoryview, position: int) -> tuple[_PageHeader, int]:
    """Return the page at a position, and where it ends. Raises OSError: the header is damaged."""
    header, position = _read_struct(pages, position)
    kind, size_bytes, stored_bytes = (_get_number(header, number) for number in (1, 2, 3))
    in_page = header.get(5, header.get(8))  # of both versions
    if kind == _DICTIONARY_PAGE or not isinstance(in_page, dict):
        return _PageHeader(size_bytes, kind == _DICTIONARY_PAGE, 0, 0), position + stored_bytes
    encoding = _get_number(in_page, 2 if 5 in header else 4)
    return _PageHeader(size_bytes, False, _get_number(in_page, 1), encoding), position + stored_bytes


def _get_number(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int) or value < 0:
        raise OSError("found the header of a page without its numbers")
    return value


# -- headers of pages, in Thrift's compact protocol ---------------------------------------------------------

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)


def _read_struct(data: memoryview, position: int) -> tuple[dict[int, Any], int]:
    """Return number -> value of the numeric fields and structs at a position, and where they end. Raises OSError."""
    fields: dict[int, Any] = {}
    number = 0
    try:
        while (head := data[position]) != 0:
            position += 1
            if head >> 4:
                number += head >> 4
            else:
                number, position = _read_integer(data, position)
            kind = head & 15
            if kind in _INTEGERS:
                fields[number], position = _read_integer(data, position)
            elif kind == _STRUCT:
                fields[number], position = _read_struct(data, position)
            elif kind == _BINARY:
                length, position = _read_varint(data, position)
                position += length
            elif kind in (_BYTE, _DOUBLE):
                position += 1 if kind == _BYTE else 8
            elif kind not in (_TRUE, _FALSE):
                raise OSError(f"found a field of kind {kind} in the header of a page")
    except (IndexError, RecursionError):
        raise OSError("found a page without a whole header") from None
    return fields, position + 1


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[position]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        position += 1
    return number | byte << shift, position + 1


def _read_integer(data: memoryview, position: int) -> tuple[int, int]:
    number, position = _read_varint(data, position)
    return (number >> 1) ^ -(number & 1), position


# Files, opened within these bounds.


_KEPT = ["topic"]
"""Columns of few values. They are read as dictionaries, so that a long value is not unpacked for each row."""


def open_parquet(source: pa.NativeFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a file. Its reads raise OSError or ArrowException if they meet a damaged page.

    metadata: its footer, if that was read already.
    """
    return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)


def open_bounded_parquet(
    source: pa.NativeFile, metadata: pq.FileMetaData, most_bytes: int | None = None
) -> pq.ParquetFile:
    """Open a file of rows that another process wrote. Its reads also raise OSError before they unpack too much.

    Args:
        source: the file.
        metadata: its footer.
        most_bytes: that its pages may unpack to; None: in proportion to its size.
    """
    kept = [name for name in _KEPT if name in metadata.schema.names]  # files of one topic do not have it
    bounded = limit_reads(source, metadata, kept, most_bytes)
    is_in_store = not isinstance(source, pa.OSFile)  # and is asked for several columns at once
    return pq.ParquetFile(
        bounded, metadata=metadata, read_dictionary=kept, pre_buffer=is_in_store, page_checksum_verification=True
    )
