"""The data source `lakemq` of Spark, by which batches and streams read and publish."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import ArrayType, StructField, StructType

from ...protocol.errors import InvalidRequest
from .batch import BatchReader, NarrowedReader
from .options import includes_headers
from .stream import StreamReader
from .writers import BatchWriter, StreamWriter

FORMAT = "lakemq"

_FILTERS = "spark.sql.python.filterPushdown.enabled"

_SCHEMA = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestampType", "integer")
)
_HEADERS = ArrayType(StructType().add("key", "string").add("value", "binary"))


class LakeMQDataSource(DataSource):
    """What Spark finds of its own accord, as `pyspark_lakemq`: it reads all that the options say."""

    reader_class: ClassVar[type[BatchReader]] = BatchReader

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """That of Spark's Kafka source."""
        return StructType([*_SCHEMA, StructField("headers", _HEADERS)]) if includes_headers(self.options) else _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return self.reader_class(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        return StreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """overwrite: what outputMode complete says; every row of a batch is a message, as with Kafka."""
        return StreamWriter(self.options, schema)

    def _check(self, schema: StructType) -> None:
        if schema != self.schema():
            raise InvalidRequest("The format lakemq has one schema.", found=schema.simpleString(), expected="no schema")


class NarrowedDataSource(LakeMQDataSource):
    """What `register` registers: also the filters of a query say what is read."""

    reader_class = NarrowedReader


def register(spark: SparkSession) -> None:
    """From now on this session knows the format `lakemq`, and asks it to leave out what filters leave out.

    Where the wheel is installed, a session knows the format without this, and reads all that the options say.
    """
    spark.conf.set(_FILTERS, "true")  # else Spark refuses a source that would
    spark.dataSource.register(NarrowedDataSource)
