"""Serve a console from a thread of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakemq.engine.namespace.extras import needs

with needs("console"):
    from lakemq.jobs.process.http_listener import HttpLimits, serve_http

from lakemq.jobs.console.app import build_app
from lakemq.jobs.console.console import QUERY_LIMITS, Console, ConsoleSettings
from lakemq.jobs.metrics.server import open_registry

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.sql.query import QueryLimits
    from lakemq.engine.sequencer.serving import Serving
    from lakemq.jobs.doctor.namespace import Finding

log = logging.getLogger("lakemq.console")

LIMITS = HttpLimits(connections=64)
"""A browser opens six connections, and keeps them for five seconds."""
_OPTIONS = "--host and --port, with `lakemq serve` --console-host and --console-port"


@contextmanager
def serve_console(
    mq: Connection,
    settings: ConsoleSettings,
    examine: Callable[[], Sequence[Finding]],
    serving: Serving | None = None,
    limits: HttpLimits = LIMITS,
    query_limits: QueryLimits = QUERY_LIMITS,
) -> Iterator[str]:
    """Answer browsers inside the block, and yield the console's address.

    Args:
        mq: the connection to read with.
        settings: where to listen, and what to allow.
        examine: runs the doctor's checks.
        serving: the sequencer of this process, if it runs one.
        limits: what clients may take.
        query_limits: bounds of a query.

    Raises:
        InvalidConfig: the address cannot be listened on.
        MissingExtra: the extra `console` is not installed.
    """
    with (
        open_console(mq, settings, examine, serving, query_limits) as app,
        serve_http(app, "console", settings.host, settings.port, limits, _OPTIONS) as (host, port),
    ):
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        log.info("the console is at %s", address)
        yield address


@contextmanager
def open_console(
    mq: Connection,
    settings: ConsoleSettings,
    examine: Callable[[], Sequence[Finding]],
    serving: Serving | None = None,
    query_limits: QueryLimits = QUERY_LIMITS,
) -> Iterator[Callable[..., object]]:
    """Yield the ASGI application of a console; see `serve_console`."""
    with open_registry(mq, serving) as (registry, collector, observer):
        yield build_app(Console(mq, observer, collector, settings, examine, query_limits), registry)
