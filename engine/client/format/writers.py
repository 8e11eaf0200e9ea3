"""The sinks: `df.write.format("lakemq")`, and `df.writeStream.format("lakemq")`, by which a batch is published once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...protocol.errors import InvalidRequest
from .written import WrittenRows, batch_write_options, stream_write_options


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver; `write` runs on executors, `commit` on the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        from .publishing import task_of  # executors have not all that it needs

        if overwrite:
            raise InvalidRequest("What is published stays.", found="mode overwrite", expected="mode append")
        self._options = batch_write_options(options)
        self._task = task_of(self._options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All rows are published, or none. Raises what `mq.publish` raises."""
        from .publishing import publish

        publish(self._task, messages, self._options.application)


class StreamWriter(DataSourceStreamArrowWriter):
    """The same for each batch of a stream, under the id of its checkpoint: a repeat of a batch publishes nothing."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from .publishing import stream_id, task_of

        self._options = stream_write_options(options)
        self._stream_id = stream_id(self._options)
        self._task = task_of(self._options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from .publishing import publish

        publish(self._task, messages, (self._stream_id, batchId))
