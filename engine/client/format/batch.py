"""Batch reads: `spark.read.format("lakemq")`.

Spark asks for the tasks once per `load()`, when it plans the first query, and uses them for every scan of that
DataFrame. So the reader takes no filters: Spark 4.2 would use those of one scan for all others, too, and
return wrong rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..schemas.schema_rule import SchemaRule
from .options import parse_batch_options
from .tasks import MessagesTask, read_task


class BatchReader(DataSourceReader):
    """Created on the driver, then sent to executors, which call `read`."""

    def __init__(self, options: Mapping[str, str], schema: SchemaRule | None = None) -> None:
        """schema: parses values."""
        self._options = replace(parse_batch_options(options), schema=schema)

    def partitions(self) -> list[MessagesTask]:
        """Return what each task reads. Raises what `mq.fetch` raises."""
        from .planning import plan_batch  # executors lack some of its imports

        return plan_batch(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options.location, self._options.include_headers, partition)
