"""Publishing rows that are at hand in Arrow: they ride in the request when they are few, else in a file of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemq.tables.files import Files

from . import crash
from .clock import Clock
from .arrange import Arranged, arrange
from .compose import Sequences, produce_request, ranges_of, refuse_all
from .datafile import WrittenFile, write_data_file
from .protocol.errors import RequestTimedOut, StaleTopicMetadata
from .protocol.requests import AnyResult, ApplicationVersion, Published
from .protocol.state import State
from .requester import Requester
from .routing import Route, find_route

OnError = Literal["dead_letter", "fail"]

_STALE_RETRIES = 20


class ArrowPublisher:
    """Publishes bodies, one after the other. Not thread-safe; several may share a requester.

    metadata: topics as of now; it is asked again when the sequencer says that ours are stale.
    """

    def __init__(
        self,
        files: Files,
        requester: Requester,
        metadata: Callable[[], State],
        clock: Clock,
        new_id: Callable[[], str],
        inline_max_bytes: int,
        reached: crash.Reached = crash.nowhere,
    ) -> None:
        self._files, self._requester, self._metadata = files, requester, metadata
        self._clock, self._new_id, self._inline_max_bytes = clock, new_id, inline_max_bytes
        self._reached = reached
        self._keyless = 0
        self._routes: dict[str, Route] = {}

    def publish(
        self,
        destination: str,
        body: pa.Table,
        asked: npt.NDArray[np.int64] | None = None,
        on_error: OnError = "dead_letter",
        sequences: Sequences | None = None,
        application: ApplicationVersion | None = None,
        timeout_ms: int = 120_000,
    ) -> Published:
        """Publish a body; with `sequences`, a lost answer is asked for again and nothing is published twice.

        Raises what the request was refused with; RequestTimedOut when its outcome is unknown.
        """
        deadline_ms = self._clock.steady_ms() + timeout_ms
        for attempt in range(_STALE_RETRIES):
            route = self._route(destination)
            arranged = arrange(route.copies, body, asked, self._keyless)
            try:
                result = self._send(route, arranged, on_error, sequences, application, deadline_ms)
            except StaleTopicMetadata:
                self._routes.clear()
                if attempt == _STALE_RETRIES - 1:
                    raise
                continue
            self._keyless += body.num_rows
            return result
        raise AssertionError("unreachable")

    def _route(self, destination: str) -> Route:
        if destination not in self._routes:
            self._routes[destination] = find_route(self._metadata(), destination)
        return self._routes[destination]

    def _send(
        self,
        route: Route,
        arranged: Arranged,
        on_error: OnError,
        sequences: Sequences | None,
        application: ApplicationVersion | None,
        deadline_ms: int,
    ) -> Published:
        inline = arranged.rows.nbytes <= self._inline_max_bytes
        parts = [(-1 if inline else 0, copy, runs) for copy, runs in arranged.runs]
        ranges, refused = ranges_of(route, parts)
        if refused and on_error == "fail":
            raise refuse_all(refused)
        producer = sequences.of(route, ranges) if sequences else None
        written: list[WrittenFile] = []
        if not inline:
            written = [write_data_file(self._files, self._new_id(), arranged.rows)]
            self._reached("publish.file_written")
        request = produce_request(route, ranges, refused, written, producer, application)
        while True:
            future = self._requester.submit(request, arranged.rows if inline else None)
            try:
                result = published(future)
            except RequestTimedOut:
                repeatable = sequences is not None or application is not None
                if repeatable and self._clock.steady_ms() < deadline_ms:
                    continue
                raise
            if sequences is not None:
                sequences.advance(route, ranges)
            return result


def published(future: Future[AnyResult]) -> Published:
    """The result of a produce request, whose error is raised."""
    result = future.result()
    assert isinstance(result, Published)
    return result
