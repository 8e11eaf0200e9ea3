"""Metrics: their collector, and the page that Prometheus reads.

Serve metrics over HTTP, from a thread of this process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lakemq.engine.client.delayed_rows import UnreleasedCounter
from lakemq.engine.namespace.extras import needs
from lakemq.jobs.metrics import readers
from lakemq.jobs.metrics.readers import FamilyBuilder

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.operator_tools import Observer
    from lakemq.engine.sequencer.serving import Serving

log = logging.getLogger("lakemq.metrics")


# The collector: reads all metrics of a namespace at scrape time, within bounds.
#
# A scrape must stay cheap and short, however large the namespace is:
#
# - Scrapes within a second share one result.
# - What reads tables or data files (sizes, dead letters, due times) runs in a thread of its own, rarely. A scrape waits
#   shortly for it and otherwise shows the last result.
# - A part that fails does not hide the others. `lakemq_scrape_failed` says which one.


with needs("metrics"):
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector


CACHE_S = 1.0
"""Scrapes within this time share a result: two Prometheus servers cost no more than one."""

SLOW_EVERY_S = 15.0
"""Prometheus scrapes every 15 s or less often: a slow part is then new with each scrape."""

SLOW_SHARE = 0.05
"""The largest share of a thread's time that a slow part may take."""

SLOW_WAIT_S = 2.0
"""How long a scrape waits for a slow part. Prometheus gives up a scrape after 10 s by default."""

_FAST_PARTS = {
    "sequencer": readers.read_sequencer,
    "waiting": readers.read_waiting,
    "store": readers.read_store,
    "topics": readers.read_topics,
    "groups": readers.read_groups,
    "transactions": readers.read_transactions,
    "delayed": readers.read_delayed,
}


@dataclass
class _SlowPart:
    """A part that is read rarely, and what it yielded last."""

    read: Callable[[FamilyBuilder], Iterable[Metric]]
    next_at_s: float = 0.0
    running: Future[None] | None = None
    families: list[Metric] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    has_failed: bool = False


class NamespaceCollector(Collector):
    """Yields the metrics of a namespace to a registry of prometheus_client. Thread-safe. Close it."""

    def __init__(self, mq: Connection, observer: Observer, serving: Serving | None = None) -> None:
        """serving: the sequencer of this process, if it runs one."""
        self._mq, self._observer, self._serving = mq, observer, serving
        self._lock = threading.Lock()
        self._families: list[Metric] = []
        self._collected_at_s: float | None = None
        self._executor = ThreadPoolExecutor(1, "lakemq-metrics")
        counter = UnreleasedCounter(mq.namespace.files, observer.query)
        self._slow_parts = {
            "due": _SlowPart(lambda build: readers.read_due(counter, mq, build)),
            "dead letters": _SlowPart(lambda build: readers.read_dead_letters(observer, build)),
            "rejected rows": _SlowPart(lambda build: readers.count_rejected_rows(mq, build)),
            "sizes": _SlowPart(lambda build: readers.read_sizes(mq, observer, build)),
        }

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise a registry would scrape when it gets this collector."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return all metrics as of now, or of a scrape within the last second."""
        with self._lock:
            now_s = time.monotonic()
            if self._collected_at_s is None or now_s - self._collected_at_s > CACHE_S:
                self._families = list(self._read_all())
                self._collected_at_s = time.monotonic()
            return self._families

    def close(self) -> None:
        """End the thread of the slow parts. A part that runs is waited for."""
        self._executor.shutdown(cancel_futures=True)

    # -- reading ----------------------------------------------------------------------------------------

    def _read_all(self) -> Iterator[Metric]:
        started_s, build, failed = time.monotonic(), FamilyBuilder(), dict[str, bool]()
        self._start_slow_parts(started_s)
        yield from self._read_fast_parts(build, failed)
        if self._serving is not None:
            yield from readers.read_serving(self._mq, self._serving, build)
        running = [part.running for part in self._slow_parts.values() if part.running is not None]
        wait_for(running, max(0.0, started_s + SLOW_WAIT_S - time.monotonic()))
        dropped = dict(build.dropped)
        for name, part in self._slow_parts.items():
            yield from part.families
            dropped |= part.dropped
            failed[name] = part.has_failed
        meta = FamilyBuilder()
        yield meta.make("lakemq_scrape_failed", (((part,), has_failed) for part, has_failed in failed.items()))
        yield meta.make("lakemq_scrape_dropped_series", (((metric,), count) for metric, count in dropped.items()))
        yield meta.make("lakemq_scrape_duration_seconds", time.monotonic() - started_s)

    def _read_fast_parts(self, build: FamilyBuilder, failed: dict[str, bool]) -> list[Metric]:
        families: list[Metric] = []
        try:
            with self._observer.look() as observation:
                for name, read in _FAST_PARTS.items():
                    try:
                        families += read(self._mq, observation, build)
                        failed[name] = False
                    except Exception as error:  # one part must not hide the others
                        _log_failure(name, error)
                        failed[name] = True
        except Exception as error:
            _log_failure("state", error)
            failed.update(dict.fromkeys(_FAST_PARTS, True))
        return families

    def _start_slow_parts(self, now_s: float) -> None:
        for name, part in self._slow_parts.items():
            if now_s >= part.next_at_s and (part.running is None or part.running.done()):
                part.running = self._executor.submit(self._read_slow_part, name, part)

    def _read_slow_part(self, name: str, part: _SlowPart) -> None:
        started_s, build = time.monotonic(), FamilyBuilder()
        try:
            part.families, part.has_failed = list(part.read(build)), False
            part.dropped = build.dropped
        except Exception as error:  # read again next time
            _log_failure(name, error)
            part.families, part.has_failed = [], True
        took_s = time.monotonic() - started_s
        part.next_at_s = started_s + max(SLOW_EVERY_S - 1, took_s / SLOW_SHARE)


