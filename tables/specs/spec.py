"""How a table is declared: a frozen row class whose fields carry type and comment, and a `TableSpec` around it.

DDL, the Spark catalog, the docs page of tables and every read and write follow from the spec; nothing else names a
column's type. Only pyarrow is needed here, so that the pure protocol may share the columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA_VERSION = 1
"""Version of the stored format; a namespace of a newer one is refused."""

VERSION_PROPERTY = "lakemq.schemaVersion"

INT32, INT64, TEXT, BINARY, BOOL = pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")


def column(type: pa.DataType, comment: str, *, nullable: bool = False) -> Any:
    """A field of a row class: its Arrow type, what it holds, whether it may be null (then None is its default)."""
    metadata = {"type": type, "comment": comment, "nullable": nullable}
    return field(default=None, metadata=metadata) if nullable else field(metadata=metadata)


@dataclass(frozen=True)
class TableSpec:
    """A table of a namespace.

    shape: `log` (rows are facts, each is written once), `changelog` (the newest row of a key at or below a step is
    its state then), or `data` (the message files).
    """

    name: str
    row: type
    shape: Literal["log", "changelog", "data"]
    keys: tuple[str, ...]
    comment: str
    sort_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    log_retention_ms: int = 600_000
    """How long log entries stay that a checkpoint covers; the leader removes them, by the store's times."""
    replaced_retention_ms: int | None = None
    """How long files stay at most that a merge has replaced; None: for reader.grace.ms."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows, in the order of the row class."""
        return pa.schema(
            [
                pa.field(
                    f.name,
                    f.metadata["type"],
                    nullable=f.metadata["nullable"],
                    metadata={"comment": f.metadata["comment"]},
                )
                for f in dataclasses.fields(self.row)
            ]
        )

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """What Delta stores: the same columns, all nullable, without metadata (writers of any kind can match it)."""
        return pa.schema([pa.field(f.name, f.type) for f in self.schema])

    @property
    def configuration(self) -> dict[str, str]:
        """Delta table properties, the schema version among them."""
        return {
            # the price of a commit grows with the number of entries in the log, by 1.5 ms per 1,000
            "delta.logRetentionDuration": f"interval {self.log_retention_ms} milliseconds",
            # by then a sweep has deleted what a merge replaced, see reader.grace.ms
            "delta.deletedFileRetentionDuration": "interval 7 hours",
            "delta.enableExpiredLogCleanup": "false",
            "delta.checkpointInterval": "1000000",
            **self.properties,
            VERSION_PROPERTY: str(SCHEMA_VERSION),
        }

    def table(self, rows: Iterable[Any]) -> pa.Table:
        """Row objects as an Arrow table of `stored_schema`."""
        # all fields of a row at once: a third of the time that one after the other takes
        columns = list(zip(*map(self._values, rows), strict=True)) or [()] * len(self.stored_schema)
        arrays = [pa.array(values, f.type) for values, f in zip(columns, self.stored_schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.stored_schema)

    def of_columns(self, **columns: Sequence[Any]) -> pa.Table:
        """The same of columns by name: for thousands of rows, a third of the time."""
        arrays = [pa.array(columns[f.name], f.type) for f in self.stored_schema]
        return pa.Table.from_arrays(arrays, schema=self.stored_schema)

    @cached_property
    def _values(self) -> Callable[[Any], tuple[Any, ...]]:
        """Of a row object, in the order of the columns. Every table has several."""
        return attrgetter(*self.stored_schema.names)

    def rows(self, table: pa.Table) -> list[Any]:
        """The inverse of `table`."""
        return [self.row(**values) for values in table.to_pylist()]

    def checked(self, rows: pa.Table) -> pa.Table:
        """The rows, as they were written; raises ValueError for one that LakeMQ has not: null where nothing may be.

        No element of a list is null, and no list in one; other fields of an element may be.
        """
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if column.null_count and not self.schema.field(name).nullable:
                raise ValueError(f"{self.name}.{name} is null")
            if pa.types.is_list(column.type) and any(_has_null_within(chunk) for chunk in column.chunks):
                raise ValueError(f"{self.name}.{name} has a null in a list")
        return rows

    def empty(self) -> pa.Table:
        return self.stored_schema.empty_table()


def _has_null_within(array: pa.Array) -> bool:
    if not pa.types.is_list(array.type):
        return False
    values = array.flatten()
    if values.null_count:
        return True
    inner = values.type
    if pa.types.is_struct(inner):
        # flattened, a field is null where its struct is
        lists = [pc.struct_field(values, [i]) for i in range(inner.num_fields) if pa.types.is_list(inner.field(i).type)]
    else:
        lists = [values] if pa.types.is_list(inner) else []
    return any(one.null_count or _has_null_within(one) for one in lists)
