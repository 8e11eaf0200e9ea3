"""Batch reads: `spark.read.format("lakemq")`. The range of offsets is fixed when Spark plans the query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ..schemas.schema_rule import SchemaRule
from .options import parse_batch_options
from .pushed_filters import PushedFilters
from .tasks import MessagesTask, read_task


class BatchReader(DataSourceReader):
    """Created on the driver, then sent to executors, which call `read`."""

    def __init__(self, options: Mapping[str, str], schema: SchemaRule | None = None) -> None:
        """schema: by which values are parsed."""
        self._options, self._narrowing = replace(parse_batch_options(options), schema=schema), PushedFilters()

    def partitions(self) -> list[MessagesTask]:
        """Return what each task reads. Raises what `mq.fetch` raises."""
        from .planning import plan_batch  # executors lack some of its imports

        return plan_batch(self._options, self._narrowing)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options.location, self._options.include_headers, partition)


class FilteringReader(BatchReader):
    """A reader that skips files by the query's filters. Spark offers these only if filter pushdown is switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the filters, and return all of them: Spark still checks each row."""
        self._narrowing = PushedFilters.of(filters)
        return filters
