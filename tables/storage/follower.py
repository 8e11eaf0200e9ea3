"""Reading a table commit by commit, as its log tells."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet as pq

from ..specs.spec import TableSpec
from .delta_log import DeltaLog
from .files import Files


class LogGone(Exception):
    """The log was cleaned beyond where its follower stood, or the table is another one: load it again."""


class Follower:
    """Follows a table at the price of one small object per version; a handle would replay the log since its checkpoint.

    version: the last one read.
    """

    def __init__(self, files: Files, spec: TableSpec, version: int, without: Collection[str] = ()) -> None:
        """without: columns that are not read."""
        self._files, self._spec, self.version = files, spec, version
        self._schema = pa.schema([field for field in spec.stored_schema if field.name not in without])
        self._log = DeltaLog(files, spec.name)
        self._stands_on = self._log.identity(version)

    def next(self) -> pa.Table | None:
        """Rows that the next commit added, None while there is no such commit. Files it only moved do not count.

        Raises LogGone: the log was cleaned beyond it, or files of it are gone.
        """
        following = self._log.identity(self.version + 1)
        try:
            rows = None if following is None else self._rows(self.version + 1)
        except FileNotFoundError as error:
            raise LogGone(f"{self._spec.name}: {error}") from error
        # looked at afterwards: entries go in ascending order, so that what was not there had not come yet
        if not self._log.has_still(self.version, self._stands_on):
            raise LogGone(f"{self._spec.name}: version {self.version} is gone")
        if rows is not None:
            self.version, self._stands_on = self.version + 1, following
        return rows

    def _rows(self, version: int) -> pa.Table:
        tables = [self._table(path) for path in self._log.added(version, moved=False)]
        # a step is one file, and to put tables together costs a tenth of reading it
        return tables[0] if len(tables) == 1 else pa.concat_tables([self._schema.empty_table(), *tables])

    def _table(self, path: str) -> pa.Table:
        # whole: a commit is small, and its parts would be a request each
        source = pa.BufferReader(self._files.get(path))
        with pq.ParquetFile(source) as file:
            # half the time of read_table, which looks for more than a file of a few rows has
            if file.schema_arrow.equals(self._spec.stored_schema):
                return file.read(columns=self._schema.names, use_threads=False)
            return pq.read_table(source, columns=self._schema.names, schema=self._spec.stored_schema)
