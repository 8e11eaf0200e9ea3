"""Spans of calls and trace context in headers, by the in-memory exporter of the SDK; and nothing without a tracer."""

import subprocess
import sys
import threading
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from unit.served import new_topic

from lakemq.engine.client import tracing
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.worker import WorkerReport
from lakemq.engine.client.fetch.fetch_result import Message
from lakemq.engine.client.tracing import add_trace_to_record, add_trace_to_table
from lakemq.errors import LakeMQError
from lakemq.tables.specs.messages import HEADERS

pytestmark = pytest.mark.slow

OTHER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """A tracer that the application has set. It is taken back after the test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def spans_named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {key.removeprefix("messaging."): value for key, value in (span.attributes or {}).items()}


def trace_of(message: Any) -> tuple[int, int]:
    """Return trace id and span id that a message carries, as a consumer extracts them."""
    carrier = {name: value.decode() for name, value in message.headers}
    context = trace.get_current_span(extract(carrier)).get_span_context()
    return context.trace_id, context.span_id


def start_span() -> Any:
    return trace.get_tracer("test").start_as_current_span("request")


def test_publish_has_a_span_that_its_messages_name(mq: Connection, topic: str, exporter: InMemorySpanExporter) -> None:
    headers = pa.array([None, [("a", b"1")], [("traceparent", OTHER)]], HEADERS)
    with start_span() as request:
        mq.publish(topic, pa.table({"value": ["x", "y", "z"], "headers": headers}))
        mq.publish(topic, pa.table({"value": ["v"] * 3000}))
    small, large = spans_named(exporter, f"publish {topic}")
    assert attributes(small) == {
        "system": "lakemq",
        "operation.name": "publish",
        "operation.type": "send",
        "destination.name": topic,
        "batch.message_count": 3,
    }
    assert small.kind is SpanKind.PRODUCER
    assert small.parent is not None
    assert small.parent.span_id == request.get_span_context().span_id
    messages = list(mq.fetch(topic))
    own = small.context.trace_id, small.context.span_id
    assert [trace_of(message) for message in messages[:2]] == [own, own]
    assert sum(len(name) + len(value or b"") for name, value in messages[0].headers) == 66, "docs/tracing.md says so"
    assert messages[1].headers[0] == ("a", b"1")
    assert messages[2].headers == (("traceparent", OTHER),)
    assert {trace_of(message)[1] for message in messages[3:]} == {large.context.span_id}


def test_records_name_the_span_in_which_they_were_sent(mq: Connection, exporter: InMemorySpanExporter) -> None:
    topic = new_topic(mq)
    with mq.producer(linger_ms=500) as producer:
        with start_span() as first:
            producer.send(topic, "a", headers={"own": b"1"})
            producer.send(topic, "b", headers=[("traceparent", OTHER)])
            producer.send_arrow(topic, pa.table({"value": ["d"]}))
        producer.send(topic, "c")
        producer.flush()
    by_value = {message.value: message for message in mq.fetch(topic)}
    assert trace_of(by_value[b"a"])[1] == trace_of(by_value[b"d"])[1] == first.get_span_context().span_id
    assert by_value[b"a"].headers[0] == ("own", b"1")
    assert by_value[b"b"].headers == (("traceparent", OTHER),)
    assert by_value[b"c"].headers == ()
    linked = [{link.context.span_id for link in span.links} for span in spans_named(exporter, f"publish {topic}")]
    span_id = first.get_span_context().span_id
    assert linked[0] == {span_id, int(OTHER.split(b"-")[2], 16)}
    assert linked[1] == {span_id}


def test_polls_fetches_and_commits_have_spans(mq: Connection, topic: str, exporter: InMemorySpanExporter) -> None:
    mq.publish(topic, pa.table({"value": ["x", "y"]}))
    for protocol in ("cooperative", "queue"):
        group = f"{topic}-{protocol}"
        with mq.consumer(group, topics=[topic], protocol=protocol) as consumer:
            batch = consumer.poll(timeout_ms=20_000)
            assert len(list(batch)) == 2
            consumer.commit(batch)
            assert not consumer.poll()
        (poll,) = spans_named(exporter, f"poll {group}")
        assert poll.kind is SpanKind.CONSUMER
        assert attributes(poll)["consumer.group.name"] == group
        assert attributes(poll)["batch.message_count"] == 2
        assert poll.end_time > poll.start_time  # type: ignore[operator]
        (commit,) = spans_named(exporter, f"commit {group}")
        assert attributes(commit)["operation.type"] == "settle"
    with mq.consumer(f"{topic}-assigned", assign=[topic]) as assigned:
        assigned.commit(assigned.poll(timeout_ms=20_000))
    assert len(spans_named(exporter, f"commit {topic}-assigned")) == 1
    assert attributes(spans_named(exporter, f"fetch {topic}")[0])["batch.message_count"] == 2


@pytest.mark.extended
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_each_handler_runs_in_a_span_that_links_to_the_publishing_one(
    mq: Connection, exporter: InMemorySpanExporter, is_coroutine: bool
) -> None:
    topic, current, stop = new_topic(mq), list[int](), threading.Event()
    mq.publish(topic, pa.table({"value": ["a book"]}))

    def handle(message: Message) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        if message.delivery_count == 1:
            raise ValueError("no book")
        stop.set()

    async def handle_later(message: Message) -> None:
        handle(message)

    handler = handle_later if is_coroutine else handle
    assert mq.run_worker(handler, [topic], group=topic, stop=stop, backoff_ms=[0]) == WorkerReport(1, 1, 0)
    (published,) = spans_named(exporter, f"publish {topic}")
    failed, done = spans_named(exporter, f"process {topic}")
    assert current == [span.context.span_id for span in (failed, done)]
    for span in failed, done:
        assert [link.context.span_id for link in span.links] == [published.context.span_id]
        assert span.kind is SpanKind.CONSUMER
        assert attributes(span) == {
            "system": "lakemq",
            "operation.name": "process",
            "operation.type": "process",
            "consumer.group.name": topic,
            "destination.name": topic,
        }
    assert (failed.status.description, done.status.status_code) == ("ValueError: no book", StatusCode.UNSET)


def test_idle_group_has_no_spans(mq: Connection, topic: str, exporter: InMemorySpanExporter) -> None:
    for protocol in ("cooperative", "queue"):
        with mq.consumer(f"{topic}-{protocol}", topics=[topic], protocol=protocol) as consumer:
            while not (batch := consumer.poll(timeout_ms=100)).offsets and not consumer.assignment():
                pass
            assert list(batch) == []
            assert batch.to_arrow().num_rows == 0
            if protocol == "queue":
                consumer.flush()
    assert exporter.get_finished_spans() == ()


def test_flush_has_a_span_if_there_are_acknowledgements(mq: Connection, exporter: InMemorySpanExporter) -> None:
    topic = new_topic(mq)
    mq.publish(topic, pa.table({"value": ["x"]}))
    with mq.consumer(topic, topics=[topic], protocol="queue") as consumer:
        consumer.ack(*consumer.poll(timeout_ms=20_000))
        consumer.flush()
        consumer.flush()
    (commit,) = spans_named(exporter, f"commit {topic}")
    assert attributes(commit)["operation.type"] == "settle"


def test_commit_of_a_transaction_has_a_span(mq: Connection, topic: str, exporter: InMemorySpanExporter) -> None:
    with mq.transaction("traced") as transaction:
        transaction.publish(topic, pa.table({"value": ["x"]}))
    with mq.producer("traced-producer") as producer:
        producer.begin_transaction()
        with start_span():
            producer.send(topic, "y")
        producer.commit_transaction()
    for name in ("traced", "traced-producer"):
        (span,) = spans_named(exporter, f"commit {name}")
        assert attributes(span)["lakemq.transactional_id"] == name
    assert len(list(mq.fetch(topic))[1].headers) == 1


def test_failed_call_has_its_error_in_the_span(mq: Connection, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(LakeMQError):
        mq.publish("nobody", pa.table({"value": ["x"]}))
    (span,) = spans_named(exporter, "publish nobody")
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].name == "exception"


def test_messages_get_no_headers_without_a_tracer(mq: Connection) -> None:
    assert "opentelemetry.trace" in sys.modules
    assert tracing.find_tracer() is None
    topic = new_topic(mq)
    mq.publish(topic, pa.table({"value": ["x"]}))
    with mq.producer() as producer:
        producer.send(topic, "y")
    assert [message.headers for message in mq.fetch(topic)] == [(), ()]


names = st.sampled_from(["a", "traceparent", ""])
header_lists = st.lists(
    st.none() | st.lists(st.tuples(names, st.none() | st.binary(max_size=2)), max_size=3), min_size=1
)


@examples()
@given(header_lists, st.integers(0, 2))
def test_trace_headers_of_columns_equal_those_of_records(listed: list[Any], cut: int) -> None:
    whole = pa.chunked_array([pa.array(listed[:cut], HEADERS), pa.array(listed[cut:], HEADERS)])
    table = pa.table({"value": ["x"] * len(listed), "headers": whole})
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(7, 8, False))):
        made = add_trace_to_table(table).column("headers").to_pylist()
        expected = [add_trace_to_record(headers) for headers in listed]
    assert [[(h["key"], h["value"]) for h in headers] for headers in made] == expected


@pytest.mark.extended
def test_process_that_does_not_trace_imports_no_opentelemetry() -> None:
    code = """
import sys, tempfile, time, lakemq, pyarrow as pa
mq = lakemq.connect(tempfile.mkdtemp() + "/mq", create=True)
with mq, mq.serving():
    mq.topics.create("t")
    mq.publish("t", pa.table({"value": ["x"]}))
    with mq.producer() as producer:
        producer.send("t", "y")
    with mq.consumer("g", topics=["t"], protocol="cooperative") as consumer:
        consumer.commit(consumer.poll(timeout_ms=20_000))
    assert len(list(mq.fetch("t"))) == 2
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
