"""The Spark catalog of a namespace: a database with all tables and views, entered without reading the tables."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...specs.groups import LIVE_TABLES
from ...specs.registry import TABLES
from ...specs.spec import TableSpec
from ...views import VIEW_COLUMNS, VIEWS
from ..native_calls import Workers
from .store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


# Entries of tables and views in the catalog of a Spark session, written without reading the tables.
#
# `CREATE TABLE ... USING delta` and `CREATE VIEW` read the Delta log of every table. In a JVM that has just started
# that is half a minute of work. An entry only says where a table is, or what a view's text and columns are. This
# writes the same entries through Spark's `SessionCatalog`. Delta reads the log of a table when a query first names it.
# The classes are internal to Spark: `register` runs the statements where a Spark does not have them.


_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_CATALOG = "spark_catalog"
_REQUIRED_FIELDS = 4
"""Fields of Spark's `CatalogTable` without a default: identifier, kind, storage and schema."""


def has_delta_session_catalog(spark: SparkSession) -> bool:
    """Return whether the session keeps tables in Spark's own catalog, behind Delta's; Unity Catalog does not."""
    return hasattr(spark, "_jsparkSession") and spark.conf.get("spark.sql.catalog.spark_catalog", "") == _DELTA_CATALOG


class SessionCatalog:
    """The tables and views of one database in the catalog of a Spark session.

    Every method raises Py4JError if this Spark has other classes.
    """

    def __init__(self, spark: SparkSession, database: str) -> None:
        state = spark._jsparkSession.sessionState()
        jvm: Any = spark._jvm
        self._catalog, self._jvm, self._database = state.catalog(), jvm, database
        sql = jvm.org.apache.spark.sql
        self._classes, self._types = sql.catalyst, sql.types
        helper = getattr(sql.execution.command, "ViewHelper$")
        # A view is analysed under the settings of the session that made it, as CREATE VIEW keeps them.
        self._settings = getattr(helper, "MODULE$").sqlConfigsToProps(state.conf(), "view.sqlConfig.")
        self._defaults, self._version = self._default_fields(), spark.version

    def add_table(self, name: str, location: str) -> None:
        """Add a Delta table at a URI, unless the session has a table of this name."""
        empty = self._classes.catalog.CatalogStorageFormat.empty()
        uri = self._jvm.org.apache.hadoop.fs.Path(location).toUri()
        storage = _copy(empty, locationUri=self._some(uri))
        table = self._entry(name, "EXTERNAL", storage, "")
        table = _copy(table, provider=self._some("delta"), tracksPartitionsInCatalog=True)
        self._catalog.createTable(table, True, False)

    def put_view(self, name: str, columns: str, query: str, function: str | None = None) -> None:
        """Add a view, or replace it.

        columns: the query's columns as a Spark schema string. function: a function of the session that the query calls.
        CREATE VIEW takes none, because another session lacks it; there the view fails as one whose table is gone.
        """
        empty = self._classes.catalog.CatalogStorageFormat.empty()
        view = self._entry(name, "VIEW", empty, columns)
        properties = self._settings
        for key, value in self._view_properties([*view.schema().fieldNames()]).items():
            properties = properties.updated(key, value)
        if function is not None:
            properties = properties.updated("view.referredTempFunctionsNames", json.dumps([function]))
        text = self._some(query)
        view = _copy(view, createVersion=self._version, viewText=text, viewOriginalText=text, properties=properties)
        if self._catalog.tableExists(view.identifier()):
            self._catalog.alterTable(view)
        else:
            self._catalog.createTable(view, True, False)

    def _view_properties(self, columns: list[str]) -> dict[str, str]:
        """Return the properties that CREATE VIEW stores, besides the session's settings."""
        return {
            "view.catalogAndNamespace.numParts": "2",
            "view.catalogAndNamespace.part.0": _CATALOG,
            "view.catalogAndNamespace.part.1": self._database,
            "view.schemaMode": "COMPENSATION",
            "view.query.out.numCols": str(len(columns)),
            **{f"view.query.out.col.{number}": column for number, column in enumerate(columns)},
        }

    def _entry(self, name: str, kind: str, storage: Any, columns: str) -> Any:
        identifier = self._classes.TableIdentifier(name, self._some(self._database), self._some(_CATALOG))
        schema = self._types.StructType.fromDDL(columns) if columns else self._types.StructType()
        kinds = self._classes.catalog.CatalogTableType
        return self._classes.catalog.CatalogTable(identifier, getattr(kinds, kind)(), storage, schema, *self._defaults)

    def _default_fields(self) -> list[Any]:
        """Return the values of all fields of a `CatalogTable` that have a default, in order."""
        entries = self._classes.catalog.CatalogTable
        java_class = self._jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.catalog.CatalogTable")
        count = java_class.getConstructors()[0].getParameterCount()
        return [getattr(entries, f"apply$default${field}")() for field in range(_REQUIRED_FIELDS + 1, count + 1)]

    def _some(self, value: Any) -> Any:
        return self._jvm.scala.Option.apply(value)


def _copy(record: Any, **changes: Any) -> Any:
    """Return a copy of an instance of a Scala case class, with some fields changed."""
    names, fields = record.productElementNames(), []
    for field in range(record.productArity()):
        name = names.next()
        fields.append(changes[name] if name in changes else record.productElement(field))
    return record.copy(*fields)


# The database: its names, its statements, and its registration in a catalog or in one session.