def _log_failure(part: str, error: Exception) -> None:
    log.warning("The part %r of the metrics cannot be read: %s: %s", part, type(error).__name__, error)


with needs("metrics"):
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from lakemq.jobs.process.http_listener import HttpLimits, serve_http


LIMITS = HttpLimits(connections=16)
"""A scrape takes one for a moment."""


class OpenRegistry(NamedTuple):
    """A registry of metrics, and what its metrics of the namespace are read with."""

    registry: CollectorRegistry
    collector: NamespaceCollector
    observer: Observer


@contextmanager
def open_registry(mq: Connection, serving: Serving | None = None) -> Iterator[OpenRegistry]:
    """Yield a registry with the metrics of the namespace and of this process.

    Args:
        mq: the connection to read with.
        serving: the sequencer of this process, if it runs one.
    """
    registry = CollectorRegistry(auto_describe=False)
    observer = mq.observer()
    collector = NamespaceCollector(mq, observer, serving)
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        yield OpenRegistry(registry, collector, observer)
    finally:
        collector.close()


@contextmanager
def serve_metrics(
    mq: Connection, host: str, port: int, serving: Serving | None = None, limits: HttpLimits = LIMITS
) -> Iterator[int]:
    """Answer scrapes at http://host:port/metrics inside the block, and yield the port.

    Args:
        mq: the connection to read with.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        serving: the sequencer of this process, if it runs one.
        limits: what clients may take.

    Raises:
        InvalidConfig: the address cannot be listened on.
        MissingExtra: the extra `metrics` is not installed.
    """
    with open_registry(mq, serving) as metrics:
        answer = make_endpoint(metrics.registry)
        app = Starlette(routes=[Route("/{path:path}", answer)], middleware=[Middleware(GZipMiddleware)])
        with serve_http(app, "metrics", host, port, limits, "--metrics-host, --metrics-port") as (_, served_port):
            log.info("metrics are at http://%s:%d/metrics", host, served_port)
            yield served_port


def make_endpoint(registry: CollectorRegistry) -> Callable[[Request], Response]:
    """Return what answers a scrape, in the text that the scraper asks for."""

    def answer(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(registry), headers={"Content-Type": content_type})

    return answer
