"""Spans of publishes, fetches, polls and commits, if the application has set a tracer.

Nothing of OpenTelemetry is imported here. If no other code has imported it, no tracer can be set, and a call costs one
look into `sys.modules`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

API = "opentelemetry.trace"
"""Module of OpenTelemetry's API. An application that traces has imported it."""

P = ParamSpec("P")
R = TypeVar("R")

_tracers: dict[int, tuple[Any, Any]] = {}
"""Id of the tracer provider -> it and our tracer. An application sets one provider, and tests some."""

_MAX_PROVIDERS = 8


class Counted(Protocol):
    """A batch that knows how many messages it has."""

    @property
    def record_count(self) -> int: ...


BatchType = TypeVar("BatchType", bound=Counted)


def find_tracer() -> Any:
    """Return our tracer of the provider that the application has set; None if there is none."""
    api = sys.modules.get(API)
    find_provider = getattr(api, "get_tracer_provider", None)  # another thread may be importing the module
    if api is None or find_provider is None:
        return None
    provider = find_provider()
    if isinstance(provider, api.ProxyTracerProvider):  # the application imports the API, but sets no tracer
        return None
    cached = _tracers.get(id(provider))
    if cached is None or cached[0] is not provider:
        if len(_tracers) >= _MAX_PROVIDERS:
            _tracers.clear()
        cached = _tracers[id(provider)] = provider, provider.get_tracer("lakemq")
    return cached[1]


def build_attributes(operation: str, type: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes by OpenTelemetry's conventions for messaging. named: others, without `messaging.`."""
    return {
        "messaging.system": "lakemq",
        "messaging.operation.name": operation,
        "messaging.operation.type": type,
        **{f"messaging.{name}": value for name, value in named.items() if value is not None},
    }


@contextmanager
def open_span(
    operation: str,
    type: str,
    subject: str,
    named: Mapping[str, Any],
    kind: str = "CLIENT",
    find_links: Callable[[], Sequence[Any]] = tuple,
) -> Iterator[Any]:
    """Run a block in a span of its own, and yield the span; None if the application has set no tracer.

    Args:
        operation: what is done, such as publish.
        type: send, receive or settle.
        subject: the destination, the group or the transactional id, for the span's name.
        named: further attributes, without `messaging.`.
        kind: the name of OpenTelemetry's kind of span.
        find_links: returns the spans that the block continues. It is called only if there is a tracer.
    """
    tracer = find_tracer()
    if tracer is None:
        yield None
        return
    attributes = build_attributes(operation, type, named)
    kinds = sys.modules[API].SpanKind
    with tracer.start_as_current_span(
        f"{operation} {subject}", kind=kinds[kind], attributes=attributes, links=find_links()
    ) as span:
        yield span


def traces_commit(commit: Callable[P, R]) -> Callable[P, R]:
    """Decorate a consumer's method that commits, so that each call has a span."""

    @wraps(commit)
    def commit_in_span(*args: P.args, **kwargs: P.kwargs) -> R:
        if API not in sys.modules:
            return commit(*args, **kwargs)
        consumer: Any = args[0]
        with open_commit_span(consumer.group):
            return commit(*args, **kwargs)

    return commit_in_span


def open_commit_span(group: str) -> AbstractContextManager[Any]:
    """Run a block that commits for a group in a span of its own."""
    return open_span("commit", "settle", group, {"consumer.group.name": group})


def trace_poll(group: str, poll: Callable[[], BatchType]) -> BatchType:
    """Poll, and record a span if messages came. Empty polls are many, and say nothing."""
    tracer = find_tracer()
    if tracer is None:
        return poll()
    start_ns = time.time_ns()
    batch = poll()
    if count := batch.record_count:
        named = {"consumer.group.name": group, "batch.message_count": count}
        attributes = build_attributes("poll", "receive", named)
        kind = sys.modules[API].SpanKind.CONSUMER
        tracer.start_span(f"poll {group}", kind=kind, attributes=attributes, start_time=start_ns).end()
    return batch
