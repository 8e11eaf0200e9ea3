"""Publish rows of this process, in Arrow or as lists: few rows travel in the letter, many get data files.

Rows of docs/architecture.md: publish 5.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from lakemq.tables.specs.messages import NOT_DELAYED
from lakemq.tables.specs.transactions import APPLICATIONS
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files

from ...namespace import crash
from ...namespace.clock import Clock
from ...namespace.data_file import ROW_GROUP_BYTES, WrittenFile, new_data_file
from ...namespace.namespace import Namespace
from ...namespace.store_errors import store_errors
from ...protocol.codec.few_rows import Rows
from ...protocol.errors import ExpectationFailed, InvalidRequest, StaleTopicMetadata, StorageError
from ...protocol.values.log import ApplicationVersion, Produce, Published
from ...protocol.values.producers import TransactionRef
from ...protocol.values.state import State
from ..arguments import parse_text, parse_topic_name, parse_whole_number
from ..quality.gate import Gate, Gates
from ..requests.requester import NEVER_PUBLISHED, Requester, ask_with_retries
from ..rows.body import ArrowBody
from ..rows.few_rows import Body, build_body
from ..rows.input_rows import COLUMNS, check_dataframe, select_message_columns, sort_rows, to_arrow_table
from ..rows.placing import Arranged, Copy, RequestedPartitions, RowRun, SortedRows, merge_marks
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
from ..tracing import add_trace_to_table, open_span

if TYPE_CHECKING:
    from .spark import SparkPublisher


SLICE_ROWS = 1 << 18
SLICE_BYTES = 256 << 20
"""Rows and bytes of a data file, about; a larger body is written as several. pyarrow cannot sort a column of 2 GiB."""

RunsOfFile = tuple[int, Copy, Sequence[RowRun]]
"""File of the request (-1: the rows that travel with it), the copy it serves, and its runs."""

_STALE_RETRIES = 20


class ArrangedBody(NamedTuple):
    """Rows that are arranged, and written if they are many.

    Attributes:
        rows: those that travel with the request.
        parts: the place of each run.
        written: the files.
        partition: per row in the caller's order, in the first topic by name. Negative: the row is rejected.
        due_ms: due time per row in that topic, or NOT_DELAYED; None: no row is delayed.
        slices: rows that were arranged together, for receipts.
        reasons: what marks of `partition` name, for rows that do not fit the schema of the first topic.
    """

    rows: Rows | None
    parts: list[RunsOfFile]
    written: list[WrittenFile]
    partition: npt.NDArray[np.int32] | list[int]
    due_ms: npt.NDArray[np.int64] | list[int] | None = None
    slices: Sequence[ArrangedSlice] = ()
    reasons: tuple[str, ...] = ()


class PreparedPublish(NamedTuple):
    """A publish that is ready to be sent.

    Attributes:
        timestamps_us: timestamp per row in the caller's order; a sequence or an Arrow column.
        warnings: as in `PublishedRows`.
    """

    request: Produce
    route: Route
    placed: ArrangedBody
    timestamps_us: Any
    warnings: Sequence[str] = ()


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
        if not prepared.placed.slices or not published.waiting:
            return None
        topic_ids = [tuple(prepared.route.topics[i].topic_id for i in copy.topics) for copy in prepared.route.copies]
        return Receipts(self._requester.namespace_id, topic_ids, prepared.placed.slices, published.waiting)

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
        return PreparedPublish(request, route, placed, body.timestamps_us, warnings)

    def _send(self, publication: Publication, prepared: PreparedPublish, deadline_ms: int) -> Published:
        """Send until it is answered. After a missing answer, only errors of NEVER_PUBLISHED are conclusive."""
        request, sequences = prepared.request, publication.sequences
        if not (request.ranges.topic_index or request.rejected or request.application or request.transaction):
            return Published([])

        def ask() -> Published:
            left_ms = deadline_ms - self._clock.steady_ms() if publication.is_repeatable else None
            published = self._requester.ask(request, prepared.placed.rows, left_ms)
            assert isinstance(published, Published)
            return published

        repeatable = publication.is_repeatable
        result = ask_with_retries(ask, self._clock, deadline_ms, NEVER_PUBLISHED) if repeatable else ask()
        if sequences is not None:
            sequences.advance(prepared.route, request.ranges, request.rejected)
        return result

    def _arrange_body(self, route: Route, body: Body, requested: RequestedPartitions, start: int) -> ArrangedBody:
        if body.nbytes > self._inline_max_bytes:
            return self._write_files(route, body.to_arrow(), requested, start)
        arranged = body.arrange(route.copies, requested, start)
        parts: list[RunsOfFile] = [(-1, copy, runs) for copy, runs in arranged.runs]
        arranged_slices = [ArrangedSlice(0, body.num_rows, None, arranged.per_copy)] if arranged.per_copy else []
        return ArrangedBody(
            arranged.rows, parts, [], arranged.partition, arranged.due_ms, arranged_slices, arranged.reasons
        )

    def _write_files(self, route: Route, body: ArrowBody, requested: RequestedPartitions, start: int) -> ArrangedBody:
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
            return ArrangedBody(None, parts, [file for _, file in slices], partition, reasons=reasons)
        due_ms = [np.full(len(a.partition), NOT_DELAYED) if a.due_ms is None else a.due_ms for a, _ in slices]
        arranged_slices = [
            ArrangedSlice(slice_rows * i, len(arranged.partition), file.file_id, arranged.per_copy)
            for i, (arranged, file) in enumerate(slices)
            if arranged.per_copy
        ]
        files = [file for _, file in slices]
        return ArrangedBody(None, parts, files, partition, np.concatenate(due_ms), arranged_slices, reasons)


@dataclass(frozen=True)
class RowPublisher:
    """Publishes rows that a caller hands over at once.

    arrow, spark: return a publisher. They are functions, because each may refuse to make one now. read_state: returns
    the state as of the newest step.
    """

    gates: Gates
    namespace: Namespace
    clock: Clock
    arrow: Callable[[], ArrowPublisher]
    spark: Callable[[], SparkPublisher]
    read_state: Callable[[], State]

    def publish(self, publication: Publication, data: Any, columns: Mapping[str, Any], order_by: Any) -> PublishedRows:
        """Publish all rows, together or not at all."""
        gate = self.gates.of(publication.destination)
        if gate is not None:
            publication = replace(publication, expectations=gate.suite.descriptions)
        to = publication.destination
        with open_span("publish", "send", to, {"destination.name": to}, "PRODUCER") as span:
            done = self._publish(publication, data, columns, order_by, gate)
            if span is not None:
                span.set_attribute("messaging.batch.message_count", done.record_count)
            return done

    def _publish(
        self, publication: Publication, data: Any, columns: Mapping[str, Any], order_by: Any, gate: Gate | None
    ) -> PublishedRows:
        rows = to_arrow_table(data)
        # Few rows travel in the request, which costs less than the look.
        is_large = rows is None or rows.nbytes > self.namespace.config.number("inline.max.bytes")
        if is_large and publication.application is not None and self._is_repeat(publication.application):
            return PublishedRows.of(Published([], duplicate=True))
        if rows is not None:
            sorted_rows = sort_rows(rows, order_by)
            table = add_trace_to_table(select_message_columns(sorted_rows, columns))
            now_ms, to = self.clock.now_ms(), publication.destination
            body, requested = build_body(table, to, now_ms)
            if gate is not None:
                requested = gate.mark_failed_rows(sorted_rows, requested)
            return self.arrow().publish(publication, body, requested)
        check_dataframe("data", data, "a DataFrame (of Spark, pandas, ...) or an Arrow table")
        from .message_rows import add_trace_to_columns  # pyspark is heavy, and not every client has it

        traced = add_trace_to_columns(data, columns)
        return self.spark().publish(publication, data, traced, order_by, gate)

    def _is_repeat(self, application: ApplicationVersion) -> bool:
        """Return whether the version is known to be published, to save computing. The sequencer decides in any case."""
        try:
            with store_errors():
                last = find_last_version(
                    self.namespace.store, self.read_state(), application.txn_app_id, application.target
                )
        except StorageError:
            return False
        return 0 <= application.txn_version <= last

    def publish_in_transaction(
        self, topic: str, data: Any, transaction: TransactionRef, options: Mapping[str, Any]
    ) -> PublishedRows:
        """Publish rows as a part of a transaction.

        Args:
            options: columns and order_by, as in `mq.publish`.
        """
        named = dict(options)
        order_by = named.pop("order_by", None)
        unknown = named.keys() - set(COLUMNS)
        if unknown:
            raise InvalidRequest("Not an option of a publish inside a transaction.", found=sorted(unknown)[0])
        columns = {name: named.get(name) for name in COLUMNS}
        publication = Publication(parse_topic_name("topic", topic), "fail", transaction=transaction)
        return self.publish(publication, data, columns, order_by)


def parse_application(target: str, app_id: str | None, version: int | None) -> ApplicationVersion | None:
    """Return the application and version that identify a repeat; None if the caller gives none."""
    if (app_id is None) != (version is None):
        raise InvalidRequest("txn_app_id and txn_version go together.", expected="both, or none")
    if app_id is None or version is None:
        return None
    return ApplicationVersion(parse_text("txn_app_id", app_id), parse_whole_number("txn_version", version), target)


def find_last_version(store: Store, state: State, txn_app_id: str, target: str) -> int:
    """Return the last version that an application has published to a target; -1 if there is none.

    state: as of the newest step, with what came after the tables were loaded. It is read before the table, so that no
    version is in neither.
    """
    recent = state.applications.get((txn_app_id, target))
    is_of_application = (pc.field("txn_app_id") == txn_app_id) & (pc.field("target") == target)
    versions = store.open(APPLICATIONS).read(["version"], where=is_of_application).column("version")
    return max([-1, *versions.to_pylist(), *([recent.version] if recent else [])])
