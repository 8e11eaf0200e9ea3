"""Traces: spans of calls, and the current span's context in headers of messages. OpenTelemetry is optional.

The headers are those of W3C Trace Context: `traceparent` and `tracestate`.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import HEADERS

# Spans of publishes, fetches, polls and commits, if the application has set a tracer.
#
# Nothing of OpenTelemetry is imported here. If no other code has imported it, no tracer can be set, and a call costs
# one look into `sys.modules`.


API = "opentelemetry.trace"
"""Module of OpenTelemetry's API. An application that traces has imported it."""

P = ParamSpec("P")
R = TypeVar("R")

_tracers: dict[int, tuple[Any, Any]] = {}
"""Id of the tracer provider -> it and our tracer. An application sets one provider, and tests some."""

_MAX_PROVIDERS = 8


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


def trace_poll(group: str, poll: Callable[[], Any]) -> Any:
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


# The current span's context in headers of messages.


TRACEPARENT = "traceparent"

Header = tuple[str, bytes | None]

_newest: tuple[Any, list[Header]] = (None, [])
"""Context of a span, and its headers: many records are sent in the same span. Threads replace it as a whole."""

_MAX_LINKS = 32
"""Most records of a batch whose spans the batch's span names."""


def find_trace_headers() -> list[Header]:
    """Return the headers of the current span; an empty list if none is current."""
    global _newest
    api = sys.modules.get(API)
    find_span = getattr(api, "get_current_span", None)
    if find_span is None:
        return []
    context = find_span().get_span_context()
    before, headers = _newest
    if context is before:
        return headers
    if not context.is_valid:
        return []
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    headers = [(name, value.encode()) for name, value in carrier.items()]
    _newest = context, headers
    return headers


def add_trace_to_record(headers: Any) -> Any:
    """Return a record's headers with those of the current span, unless the caller has set them.

    Headers of a wrong type are returned as they are: the producer refuses them.
    """
    if not (trace := find_trace_headers()):
        return headers
    if headers is None:
        return trace
    if isinstance(headers, Mapping):
        return headers if TRACEPARENT in headers else [*headers.items(), *trace]
    if not isinstance(headers, list | tuple):
        return headers
    has_trace = any(isinstance(pair, tuple) and pair and pair[0] == TRACEPARENT for pair in headers)
    return headers if has_trace else [*headers, *trace]


def add_trace_to_table(table: pa.Table) -> pa.Table:
    """Return rows with the headers of the current span. Rows that have a traceparent keep theirs."""
    trace = find_trace_headers()
    if not trace or not table.num_rows:
        return table
    has_headers = "headers" in table.column_names
    column = table.column("headers") if has_headers else pa.chunked_array([pa.nulls(table.num_rows, HEADERS)])
    try:
        lists = column.cast(HEADERS).combine_chunks()
    except pa.ArrowException:  # a wrong type is refused where columns are checked
        return table
    extended = _append_to_lists(lists, trace)
    if not has_headers:
        return table.append_column("headers", extended)
    return table.set_column(table.column_names.index("headers"), "headers", extended)


def _append_to_lists(lists: pa.ListArray, trace: Sequence[Header]) -> pa.ListArray:
    """Append headers to the list of each row without a traceparent, as columns."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    flat, rows = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
    added = np.full(len(lists), len(trace), np.int64)
    added[rows[pc.equal(pc.struct_field(flat, "key"), TRACEPARENT).fill_null(False).to_numpy(zero_copy_only=False)]] = 0
    ends = np.cumsum(lengths + added)
    # A row's own headers keep their order, moved by the headers added to the rows before it. The new ones follow them.
    order = np.empty(int(ends[-1]), np.int64)
    order[np.arange(len(flat)) + (np.cumsum(added) - added)[rows]] = np.arange(len(flat))
    extended = np.flatnonzero(added)
    for index in range(len(trace)):
        order[ends[extended] - len(trace) + index] = len(flat) + index
    values = pa.concat_arrays([flat, pa.array(list(trace), HEADERS.value_type)]).take(pa.array(order))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    is_null = pc.and_(pc.is_null(lists), pa.array(added == 0))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=HEADERS, mask=is_null)


def find_links(headers: Sequence[list[Header] | None] | pa.ChunkedArray | None) -> list[Any]:
    """Return links to the spans that the headers of a batch name."""
    if headers is None or API not in sys.modules:
        return []
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator = TraceContextTextMapPropagator()
    contexts = (propagator.extract({TRACEPARENT: text}) for text in sorted(_list_traceparents(headers))[:_MAX_LINKS])
    spans = (get_current_span(context).get_span_context() for context in contexts)
    return [Link(span) for span in spans if span.is_valid]


def _list_traceparents(headers: Sequence[list[Header] | None] | pa.ChunkedArray) -> set[str]:
    if isinstance(headers, pa.ChunkedArray):
        flat = pc.list_flatten(headers)
        values = pc.unique(pc.struct_field(flat, "value").filter(pc.equal(pc.struct_field(flat, "key"), TRACEPARENT)))
        carried = values.to_pylist()
    else:
        carried = [value for listed in headers for name, value in listed or () if name == TRACEPARENT]
    return {value.decode("ascii", "replace") for value in carried if value is not None}
