"""Serve metrics over HTTP, from a thread of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from lakemq.engine.namespace.processes.extras import needs
from lakemq.errors import InvalidConfig

with needs("metrics"):
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from lakemq.jobs.metrics.collector import NamespaceCollector

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.observer import Observer
    from lakemq.engine.sequencer.serving import Serving

log = logging.getLogger("lakemq.metrics")


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
def serve_metrics(mq: Connection, host: str, port: int, serving: Serving | None = None) -> Iterator[int]:
    """Answer scrapes at http://host:port/metrics inside the block, and yield the port.

    Args:
        mq: the connection to read with.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        serving: the sequencer of this process, if it runs one.

    Raises:
        InvalidConfig: the address cannot be listened on.
        MissingExtra: the extra `metrics` is not installed.
    """
    with open_registry(mq, serving) as metrics:
        try:
            server, thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            raise InvalidConfig(
                f"Metrics cannot be served: {error.strerror or error}.",
                found=f"{host}:{port}",
                expected="an address of this machine and a port that is free: --metrics-host, --metrics-port",
            ) from None
        log.info("metrics are at http://%s:%d/metrics", host, server.server_port)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