_AT_ONCE = 8
"""Statements that Spark runs at a time."""


class DatabaseTaken(Exception):
    """A database with this name exists already and does not belong to this namespace."""


def database_name(path: str, moment: Moment | None = None) -> str:
    """Return the database name for a path: its last part in letters, digits and underscores."""
    last = path.rstrip("/").rsplit("/", 1)[-1].lower()
    name = re.sub(r"[^a-z0-9_]+", "_", last).strip("_")
    name = name if name and not name[0].isdigit() else f"mq_{name}".rstrip("_")
    return name if moment is None else f"{name}_at_{moment.step}"


def live_function_name(path: str, spec: TableSpec) -> str:
    """Return the name of the session's table function that reads a live table of a namespace."""
    return f"{database_name(path)}_{spec.name}"


def ddl_type(type: pa.DataType) -> str:
    """Return the Spark SQL type of an Arrow type."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(type).simpleString()


def columns_ddl(schema: pa.Schema) -> str:
    """Return columns as a Spark schema string."""
    return ", ".join(f"`{f.name}` {ddl_type(f.type)}" for f in schema)


@dataclass(frozen=True)
class Moment:
    """A past step, and the version of each table that holds the state as of it, by table name."""

    step: int
    versions: Mapping[str, int]


def is_projection(spec: TableSpec) -> bool:
    """Return whether the table is a projection of the steps.

    Projections are written one after the other, so a version may hold rows of a step that other tables lack.
    """
    return spec.name != "watermarks" and not spec.is_open_to_writers


def catalog_statements(path: str, store: Store, moment: Moment | None = None) -> list[str]:
    """Return idempotent SQL statements that register the namespace. moment: register it as of this moment."""
    database = f"`{database_name(path, moment)}`"
    if moment is None:
        tables = [
            f"CREATE TABLE IF NOT EXISTS {database}.{spec.name} USING delta LOCATION '{_escape(store.uri(spec))}'"
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
    return [_create_database(database_name(path, moment), store), *tables, *views]


def _as_it_was(spec: TableSpec, store: Store, moment: Moment) -> str:
    location = store.uri(spec).replace("`", "``")
    query = f"SELECT * FROM delta.`{location}`"
    if is_projection(spec):  # rows of other tables are never combined, so filtering by step is enough
        query += f" VERSION AS OF {moment.versions[spec.name]}"
    return f"{query} WHERE step <= {moment.step}" if "step" in spec.stored_schema.names else query


READ_OLD_VERSIONS = "SET spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration=false;\n"
"""What a session needs to read a version that is older than Delta allows by default: of a table that seldom changes."""


def catalog_sql(path: str, store: Store, moment: Moment | None = None) -> str:
    """Return the statements as a script for `spark-sql -i`, which ends in the namespace's database."""
    statements = catalog_statements(path, store, moment)
    return "".join(f"{s};\n" for s in [*statements, f"USE `{database_name(path, moment)}`"])


def register(spark: SparkSession, path: str, store: Store) -> str:
    """Register tables and views with a session, and return the database's name. Raises DatabaseTaken.

    With Spark's own catalog this reads no table: the first query reads the logs that it needs.
    """
    database, statements = database_name(path), catalog_statements(path, store)
    open_database(spark, database, store)
    if not _put_entries(spark, path, store):
        _run_statements(spark, statements[1:])
    return database


def open_database(spark: SparkSession, database: str, store: Store) -> None:
    """Create a database of the namespace in a session, unless it is there. Raises DatabaseTaken: it is another's."""
    if not spark.catalog.databaseExists(database):
        spark.sql(_create_database(database, store))
        return
    comment = spark.catalog.getDatabase(database).description
    if comment != _database_comment(store):
        raise DatabaseTaken(
            f"The Spark session already has a database {database}: found {comment!r},"
            f" expected {_database_comment(store)!r}. Give the namespace's folder another name."
        )


def _create_database(database: str, store: Store) -> str:
    return f"CREATE DATABASE IF NOT EXISTS `{database}` COMMENT '{_escape(_database_comment(store))}'"


def _put_entries(spark: SparkSession, path: str, store: Store) -> bool:
    """Put the entries into the session's catalog; False where this Spark has another catalog, or other classes."""
    database = database_name(path)
    if not has_delta_session_catalog(spark):
        return False
    from py4j.protocol import Py4JError  # comes with pyspark, which not every process has

    try:
        catalog = SessionCatalog(spark, database)
        for spec in TABLES:
            catalog.add_table(spec.name, store.uri(spec))
        for name, query in VIEWS.items():
            catalog.put_view(name, VIEW_COLUMNS[name], query.format(database=f"`{database}`"))
        for spec in LIVE_TABLES:
            function = live_function_name(path, spec)
            catalog.put_view(spec.name, columns_ddl(spec.stored_schema), f"SELECT * FROM {function}()", function)
    except Py4JError as error:
        log.info("Spark's session catalog takes no entries; SQL statements register the tables: %s", error)
        return False
    return True


def _run_statements(spark: SparkSession, statements: list[str]) -> None:
    # Delta reads the log of each table; what a view reads must be there
    tables, views = statements[: len(TABLES)], statements[len(TABLES) :]
    with Workers(_AT_ONCE, "lakemq-catalog") as threads:
        for group in (tables, views):
            list(threads.map(spark.sql, group))


def _database_comment(store: Store) -> str:
    return f"LakeMQ namespace {store.files.root}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
