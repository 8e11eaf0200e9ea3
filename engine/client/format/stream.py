"""Reads: `spark.readStream.format("lakemq")` and `spark.read.format("lakemq")`.

For a stream, Spark asks where the next batch ends, then what its tasks read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ...namespace.extras import hide_pandas
from ..schemas import SchemaRule
from .options import parse_batch_options, parse_stream_options
from .tasks import MessagesTask, read_task

if TYPE_CHECKING:
    from .stream_driver import StreamDriver


NOWHERE: dict[str, Any] = {}
"""The offset of a stream that has not begun. Its first batch stores where it begins."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process of the driver while the stream runs. Executors have copies that only read."""

    def __init__(self, options: Mapping[str, str], schema: SchemaRule | None = None) -> None:
        """schema: parses values, for the whole run of the stream."""
        self._options = replace(parse_stream_options(options), schema=schema)
        self._opened: StreamDriver | None = None
        self._batch_at_s: float | None = None
        self._until_now = False

    @property
    def _driver(self) -> StreamDriver:
        if self._opened is None:
            with hide_pandas():  # a process of Spark's that runs nothing but this stream
                from .stream_driver import StreamDriver  # executors have not all that it needs

            self._opened = StreamDriver(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        return NOWHERE

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable() if self._options.min_offsets is None else ReadMinRows(self._options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        """End this run at the present end of the log. Later messages are for the next run."""
        self._until_now = True
        self._driver.stop_at_current_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; `start` if there is none. Everything before `start` is processed."""
        following = self._driver
        following.commit_progress(start)
        coming = following.plan_next_batch(start)
        is_all = isinstance(limit, ReadAllAvailable)
        if not is_all and self._is_too_little(coming.offset_count):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = coming.end(start, most)
        if end != start:
            self._batch_at_s = time.monotonic()
        return end

    def _is_too_little(self, offset_count: int) -> bool:
        """Return whether to wait for more offsets. A run that ends with the present messages does not wait."""
        least = self._options.min_offsets
        if least is None or offset_count >= least or self._until_now or self._batch_at_s is None:
            return False
        return (time.monotonic() - self._batch_at_s) * 1000 < self._options.max_trigger_delay_ms

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._opened is None else self._opened.end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[MessagesTask]:
        """Return the tasks of a batch. Every call returns the same messages."""
        return self._driver.plan_tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options.location, self._options.include_headers, partition)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()


# Batch reads: `spark.read.format("lakemq")`.
#
# Spark asks for the tasks once per `load()`, when it plans the first query, and uses them for every scan of that
# DataFrame. So the reader takes no filters: Spark 4.2 would use those of one scan for all others, too, and return wrong
# rows.


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
