"""Rows of data files for DuckDB, read with the bounds of a fetch.

Arrow's scanner has no bound. It also reads files that Python opens in threads of its own, which may wait for each other
and for the interpreter's lock. Here the thread that wants rows reads them, and threads of Python open files ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_bounded_parquet
from lakemq.tables.storage.parquet_pages import BASE_BYTES, TooLargeUnpacked
from lakemq.tables.storage.workers import Workers

from ...namespace.data_file import ParquetFooter, read_footer

_BATCH_ROWS = 1 << 16
_OPENED_AHEAD = 8


class DataFileRows(ds.Dataset):
    """The rows of data files, for `DuckDBPyConnection.from_arrow`.

    Attributes:
        schema: that of `messages`.
    """

    schema = MESSAGES.stored_schema

    def __init__(self, files: Files, names: Sequence[str]) -> None:
        """names: of the data files."""
        # not the constructor of `Dataset`, which refuses. DuckDB calls only what is here
        self._files, self._names = files, names

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> _Scanner:
        """Return what reads these columns, or all, of the rows for which the filter holds."""
        return _Scanner(self._files, self._names, self.schema.names if columns is None else columns, filter)


class _Scanner:
    """Reads data files one after the other."""

    def __init__(self, files: Files, names: Sequence[str], columns: Sequence[str], where: pc.Expression | None) -> None:
        self._files, self._names, self._where = files, names, where
        self._shown = pa.schema([MESSAGES.stored_schema.field(name) for name in columns])
        self._read_columns = [name for name in MESSAGES.stored_schema.names if name in columns or self._filters(name)]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows in batches. Reads raise OSError, which names the file."""
        return pa.RecordBatchReader.from_batches(self._shown, self._yield_batches())

    def _filters(self, column: str) -> bool:
        """Return whether the filter needs the column. Arrow tells only by failing without it."""
        if self._where is None:
            return False
        schema = MESSAGES.stored_schema
        try:
            schema.remove(schema.get_field_index(column)).empty_table().filter(self._where)
        except pa.ArrowInvalid:
            return True
        return False

    def _yield_batches(self) -> Iterator[pa.RecordBatch]:
        for name, opening in self._open_ahead():
            try:
                source, footer = opening.result()
                with source:
                    for rows in self._read_file(source, footer):
                        yield from rows.to_batches()
            except (OSError, ValueError, pa.ArrowException) as error:
                if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
                    raise  # of this machine or the store
                raise OSError(f"{name} is damaged: {' '.join(str(error).split())}") from error

    def _open_ahead(self) -> Iterator[tuple[str, Future[tuple[pa.NativeFile, ParquetFooter]]]]:
        """Yield each file while the next ones are opened, because a store takes its time to answer."""
        with Workers(_OPENED_AHEAD, "lakemq-sql") as pool:
            openings = deque[tuple[str, "Future[tuple[pa.NativeFile, ParquetFooter]]"]]()
            for name in self._names:
                openings.append((name, pool.submit(self._open, name)))
                if len(openings) > _OPENED_AHEAD:
                    yield openings.popleft()
            yield from openings

    def _open(self, name: str) -> tuple[pa.NativeFile, ParquetFooter]:
        source = self._files.open_input(name)
        return source, read_footer(source)

    def _read_file(self, source: pa.NativeFile, footer: ParquetFooter) -> Iterator[pa.Table]:
        metadata = footer.parse()
        if not metadata.schema.to_arrow_schema().equals(MESSAGES.stored_schema):
            raise ValueError("no file of message rows")
        if not (groups := self._find_groups(footer.content)):
            return
        file = open_bounded_parquet(source, metadata)
        for group in groups:
            for batch in file.iter_batches(_BATCH_ROWS, [group], self._read_columns):
                rows = _unpack_dictionaries(pa.Table.from_batches([batch]))
                if self._where is not None:
                    rows = rows.filter(self._where)
                yield rows.select(self._shown.names).cast(self._shown)

    def _find_groups(self, footer: bytes) -> list[int]:
        """Return the row groups that may have rows for which the filter holds, by their statistics."""
        fragment = ds.ParquetFileFormat().make_fragment(pa.py_buffer(footer))
        if self._where is not None:
            fragment = fragment.subset(filter=self._where, schema=MESSAGES.stored_schema)
        return [group.id for group in fragment.row_groups]


def _unpack_dictionaries(rows: pa.Table) -> pa.Table:
    """Return a batch of rows with names as texts. Raises TooLargeUnpacked."""
    if "topic" not in rows.column_names:
        return rows
    index, names = rows.column_names.index("topic"), rows.column("topic")
    longest = max((pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in names.chunks), default=0)
    if longest * rows.num_rows > BASE_BYTES:
        raise TooLargeUnpacked(
            f"names of {longest} bytes would unpack to {longest * rows.num_rows}; at most {BASE_BYTES} are read"
        )
    return rows.set_column(index, "topic", names.cast(pa.string()))
