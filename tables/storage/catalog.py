"""The Spark catalog of a namespace: a database with all tables and views."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..specs.registry import TABLES
from ..specs.spec import TableSpec
from ..views import VIEWS
from .store import Store
from .workers import Workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
}


_AT_ONCE = 8
"""Statements that Spark is given at a time."""


class DatabaseTaken(Exception):
    """Another namespace, or something else, has the name of the database already."""


def database_name(path: str, moment: Moment | None = None) -> str:
    """The last part of a namespace's path as the name of a database: letters, digits and underscores."""
    last = path.rstrip("/").rsplit("/", 1)[-1].lower()
    name = re.sub(r"[^a-z0-9_]+", "_", last).strip("_")
    name = name if name and not name[0].isdigit() else f"mq_{name}".rstrip("_")
    return name if moment is None else f"{name}_at_{moment.step}"


def ddl_type(type: pa.DataType) -> str:
    """A Spark SQL type."""
    if pa.types.is_timestamp(type):
        return "timestamp"
    if pa.types.is_list(type):
        return f"array<{ddl_type(type.value_type)}>"
    if pa.types.is_struct(type):
        return "struct<" + ",".join(f"{f.name}:{ddl_type(f.type)}" for f in type) + ">"
    return _TYPES[type]


def columns_ddl(spec: TableSpec) -> str:
    """The columns of a table as a Spark schema string."""
    return ", ".join(f"`{f.name}` {ddl_type(f.type)}" for f in spec.stored_schema)


@dataclass(frozen=True)
class Moment:
    """What the tables held at a step, by the versions in which they hold it, by name."""

    step: int
    versions: Mapping[str, int]


def is_projection(spec: TableSpec) -> bool:
    """Whether it follows from the journal, so that a version may have rows of a step that others have not yet."""
    return spec.name not in ("journal", "watermarks")


def catalog_statements(path: str, store: Store, moment: Moment | None = None) -> list[str]:
    """SQL statements that make the namespace queryable; each may be run again. moment: not as it is, but as it was."""
    database = f"`{database_name(path, moment)}`"
    if moment is None:
        tables = [
            f"CREATE TABLE IF NOT EXISTS {database}.{spec.name} USING delta LOCATION '{_quoted(store.uri(spec))}'"
            for spec in TABLES
        ]
    else:
        tables = [
            f"CREATE OR REPLACE VIEW {database}.{spec.name} AS\n{_as_it_was(spec, store, moment)}" for spec in TABLES
        ]
    views = [
        f"CREATE OR REPLACE VIEW {database}.{name} AS\n{query.format(database=database)}"
        for name, query in VIEWS.items()
    ]
    comment = _quoted(_database_comment(store))
    return [f"CREATE DATABASE IF NOT EXISTS {database} COMMENT '{comment}'", *tables, *views]


def _as_it_was(spec: TableSpec, store: Store, moment: Moment) -> str:
    location = store.uri(spec).replace("`", "``")
    query = f"SELECT * FROM delta.`{location}`"
    if is_projection(spec):  # of the others no row is ever put together with another
        query += f" VERSION AS OF {moment.versions[spec.name]}"
    return f"{query} WHERE step <= {moment.step}" if "step" in spec.stored_schema.names else query


def catalog_sql(path: str, store: Store, moment: Moment | None = None) -> str:
    """The statements as a script for `spark-sql -i`, which ends in the namespace's database."""
    statements = catalog_statements(path, store, moment)
    return "".join(f"{s};\n" for s in [*statements, f"USE `{database_name(path, moment)}`"])


def register(spark: SparkSession, path: str, store: Store) -> str:
    """Register tables and views with a session; returns the database's name. Raises DatabaseTaken."""
    database, statements = database_name(path), catalog_statements(path, store)
    if spark.catalog.databaseExists(database):
        found = spark.catalog.getDatabase(database).description
        if found != _database_comment(store):
            raise DatabaseTaken(
                f"The Spark session has a database {database} already: found {found!r},"
                f" expected {_database_comment(store)!r}. Give the namespace's folder another name."
            )
    else:
        spark.sql(statements[0])
    # Delta reads the log of each table; what a view reads must be there
    tables, views = statements[1 : 1 + len(TABLES)], statements[1 + len(TABLES) :]
    with Workers(_AT_ONCE, "lakemq-catalog") as threads:
        for some in (tables, views):
            list(threads.map(spark.sql, some))
    return database


def _database_comment(store: Store) -> str:
    return f"LakeMQ namespace {store.files.root}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
