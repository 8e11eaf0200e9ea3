"""Declare a table: a frozen row class whose fields carry type and comment, and a `TableSpec` around it.

DDL, the Spark catalog, the docs page of tables and every read and write follow from the spec; nothing else names a
column's type. This needs only pyarrow, so that the pure protocol may share the columns.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA_VERSION = 1
"""Version of the stored format. A namespace with another one is refused."""

VERSION_PROPERTY = "lakemq.schemaVersion"

INT32, INT64, TEXT, BINARY, BOOL = pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")


def column(type: pa.DataType, comment: str) -> Any:
    """Declare a field of a row class, which is never null: its Arrow type, and its comment."""
    return field(metadata={"type": type, "comment": comment, "nullable": False})


def optional(type: pa.DataType, comment: str) -> Any:
    """Declare a field that may be null, and is by default."""
    return field(default=None, metadata={"type": type, "comment": comment, "nullable": True})


@dataclass(frozen=True)
class TableSpec:
    """A table of a namespace.

    shape: `log` (each row is a fact, written once), `changelog` (the newest row of a key at or below a step is its
    state then), `data` (the message files), or `live` (it is stored nowhere).
    """

    name: str
    row: type
    shape: Literal["log", "changelog", "data", "live"]
    keys: tuple[str, ...]
    comment: str
    sort_by: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    log_retention_ms: int = 600_000
    """How long the leader keeps log entries after a checkpoint covers them, by the store's clock."""
    is_needed: bool = True
    """Whether decisions and messages depend on its rows. A repair goes on without lost rows of another one."""
    is_open_to_writers: bool = False
    """Whether other programs may write the table. Engines refuse to write every other one."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows, with the fields of the row class in order."""
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
        """Delta's schema: the same columns, all nullable and without metadata, so that any writer can match it."""
        return pa.schema([pa.field(f.name, f.type) for f in self.schema])

    @property
    def configuration(self) -> dict[str, str]:
        """Delta table properties, including the schema version."""
        return {
            # a commit gets slower by 1.5 ms per 1,000 entries in the log
            "delta.logRetentionDuration": f"interval {self.log_retention_ms} milliseconds",
            # no reader needs tombstones, which would fill the checkpoints: the leader lists the files that it deletes
            "delta.deletedFileRetentionDuration": f"interval {self.log_retention_ms} milliseconds",
            "delta.enableExpiredLogCleanup": "false",
            "delta.checkpointInterval": "1000000",
            **self.properties,
            VERSION_PROPERTY: str(SCHEMA_VERSION),
        }

    def table(self, rows: Iterable[Any]) -> pa.Table:
        """Convert row objects to an Arrow table of `stored_schema`."""
        # `_values` reads all fields of a row at once, in a third of the time
        columns = list(zip(*map(self._values, rows), strict=True))
        if not columns:
            return self.empty()
        arrays = [pa.array(values, f.type) for values, f in zip(columns, self.stored_schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.stored_schema)

    def to_table_from_columns(self, **columns: Sequence[Any]) -> pa.Table:
        """Convert columns by name to an Arrow table; for thousands of rows, in a third of the time of `table`."""
        arrays = [pa.array(columns[f.name], f.type) for f in self.stored_schema]
        return pa.Table.from_arrays(arrays, schema=self.stored_schema)

    @cached_property
    def _values(self) -> Callable[[Any], tuple[Any, ...]]:
        """The function that returns the values of a row object in column order."""
        return attrgetter(*self.stored_schema.names)

    def rows(self, table: pa.Table) -> list[Any]:
        """Convert an Arrow table to row objects; the inverse of `table`."""
        return [self.row(**values) for values in table.to_pylist()]

    def validate(self, rows: pa.Table) -> pa.Table:
        """Return the rows if LakeMQ can have written them. Raises ValueError for a null that the spec forbids.

        Elements of lists and nested lists are never null; other fields of an element may be.
        """
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if column.null_count and not self.schema.field(name).nullable:
                raise ValueError(f"{self.name}.{name} is null")
            if pa.types.is_list(column.type) and any(_has_null_within(chunk) for chunk in column.chunks):
                raise ValueError(f"{self.name}.{name} has a null in a list")
        return rows

    def empty(self) -> pa.Table:
        """Return the table without rows. It is built once, because most projections leave most tables unchanged."""
        return self._empty

    @cached_property
    def _empty(self) -> pa.Table:
        return self.stored_schema.empty_table()


def _has_null_within(array: pa.Array) -> bool:
    if not pa.types.is_list(array.type):
        return False
    values = array.flatten()
    if values.null_count:
        return True
    inner = values.type
    if pa.types.is_struct(inner):
        # a flattened field is null where its struct is null
        lists = [pc.struct_field(values, [i]) for i in range(inner.num_fields) if pa.types.is_list(inner.field(i).type)]
    else:
        lists = [values] if pa.types.is_list(inner) else []
    return any(list_.null_count or _has_null_within(list_) for list_ in lists)
