"""The span of a producer's batch. It is sent by the producer's thread, so no span of the application is current."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..publish.arrow import Body
from ..tracing.headers import find_links
from ..tracing.spans import find_tracer, open_span


@contextmanager
def trace_batch(destination: str, body: Body) -> Iterator[None]:
    """Run a block in a span with links to the spans in which records of the batch were sent."""
    if find_tracer() is None:
        yield
        return
    links = find_links(body.headers)
    named = {"destination.name": destination, "batch.message_count": body.num_rows}
    with open_span("publish", "send", destination, named, "PRODUCER", links):
        yield
