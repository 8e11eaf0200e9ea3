"""Read a table commit by commit from its log."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet as pq

from ..specs.spec import TableSpec
from .delta_log import DeltaLog
from .files import Files


class LogGone(Exception):
    """The log was cleaned past the follower's version, or the table was recreated. Load the table again."""


class Follower:
    """Follows a table at the cost of one small object per version; a handle would replay the log since its checkpoint.

    version: the last version read.
    """

    def __init__(self, files: Files, spec: TableSpec, version: int, without: Collection[str] = ()) -> None:
        """without: columns to leave out."""
        self._files, self._spec, self.version = files, spec, version
        self._schema = pa.schema([field for field in spec.stored_schema if field.name not in without])
        self._log = DeltaLog(files, spec.name)
        self._entry_identity = self._log.identity(version)

    def next(self) -> pa.Table | None:
        """Return the rows that the next commit added; None while there is no next commit. Moved rows do not count.

        Raises LogGone: the log was cleaned past this version, or files of the commit are gone.
        """
        following = self._log.identity(self.version + 1)
        try:
            rows = None if following is None else self._rows(self.version + 1)
        except FileNotFoundError as error:
            raise LogGone(f"{self._spec.name}: {error}") from error
        # checked last: entries are deleted in ascending order, so if this one still exists, a missing next one is yet
        # to come
        if not self._log.has_same_entry(self.version, self._entry_identity):
            raise LogGone(f"{self._spec.name}: version {self.version} is gone")
        if rows is not None:
            self.version, self._entry_identity = self.version + 1, following
        return rows

    def _rows(self, version: int) -> pa.Table:
        tables = [self._table(path) for path in self._log.list_added_files(version, moved=False)]
        # a step is usually one file, and concatenating costs a tenth of reading it
        return tables[0] if len(tables) == 1 else pa.concat_tables([self._schema.empty_table(), *tables])

    def _table(self, path: str) -> pa.Table:
        # read as a whole: a commit is small, and each part would be a request
        source = pa.BufferReader(self._files.get(path))
        with pq.ParquetFile(source) as file:
            # takes half the time of read_table, which handles more than files of a few rows need
            if file.schema_arrow.equals(self._spec.stored_schema):
                return file.read(columns=self._schema.names, use_threads=False)
            return pq.read_table(source, columns=self._schema.names, schema=self._spec.stored_schema)
