"""Publish rows of this process, in Arrow or as lists: few rows travel in the letter, many get data files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lakemq.tables.specs.delayed import NOT_DELAYED
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.workers import Workers

from ...namespace.data_file import ROW_GROUP_BYTES, WrittenFile, new_data_file
from ...namespace.processes import crash
from ...namespace.processes.clock import Clock
from ...namespace.store_errors import store_errors
from ...protocol.codec.few_rows import Rows
from ...protocol.errors import ExpectationFailed, StaleTopicMetadata
from ...protocol.values.log import Produce, Published
from ..requests.attempts import NEVER_PUBLISHED, ask_with_retries
from ..requests.requester import Requester
from ..rows.arrow_body import ArrowBody
from ..rows.body import Body
from ..rows.misfits import merge_marks
from ..rows.placing import Arranged, Copy, RequestedPartitions, RowRun, SortedRows
from ..rows.publication import (
    Publication,
    build_produce_ranges,
    build_produce_request,
    describe_bad_times,
    error_of_rejected_rows,
    report_bad_times,
)
from ..rows.receipts import ArrangedSlice, PublishedRows, Receipts
from ..rows.routing import Route, RouteCache

SLICE_ROWS = 1 << 18
SLICE_BYTES = 256 << 20
"""Rows and bytes of a data file, about; a larger body is written as several. pyarrow cannot sort a column of 2 GiB."""

RunsOfFile = tuple[int, Copy, Sequence[RowRun]]
"""File of the request (-1: the rows that travel with it), the copy it serves, and its runs."""

_STALE_RETRIES = 20


class PreparedPublish(NamedTuple):
    """A publish that is ready to be sent. rows: those that travel with the request."""

    request: Produce
    rows: Rows | None
    route: Route
    partition: npt.NDArray[np.int32] | list[int]
    """Partition per row in the caller's order, in the first topic by name. Negative: the row is rejected."""
    timestamps_us: Any
    """Timestamp per row in the caller's order; a sequence or an Arrow column."""
    due_ms: npt.NDArray[np.int64] | list[int] | None = None
    """Due time per row in that topic, or NOT_DELAYED; None: no row is delayed."""
    slices: Sequence[ArrangedSlice] = ()
    """Rows that were arranged together, for receipts."""
    reasons: tuple[str, ...] = ()
    """Reasons that marks of `partition` name, for rows that do not fit the schema of the first topic."""
    warnings: Sequence[str] = ()
    """As in `PublishedRows`."""


class _ArrangedBody(NamedTuple):
    """Rows that are arranged, and written if they are many.

    rows: those that travel with the request; parts: the place of each run; written: the files; others: as in
    `PreparedPublish`.
    """

    rows: Rows | None
    parts: list[RunsOfFile]
    written: list[WrittenFile]
    partition: npt.NDArray[np.int32] | list[int]
    due_ms: npt.NDArray[np.int64] | list[int] | None = None
    slices: Sequence[ArrangedSlice] = ()
    reasons: tuple[str, ...] = ()


class KeylessRoundRobin:
    """Spreads rows without a key over the partitions, in turn. Thread-safe."""

    def __init__(self, start: int) -> None:
        self._next, self._lock = start, threading.Lock()

    def reserve(self, rows: int) -> int:
        with self._lock:
            start = self._next
            self._next += rows
            return start


