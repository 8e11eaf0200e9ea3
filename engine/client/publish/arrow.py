"""Publishing rows that are at hand, in Arrow or a few: some ride in the request, many get files of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemq.tables.specs.delayed import NOT_DELAYED
from lakemq.tables.storage.files import Files
from lakemq.tables.storage.workers import Workers

from ...namespace import crash
from ...namespace.clock import Clock
from ...namespace.data_file import WrittenFile, write_data_file
from ...namespace.store_errors import store_errors
from ...protocol.codec.few_rows import Rows
from ...protocol.errors import ExpectationFailed, StaleTopicMetadata
from ...protocol.values.kinds import AnyResult
from ...protocol.values.log import Produce, Published
from ..attempts import NEVER_PUBLISHED, until_answered
from ..requester import Requester
from .few import FewBody, arrange_few
from .placing import Arranged, Copy, Run, arrange
from .publication import Publication
from .receipts import PublishedRows, Receipts, Slice
from .request import produce_request, ranges_of, refuse_all
from .routing import Route, RouteCache

SLICE_ROWS = 1 << 18
"""Rows of a data file; a larger body is written as several."""

Part = tuple[int, Copy, Sequence[Run]]
"""File of the request (-1: the rows that ride in it), the copy it serves, and its runs."""

Body: TypeAlias = pa.Table | FewBody
"""Messages that have no place yet."""

Asked: TypeAlias = "npt.NDArray[np.int64] | Sequence[int] | None"
"""The partitions asked for, by row, -1 where none is; None: for no row."""

_STALE_RETRIES = 20


class Prepared(NamedTuple):
    """A publish that is ready to be sent; `rows`: those that ride in the request."""

    request: Produce
    rows: Rows | None
    route: Route
    partition: npt.NDArray[np.int32] | list[int]
    """Of each row as it was given, in the first topic by name; negative for one that is refused."""
    timestamps_us: Any
    """Of each row as it was given, as what numpy makes an array of."""
    due_ms: npt.NDArray[np.int64] | list[int] | None = None
    """Of each row as it was given, in that topic: when it is due, NOT_DELAYED; None: none waits."""
    stretches: Sequence[Slice] = ()
    """By which it is told where rows wait."""


class _Placed(NamedTuple):
    """rows: those that ride in the request; parts: where each run is; written: the files; the others: as Prepared."""

    rows: Rows | None
    parts: list[Part]
    written: list[WrittenFile]
    partition: npt.NDArray[np.int32] | list[int]
    due_ms: npt.NDArray[np.int64] | list[int] | None = None
    stretches: Sequence[Slice] = ()


class Spread:
    """Where the next keyless rows begin their round of the partitions. Thread-safe."""

    def __init__(self, start: int) -> None:
        self._next, self._lock = start, threading.Lock()

    def take(self, rows: int) -> int:
        with self._lock:
            start = self._next
            self._next += rows
            return start


class ArrowPublisher:
    """Publishes bodies, one after the other. Not thread-safe; several may share a requester, routes and a spread."""

    def __init__(
        self,
        files: Files,
        requester: Requester,
        routes: RouteCache,
        clock: Clock,
        new_file_id: Callable[[], int],
        inline_max_bytes: int,
        spread: Spread,
        reached: crash.Reached = crash.nowhere,
    ) -> None:
        self._files, self._requester, self._routes = files, requester, routes
        self._clock, self._new_file_id, self._inline_max_bytes = clock, new_file_id, inline_max_bytes
        self._reached = reached
        self._spread = spread

    def publish(
        self,
        publication: Publication,
        body: Body,
        asked: Asked = None,
    ) -> PublishedRows:
        """Publish a body.

        Raises what the request was refused with; RequestTimedOut when its outcome is unknown.
        """
        prepared, published = self.send(publication, body, asked)
        return PublishedRows.of(published, self.receipts(prepared, published))

    def send(
        self,
        publication: Publication,
        body: Body,
        asked: Asked,
        timeout_ms: int = 120_000,
    ) -> tuple[Prepared, Published]:
        """As `publish`, and where the rows are."""
        deadline_ms = self._clock.steady_ms() + timeout_ms
        start = self._spread.take(body.num_rows)
        for attempt in range(_STALE_RETRIES):
            prepared = self._prepared(publication, body, asked, start)
            try:
                return prepared, self._send(publication, prepared, deadline_ms)
            except StaleTopicMetadata:
                # it was not published, and what was not answered would be as stale: nothing is in doubt
                self.forget_routes()
                if attempt == _STALE_RETRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def prepare(self, publication: Publication, body: Body, asked: Asked) -> Prepared:
        """A publish that somebody else will send. Raises what refuses one of its rows."""
        return self._prepared(publication, body, asked, self._spread.take(body.num_rows))

    def receipts(self, prepared: Prepared, published: Published) -> Receipts | None:
        """Of the rows that wait; None: there are none, or it was not told where."""
        if not prepared.stretches or not published.waiting:
            return None
        topic_ids = [tuple(prepared.route.topics[i].topic_id for i in copy.topics) for copy in prepared.route.copies]
        return Receipts(self._requester.namespace_id, topic_ids, prepared.stretches, published.waiting)

    def forget_routes(self) -> None:
        """Topics have changed: look at them again."""
        self._routes.forget()

    def _prepared(self, publication: Publication, body: Body, asked: Asked, start: int) -> Prepared:
        route, is_new = self._routes.find(publication.destination)
        placed = self._placed(route, body, asked, start)
        ranges, refused = ranges_of(route, placed.parts, publication.expectations)
        doubted = any(one.error != ExpectationFailed.name for one in refused)
        if doubted and not is_new:  # a partition that was added, a larger limit: look again before refusing
            self._routes.forget()
            return self._prepared(publication, body, asked, start)
        if refused and publication.on_error == "fail":
            raise refuse_all(refused)
        if publication.on_error == "leave_out":
            refused = []
        request = produce_request(publication, route, ranges, refused, placed.written, _has_ttl(body))
        timestamps_us = body.timestamps_us if isinstance(body, FewBody) else body.column("timestamp").cast(pa.int64())
        return Prepared(request, placed.rows, route, placed.partition, timestamps_us, placed.due_ms, placed.stretches)

    def _send(self, publication: Publication, prepared: Prepared, deadline_ms: int) -> Published:
        """Until it is answered. Once an answer is missing, no error but NEVER_PUBLISHED says what became of it."""
        request, sequences = prepared.request, publication.sequences
        if not (request.ranges.topic_index or request.refused or request.application or request.transaction):
            return Published([])

        def ask() -> Published:
            return published(self._requester.submit(request, prepared.rows))

        repeatable = publication.is_repeatable
        result = until_answered(ask, self._clock, deadline_ms, NEVER_PUBLISHED) if repeatable else ask()
        if sequences is not None:
            sequences.advance(prepared.route, request.ranges, request.refused)
        return result

    def _placed(self, route: Route, body: Body, asked: Asked, start: int) -> _Placed:
        rides = body.nbytes <= self._inline_max_bytes
        if isinstance(body, FewBody) and rides:
            few = arrange_few(route.copies, body, asked if asked is None else list(asked), start)
            stretches = [Slice(0, body.num_rows, None, few.each)] if few.each else []
            parts: list[Part] = [(-1, copy, runs) for copy, runs in few.runs]
            return _Placed(few.rows, parts, [], few.partition, few.due_ms, stretches)
        table = body.table() if isinstance(body, FewBody) else body
        wanted = None if asked is None else np.asarray(asked, np.int64)
        if rides:
            arranged = arrange(route.copies, table, wanted, start, by_slot=True)
            parts = [(-1, copy, runs) for copy, runs in arranged.runs]
            stretches = [Slice(0, table.num_rows, None, arranged.each)] if arranged.each else []
            return _Placed(arranged.rows, parts, [], arranged.partition, arranged.due_ms, stretches)
        return self._stored(route, table, wanted, start)

    def _stored(self, route: Route, body: pa.Table, asked: npt.NDArray[np.int64] | None, start: int) -> _Placed:
        def write(first: int) -> tuple[Arranged, WrittenFile]:
            mine = None if asked is None else asked[first : first + SLICE_ROWS]
            arranged = arrange(route.copies, body.slice(first, SLICE_ROWS), mine, start + first)
            return arranged, write_data_file(self._files, self._new_file_id(), arranged.rows)

        # sorting, compressing and fsyncing a slice leave the interpreter: the slices keep all cores busy
        with store_errors("The rows could not be stored."), Workers(os.cpu_count() or 1, "lakemq-publish") as pool:
            slices = list(pool.map(write, range(0, body.num_rows, SLICE_ROWS)))
        self._reached("publish.file_written")
        parts: list[Part] = [(i, copy, runs) for i, (arranged, _) in enumerate(slices) for copy, runs in arranged.runs]
        partition = np.concatenate([arranged.partition for arranged, _ in slices])
        if all(arranged.due_ms is None for arranged, _ in slices):
            return _Placed(None, parts, [file for _, file in slices], partition)
        each = [np.full(len(a.partition), NOT_DELAYED) if a.due_ms is None else a.due_ms for a, _ in slices]
        stretches = [
            Slice(SLICE_ROWS * i, len(arranged.partition), file.file_id, arranged.each)
            for i, (arranged, file) in enumerate(slices)
            if arranged.each
        ]
        return _Placed(None, parts, [file for _, file in slices], partition, np.concatenate(each), stretches)


def _has_ttl(body: Body) -> bool:
    if isinstance(body, FewBody):
        return body.ttls_ms is not None
    return bool(body.column("ttl_ms").null_count < body.num_rows)


def published(future: Future[AnyResult]) -> Published:
    """The result of a produce request, whose error is raised."""
    result = future.result()
    assert isinstance(result, Published)
    return result
