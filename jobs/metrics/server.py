"""Serve metrics over HTTP, from a thread of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from lakemq.engine.namespace.extras import needs

with needs("metrics"):
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from ..process.http_listener import HttpLimits, serve_http

from .collector import NamespaceCollector

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.operator_tools import Observer
    from lakemq.engine.sequencer.serving import Serving

log = logging.getLogger("lakemq.metrics")

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
