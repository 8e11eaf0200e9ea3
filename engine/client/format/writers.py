"""Sinks: `df.write.format("lakemq")` and `df.writeStream.format("lakemq")`. Each batch is published exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...protocol.errors import InvalidRequest
from .tasks import WrittenRows, parse_batch_write_options, parse_stream_write_options


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