class ArrowPublisher:
    """Publishes bodies, one after the other. Not thread-safe; several may share a requester, routes and round robin."""

    def __init__(
        self,
        files: Files,
        requester: Requester,
        routes: RouteCache,
        clock: Clock,
        new_file_id: Callable[[], int],
        inline_max_bytes: int,
        spread: KeylessRoundRobin,
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        self._files, self._requester, self._routes = files, requester, routes
        self._clock, self._new_file_id, self._inline_max_bytes = clock, new_file_id, inline_max_bytes
        self._crash_point = crash_point
        self._spread = spread
        self._reported: set[str] = set()
        """Destinations of misdated messages that were reported. A producer reports them once, not with each batch."""

    def publish(
        self,
        publication: Publication,
        body: Body,
        requested: RequestedPartitions = None,
    ) -> PublishedRows:
        """Publish a body.

        Raises what the request was refused with; RequestTimedOut when its outcome is unknown.
        """
        prepared, published = self.send(publication, body, requested)
        return PublishedRows.of(published, self.receipts(prepared, published), prepared.warnings)

    def send(
        self,
        publication: Publication,
        body: Body,
        requested: RequestedPartitions,
        timeout_ms: int = 120_000,
    ) -> tuple[PreparedPublish, Published]:
        """Publish a body, and return the prepared publish, too, which knows where each row is."""
        deadline_ms = self._clock.steady_ms() + timeout_ms
        start = self._spread.reserve(body.num_rows)
        for attempt in range(_STALE_RETRIES):
            prepared = self._prepare(publication, body, requested, start)
            try:
                return prepared, self._send(publication, prepared, deadline_ms)
            except StaleTopicMetadata:
                # no attempt was published: those without an answer are as stale, see NEVER_PUBLISHED
                self.forget_routes()
                if attempt == _STALE_RETRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def prepare(self, publication: Publication, body: Body, requested: RequestedPartitions) -> PreparedPublish:
        """Prepare a publish that the caller sends. Raises the error of a rejected row."""
        return self._prepare(publication, body, requested, self._spread.reserve(body.num_rows))

    def receipts(self, prepared: PreparedPublish, published: Published) -> Receipts | None:
        """Return the receipts of delayed rows; None if there are none, or the answer does not say where they are."""
        if not prepared.slices or not published.waiting:
            return None
        topic_ids = [tuple(prepared.route.topics[i].topic_id for i in copy.topics) for copy in prepared.route.copies]
        return Receipts(self._requester.namespace_id, topic_ids, prepared.slices, published.waiting)

    def forget_routes(self) -> None:
        """Drop all routes, because topics have changed."""
        self._routes.forget()

    def _prepare(
        self, publication: Publication, body: Body, requested: RequestedPartitions, start: int
    ) -> PreparedPublish:
        route, is_new = self._routes.find(publication.destination)
        placed = self._arrange_body(route, body, requested, start)
        ranges, rejected = build_produce_ranges(route, placed.parts, publication.expectations)
        is_reported, now_ms = publication.destination in self._reported, self._clock.now_ms()
        warnings = describe_bad_times([route], ranges, now_ms)
        may_be_stale = any(rows.error != ExpectationFailed.name for rows in rejected)
        may_be_stale |= bool(warnings) and not is_reported
        if may_be_stale and not is_new:  # a partition may have been added, a limit raised: look again first
            newest = self._routes.renew(publication.destination)
            if (newest.topics, newest.copies) != (route.topics, route.copies):
                return self._prepare(publication, body, requested, start)
            route, warnings = newest, describe_bad_times([newest], ranges, now_ms)
        if rejected and publication.on_error == "fail":
            raise error_of_rejected_rows(rejected, placed.partition, placed.reasons)
        if publication.on_error == "leave_out":
            rejected = []
        if warnings and not is_reported:
            report_bad_times(publication, warnings)
            self._reported.add(publication.destination)
        request = build_produce_request(publication, route, ranges, rejected, placed.written, body.has_ttl)
        return PreparedPublish(
            request,
            placed.rows,
            route,
            placed.partition,
            body.timestamps_us,
            placed.due_ms,
            placed.slices,
            placed.reasons,
            warnings,
        )

    def _send(self, publication: Publication, prepared: PreparedPublish, deadline_ms: int) -> Published:
        """Send until it is answered. After a missing answer, only errors of NEVER_PUBLISHED are conclusive."""
        request, sequences = prepared.request, publication.sequences
        if not (request.ranges.topic_index or request.rejected or request.application or request.transaction):
            return Published([])

        def ask() -> Published:
            left_ms = deadline_ms - self._clock.steady_ms() if publication.is_repeatable else None
            published = self._requester.ask(request, prepared.rows, left_ms)
            assert isinstance(published, Published)
            return published

        repeatable = publication.is_repeatable
        result = ask_with_retries(ask, self._clock, deadline_ms, NEVER_PUBLISHED) if repeatable else ask()
        if sequences is not None:
            sequences.advance(prepared.route, request.ranges, request.rejected)
        return result

    def _arrange_body(self, route: Route, body: Body, requested: RequestedPartitions, start: int) -> _ArrangedBody:
        if body.nbytes > self._inline_max_bytes:
            return self._write_files(route, body.to_arrow(), requested, start)
        arranged = body.arrange(route.copies, requested, start)
        parts: list[RunsOfFile] = [(-1, copy, runs) for copy, runs in arranged.runs]
        arranged_slices = [ArrangedSlice(0, body.num_rows, None, arranged.per_copy)] if arranged.per_copy else []
        return _ArrangedBody(
            arranged.rows, parts, [], arranged.partition, arranged.due_ms, arranged_slices, arranged.reasons
        )

    def _write_files(self, route: Route, body: ArrowBody, requested: RequestedPartitions, start: int) -> _ArrangedBody:
        slice_rows = max(1, min(SLICE_ROWS, body.num_rows * SLICE_BYTES // body.nbytes))

        def write(first: int) -> tuple[Arranged[tuple[SortedRows, ...]], WrittenFile]:
            slice_partitions = None if requested is None else requested[first : first + slice_rows]
            rows = body.slice(first, slice_rows)
            arranged = rows.arrange_for_file(route.copies, slice_partitions, start + first)
            with new_data_file(self._files, self._new_file_id()) as writer:
                writer.write_all(piece for rows in arranged.rows for piece in rows.cut(ROW_GROUP_BYTES))
            return arranged, writer.written(self._files)

        # sorting, compressing and fsyncing a slice leave the interpreter: the slices keep all cores busy
        with store_errors("The rows could not be stored."), Workers(os.cpu_count() or 1, "lakemq-publish") as pool:
            slices = list(pool.map(write, range(0, body.num_rows, slice_rows)))
        self._crash_point("publish.file_written")
        parts: list[RunsOfFile] = [
            (i, copy, runs) for i, (arranged, _) in enumerate(slices) for copy, runs in arranged.runs
        ]
        partition, reasons = merge_marks((np.asarray(arranged.partition), arranged.reasons) for arranged, _ in slices)
        if all(arranged.due_ms is None for arranged, _ in slices):
            return _ArrangedBody(None, parts, [file for _, file in slices], partition, reasons=reasons)
        due_ms = [np.full(len(a.partition), NOT_DELAYED) if a.due_ms is None else a.due_ms for a, _ in slices]
        arranged_slices = [
            ArrangedSlice(slice_rows * i, len(arranged.partition), file.file_id, arranged.per_copy)
            for i, (arranged, file) in enumerate(slices)
            if arranged.per_copy
        ]
        files = [file for _, file in slices]
        return _ArrangedBody(None, parts, files, partition, np.concatenate(due_ms), arranged_slices, reasons)
