"""A batch: `spark.read.format("lakemq")`, a fixed range of offsets, planned when the query is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from .narrowing import Narrowing
from .options import batch_options
from .tasks import MessagesTask, read_task


class BatchReader(DataSourceReader):
    """Made on the driver, and sent to executors, which call `read`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options, self._narrowing = batch_options(options), Narrowing()

    def partitions(self) -> list[MessagesTask]:
        """What each task reads. Raises what `mq.fetch` raises."""
        from .planning import plan_batch  # executors have not all that it needs

        return plan_batch(self._options, self._narrowing)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options.place, self._options.include_headers, partition)


class NarrowedReader(BatchReader):
    """One that files are left out of by the query's filters; Spark asks for that where it is switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """All of them: Spark looks at the rows of what is read."""
        self._narrowing = Narrowing.of(filters)
        return filters
