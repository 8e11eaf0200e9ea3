"""Serve metrics over HTTP, from a thread of this process."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from lakemq.engine.namespace.processes.extras import needs
from lakemq.errors import InvalidConfig

with needs("metrics"):
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from lakemq.jobs.metrics.collector import NamespaceCollector
from lakemq.jobs.process.http_listener import HttpLimits, HttpListener

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.observer import Observer
    from lakemq.engine.sequencer.serving import Serving

log = logging.getLogger("lakemq.metrics")

LIMITS = HttpLimits(connections=16)
"""Each connection has a thread. A scrape takes one for a moment."""


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
        try:
            server = _MetricsServer(HttpListener(host, port, limits.connections), limits.request_s)
        except OSError as error:
            raise InvalidConfig(
                f"Metrics cannot be served: {error.strerror or error}.",
                found=f"{host}:{port}",
                expected="an address of this machine and a port that is free: --metrics-host, --metrics-port",
            ) from None
        server.set_app(make_wsgi_app(metrics.registry))
        thread = threading.Thread(target=server.serve_forever, name="lakemq-metrics", daemon=True)
        thread.start()
        log.info("metrics are at http://%s:%d/metrics", host, server.server_port)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _MetricsHandler(WSGIRequestHandler):
    """Answers one request of a connection."""

    server: _MetricsServer

    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        self.server.note_request(self.connection)
        return is_valid

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape is no news."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers each connection in a thread, and closes those that send no request in time."""

    daemon_threads = True

    def __init__(self, listener: HttpListener, request_s: float) -> None:
        super().__init__(("", 0), _MetricsHandler, bind_and_activate=False)
        self.socket.close()
        self.socket, self._request_s = listener, request_s
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self._deadlines_s: dict[socket.socket, float] = {}
        """Connections without a request -> when they are closed."""

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return self.socket.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError | ConnectionError):
                log.warning("No scrape is accepted for a second: %s", error)
                time.sleep(1)  # the connection still waits, so the next try would follow at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(self._request_s)  # also for a client that does not take its answer
        self._deadlines_s[request] = time.monotonic() + self._request_s
        super().process_request(request, client_address)

    def note_request(self, request: socket.socket) -> None:
        """Let the connection stay until it is answered."""
        self._deadlines_s.pop(request, None)

    def service_actions(self) -> None:
        """Close overdue connections. The server calls this twice a second."""
        for request, deadline_s in list(self._deadlines_s.items()):
            if time.monotonic() >= deadline_s:
                self.note_request(request)
                with suppress(OSError):  # its thread, which waits for data, closes it
                    request.shutdown(socket.SHUT_RDWR)

    def close_request(self, request: Any) -> None:
        self.note_request(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("A connection for metrics from %s has failed", client_address, exc_info=True)
