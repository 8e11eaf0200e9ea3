"""Publishing a DataFrame: tasks arrange rows and write files, the driver sends one request with all ranges."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Row

from lakemq.tables.storage.delta.catalog import columns_ddl

from ...namespace import crash
from ...namespace.clock import Clock
from ...namespace.data_file import WrittenFile
from ...namespace.namespace import Namespace
from ...protocol.errors import InvalidRecord, InvalidTopic, LakeMQError, StaleTopicMetadata, UnknownTopicOrPartition
from ...protocol.names import MAX_LENGTH
from ...protocol.values.log import ApplicationVersion, Produce, Published, Ranges, RejectedRows
from ...protocol.values.state import State
from ...protocol.values.topics import TopicRef
from ..quality.gate import Gate
from ..quality.spark_gate import SparkGate
from ..requests.requester import NEVER_PUBLISHED, Requester, ask_with_retries
from ..rows.placing import Copy, RowRun
from ..rows.publication import (
    OnError,
    Publication,
    build_produce_ranges,
    build_produce_request,
    describe_bad_times,
    error_of_rejected_rows,
    report_bad_times,
)
from ..rows.receipts import PublishedRows
from ..rows.routing import Route, find_route
from .executor import ELSEWHERE, RANGES, Destination, WriteMessages, WrittenRun
from .message_rows import select_message_rows

_ATTEMPTS = 4
"""Attempts if topics change meanwhile, or, if a repeat is harmless, without an answer."""

MAX_UNKNOWN = 1000
"""Most unknown names per publish that are reported by themselves."""

_RUN_FIELDS = RowRun._fields

Written: TypeAlias = tuple[WrittenFile, Sequence[WrittenRun]]
"""A file that a task wrote, and what it holds."""


@dataclass(frozen=True)
class Routes:
    """Routes by destination name. All routes share their topics.

    unknown: names that no topic receives, with the error. source: source of rejected rows with other names.
    """

    routes: tuple[Route, ...]
    unknown: tuple[tuple[str, LakeMQError], ...] = ()
    source: str = ""

    @property
    def destinations(self) -> tuple[Destination, ...]:
        routed = tuple(Destination(route.destination, route.copies) for route in self.routes)
        return routed + tuple(Destination(name, ()) for name, _ in self.unknown)


def find_routes(state: State, names: Sequence[str], source: str) -> Routes:
    """Find the routes of all names. Unknown names are listed up to MAX_UNKNOWN."""
    routes: list[Route] = []
    unknown: list[tuple[str, LakeMQError]] = []
    for name in names:
        try:
            routes.append(find_route(state, name))
        except (InvalidTopic, UnknownTopicOrPartition) as error:
            if len(unknown) < MAX_UNKNOWN and len(name) <= MAX_LENGTH:
                unknown.append((name, error))
    # a topic that two names reach must stand in the request once: its offsets are given out per entry
    topics: dict[TopicRef, int] = {}
    for route in routes:
        for topic in route.topics:
            topics.setdefault(topic, len(topics))
    return Routes(tuple(_renumber_topics(route, topics) for route in routes), tuple(unknown), source)


def _renumber_topics(route: Route, topics: Mapping[TopicRef, int]) -> Route:
    copies = tuple(copy._replace(topics=tuple(topics[route.topics[i]] for i in copy.topics)) for copy in route.copies)
    return replace(route, topics=tuple(topics), copies=copies)


class SparkPublisher:
    """Publishes DataFrames through the session that made them."""

    def __init__(
        self,
        namespace: Namespace,
        requester: Requester,
        state: Callable[[], State],
        clock: Clock,
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        """state: returns topics, and what else a client sees, as of the newest step."""
        self._ns, self._requester, self.state, self._clock = namespace, requester, state, clock
        self._crash_point = crash_point

    def publish(
        self,
        publication: Publication,
        df: DataFrame,
        columns: Mapping[str, Any],
        order_by: Any,
        gate: Gate | None = None,
    ) -> PublishedRows:
        """Publish all rows, together or not at all. The DataFrame is computed once (again when a topic has changed).

        gate: it passes on the way.
        """
        if df.isStreaming:
            raise InvalidRecord(
                "A streaming DataFrame has no end, so that it cannot be published as a whole.",
                expected="df.writeStream.format('lakemq'), or a publish in foreachBatch",
            )
        now_ms = self._clock.now_ms()
        spark_gate = None if gate is None else SparkGate(gate, df)
        rows = select_message_rows(df if spark_gate is None else spark_gate.df, columns, order_by, spark_gate)

        def routes() -> Routes:
            return Routes((find_route(self.state(), publication.destination),))

        return self._publish_with_current_routes(routes, rows, publication, now_ms, spark_gate)

    def check(self, destination: str, df: DataFrame, columns: Mapping[str, Any]) -> None:
        """Raise what `publish` of such a DataFrame, or of a batch of a stream, raises before it starts."""
        find_route(self.state(), destination)
        select_message_rows(df, columns, None)

    def publish_by_topic(
        self,
        df: DataFrame,
        names: Sequence[str],
        source: str,
        application: ApplicationVersion,
        on_error: OnError = "reject",
        check: Callable[[], None] = lambda: None,
    ) -> PublishedRows:
        """Publish each row to the destination in its column `topic`, all together or none.

        df: topic and the columns of a message; names: the destinations that occur; source: what
        `rejected_rows` names for rows with other names. Rows that no topic receives are rejected. check: called when
        all rows are read and none is published; its error ends the publish.
        """
        now_ms = self._clock.now_ms()
        rows = select_message_rows(df, dict.fromkeys(df.columns), None)

        def routes() -> Routes:
            return find_routes(self.state(), names, source)

        publication = Publication(source, on_error, application)
        return self._publish_with_current_routes(routes, rows, publication, now_ms, check=check)

    def _publish_with_current_routes(
        self,
        routes: Callable[[], Routes],
        rows: DataFrame,
        publication: Publication,
        now_ms: int,
        gate: SparkGate | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> PublishedRows:
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._publish(routes(), rows, publication, now_ms, gate, check)
            except StaleTopicMetadata:
                continue
        return self._publish(routes(), rows, publication, now_ms, gate, check)

    def _publish(
        self,
        routes: Routes,
        rows: DataFrame,
        publication: Publication,
        now_ms: int,
        gate: SparkGate | None,
        check: Callable[[], None],
    ) -> PublishedRows:
        options = dict(self._ns.storage_options)
        write = WriteMessages(self._ns.files.root, options, routes.destinations, now_ms)
        with nullcontext() if gate is None else gate.hide_values_in_errors():
            written = sorted(rows.mapInArrow(write, columns_ddl(RANGES)).collect(), key=lambda row: row.task)
        self._crash_point("publish.file_written")
        check()
        if gate is not None:
            gate.judge(written)
        request = build_files_request(publication, routes, _group_by_file(written))
        if request.rejected and publication.on_error == "fail":
            raise error_of_rejected_rows(request.rejected)
        return self.publish_request(publication, routes, request)

    def publish_request(self, publication: Publication, routes: Routes, request: Produce) -> PublishedRows:
        """Publish the rows of a request, together or not at all. Raises StaleTopicMetadata and others."""
        warnings = describe_bad_times(routes.routes, request.ranges, self._clock.now_ms())
        report_bad_times(publication, warnings)
        return PublishedRows.of(self._ask(request), warnings=warnings)

    def _ask(self, request: Produce) -> Published:
        def ask() -> Published:
            published = self._requester.ask(request)
            assert isinstance(published, Published)
            return published

        if request.application is None:
            return ask()
        # as in ArrowPublisher: other refusals are not conclusive for an attempt without an answer
        patience_ms = (_ATTEMPTS - 1) * self._ns.config.ms("request.timeout.ms")
        return ask_with_retries(ask, self._clock, self._clock.steady_ms() + patience_ms, NEVER_PUBLISHED)


def _group_by_file(written: Sequence[Row]) -> list[Written]:
    """written: rows of RANGES in the order of tasks and of writing."""
    files: list[Written] = []
    for _, group in groupby(written, key=lambda row: row.file_id):
        rows = list(group)
        runs = [RowRun(*(row[name] for name in _RUN_FIELDS)) for row in rows]
        placed = [WrittenRun(row.destination, row.copy, run, row.has_ttl) for row, run in zip(rows, runs, strict=True)]
        files.append((_build_file(rows), placed))
    return files


def build_files_request(publication: Publication, routes: Routes, written: Sequence[Written]) -> Produce:
    """Return the request that publishes what tasks wrote, in this order."""
    files = [file for file, _ in written]
    parts: dict[int, list[tuple[int, int, RowRun]]] = {}
    for index, (_, runs) in enumerate(written):
        for destination, copy, run, _ in runs:
            parts.setdefault(destination, []).append((index, copy, run))
    ranges, rejected = Ranges(), []
    for destination, written_runs in sorted(parts.items()):
        if 0 <= destination < len(routes.routes):
            route = routes.routes[destination]
            placed: list[tuple[int, Copy, Sequence[RowRun]]] = [
                (f, route.copies[c], [run]) for f, c, run in written_runs
            ]
            more, bad = build_produce_ranges(route, placed, publication.expectations)
            for name in Ranges.__struct_fields__:
                getattr(ranges, name).extend(getattr(more, name))
            rejected += bad
        else:
            rejected += _reject_unroutable(routes, destination, written_runs)
    some_route = routes.routes[0] if routes.routes else Route("", (), (), 0)
    has_ttl = any(run.has_ttl for _, runs in written for run in runs)
    return build_produce_request(publication, some_route, ranges, rejected, files, has_ttl)


def _reject_unroutable(
    routes: Routes, destination: int, parts: Sequence[tuple[int, int, RowRun]]
) -> list[RejectedRows]:
    source: str = routes.source
    error: LakeMQError = InvalidTopic("The row has no valid topic name.")
    if destination != ELSEWHERE:
        source, error = routes.unknown[destination - len(routes.routes)]
    reason = str(error).removeprefix(f"{error.name}: ")
    return [RejectedRows(source, f, run.first_row, run.record_count, error.name, reason) for f, _, run in parts]


def _build_file(rows: list[Row]) -> WrittenFile:
    first = rows[0]
    return WrittenFile(
        first.file_id,
        first.size_bytes,
        first.file_rows,
        min(row.min_timestamp_ms for row in rows),
        max(row.max_timestamp_ms for row in rows),
        first.footer_hash,
    )
