"""Spark's data source `lakemq`, with which batches and streams read and publish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, StructField, StructType

from ...protocol.errors import InvalidRequest
from ..schemas import SchemaRule
from .options import NO_TABLES, includes_headers, parses_values
from .stream import BatchReader, StreamReader
from .tasks import WrittenRows, parse_batch_write_options, parse_stream_write_options

if TYPE_CHECKING:
    from .planning import TypedValues


class BatchWriter(DataSourceArrowWriter):
    """Created on the driver; `write` runs on executors, `commit` on the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        from .publishing import make_write_task  # executors have not all that it needs

        if overwrite:
            text = "Published messages cannot be overwritten."
            raise InvalidRequest(text, found="mode overwrite", expected="mode append")
        self._options = parse_batch_write_options(options)
        self._task = make_write_task(self._options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all rows or none. Raises what `mq.publish` raises."""
        from .publishing import publish

        publish(self._task, messages, self._options.application)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publish each batch of a stream under the id of its checkpoint. A repeated batch publishes nothing."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from .publishing import make_write_task, read_stream_id

        self._options = parse_stream_write_options(options)
        assert self._options.checkpoint is not None
        self._stream_id = read_stream_id(self._options.checkpoint, self._options.location.storage_options)
        self._task = make_write_task(self._options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from .publishing import publish

        publish(self._task, messages, (self._stream_id, batchId))


FORMAT = "lakemq"

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
    """The source that `register` registers, and that Spark finds by itself through `pyspark_lakemq`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of Spark's Kafka source, with headers and typed values if the options ask for them."""
        if "provider" in self.options:  # a table of the catalog is created
            raise InvalidRequest("The format lakemq has no tables.", found="CREATE TABLE", expected=NO_TABLES)
        fields = [*_SCHEMA]
        if includes_headers(self.options):
            fields.append(StructField("headers", _HEADERS))
        if self._values is not None:
            fields.append(self._values.field)
        return StructType(fields)

    @cached_property
    def _values(self) -> TypedValues | None:
        if not parses_values(self.options):
            return None
        from .planning import find_typed_values  # executors have not all that it needs

        return find_typed_values(self.options)

    @property
    def _rule(self) -> SchemaRule | None:
        return None if self._values is None else self._values.rule

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return BatchReader(self.options, self._rule)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        return StreamReader(self.options, self._rule)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer.

        overwrite is ignored: in outputMode complete, each row of a batch is a message, as with Kafka.
        """
        return StreamWriter(self.options, schema)

    def _check(self, schema: StructType) -> None:
        if schema != self.schema():
            raise InvalidRequest("The format lakemq has one schema.", found=schema.simpleString(), expected="no schema")


def register(spark: SparkSession) -> None:
    """Register the format `lakemq` in this session. Where the wheel is installed, a session knows it without this."""
    spark.dataSource.register(LakeMQDataSource)
