"""A stream: `spark.readStream.format("lakemq")`. Spark asks how far the next batch goes, then what its tasks read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ...namespace.extras import without_pandas
from .options import stream_options
from .tasks import MessagesTask, read_task

if TYPE_CHECKING:
    from .following import Following

NOWHERE: dict[str, Any] = {}
"""Where a stream is that has begun nothing: where it begins is written with its first batch."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process of the driver while the stream runs; executors have another one, which only reads."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = stream_options(options)
        self._opened: Following | None = None
        self._batch_at_s: float | None = None
        self._until_now = False

    @property
    def _following(self) -> Following:
        if self._opened is None:
            with without_pandas():  # a process of Spark's that runs nothing but this stream
                from .following import Following  # executors have not all that it needs

            self._opened = Following(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        return NOWHERE

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable() if self._options.min_offsets is None else ReadMinRows(self._options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is for the next run."""
        self._until_now = True
        self._following.stop_at_the_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; `start` where there is none. All that is before `start` is done with."""
        following = self._following
        following.done_with(start)
        coming = following.coming(start)
        is_all = isinstance(limit, ReadAllAvailable)
        if not is_all and self._is_too_little(coming.offset_count):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = coming.end(start, most)
        if end != start:
            self._batch_at_s = time.monotonic()
        return end

    def _is_too_little(self, offset_count: int) -> bool:
        """To make a batch of now: a run that ends with what there is now does not wait for more."""
        least = self._options.min_offsets
        if least is None or offset_count >= least or self._until_now or self._batch_at_s is None:
            return False
        return (time.monotonic() - self._batch_at_s) * 1000 < self._options.max_trigger_delay_ms

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._opened is None else self._opened.end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[MessagesTask]:
        """The tasks of a batch: the same messages whenever it is asked."""
        return self._following.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options.place, self._options.include_headers, partition)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
