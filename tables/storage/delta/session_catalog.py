"""Entries of tables and views in the catalog of a Spark session, written without reading the tables.

`CREATE TABLE ... USING delta` and `CREATE VIEW` read the Delta log of every table. In a JVM that has just started that
is half a minute of work. An entry only says where a table is, or what a view's text and columns are. This module writes
the same entries through Spark's `SessionCatalog`. Delta reads the log of a table when a query first names it. The
classes are internal to Spark: `catalog.register` runs the statements where a Spark does not have them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
