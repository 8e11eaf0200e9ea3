"""`lakemq bench`: measure how fast one client publishes and consumes."""

from __future__ import annotations

import random
import secrets
import string
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.shared.context import NEEDS_SEQUENCER, ensure_sequencer, get_session
from lakemq.jobs.output import note, show

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.consume.batch import ConsumerBatch
    from lakemq.engine.client.producer.producer import Producer


bench = typer.Typer(no_args_is_help=True, help="Measure how fast one client publishes and consumes.")

_THROUGHPUT = ("messages", "seconds", "messages_per_s", "mb_per_s")
_LATENCIES = ("avg_ms", "p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")
_PRODUCED = (*_THROUGHPUT, *(f"latency_{point}" for point in _LATENCIES))
_CONSUMED = (*_THROUGHPUT, "join_ms", "poll_avg_ms", "poll_p50_ms", "poll_p99_ms", "poll_max_ms")
_DELIVERED = ("delivery_avg_ms", "delivery_p50_ms", "delivery_p99_ms", "delivery_max_ms")

_MB = "MB: 1,048,576 bytes of keys and values, as in Kafka's tools. Every five seconds a line on stderr shows the rate."


def add_to(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@bench.command(
    help="Publish random messages, and show rate and latency. The latency of a message is the time from `send` to its "
    f"acknowledgement. {_MB} {NEEDS_SEQUENCER} A sequencer of its own process measures more truly."
)
def produce(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.")],
    messages: Annotated[int, typer.Option(min=1, metavar="N", help="Number of messages.")] = 100_000,
    size: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Size of each value.")] = 100,
    payload_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Send the lines of this file, again and again, instead of random values."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="At most N messages per second. Default: no limit.")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, metavar="N", help="Send N messages first that do not count.")] = 0,
    keys: Annotated[int, typer.Option(min=0, metavar="N", help="Number of different keys; 0: no keys.")] = 0,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the producer, such as linger_ms=0; repeatable."),
    ] = None,
) -> None:
    from lakemq.engine.client.topics import parse_config

    session = get_session(ctx)
    payloads = make_payloads(size) if payload_file is None else _read_payloads(payload_file)
    options = {name: int(text) if text.isdigit() else text for name, text in parse_config(config or []).items()}
    load = ProducerLoad(messages, payloads, rate, warmup, keys, options)
    with session.connect() as mq:
        mq.topics.describe(topic)
        with ensure_sequencer(mq):
            result = publish_load(mq, topic, load, note)
    show([{"topic": topic, **result}], session.output, _PRODUCED)


@bench.command(
    help="Consume messages as a member of a group, and show the rate. join_ms: until the first message. poll: how long "
    "a poll with messages took. delivery (with --from latest): from a message's timestamp to the poll that returned "
    f"it. {_MB} {NEEDS_SEQUENCER}"
)
def consume(
    ctx: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.")],
    messages: Annotated[int, typer.Option(min=1, metavar="N", help="End after N messages.")] = 100_000,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="The group. Default: a new one, which is deleted afterwards.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(metavar="queue|cooperative|classic", help="Protocol of a new group.")
    ] = "cooperative",
    begin: Annotated[
        str, typer.Option("--from", metavar="earliest|latest", help="Where a new group starts.")
    ] = "earliest",
    timeout_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="End after this time without a message.")
    ] = 10_000,
) -> None:

    session, name = get_session(ctx), group or f"bench-{secrets.token_hex(4)}"
    load = ConsumerLoad(messages, name, protocol, begin, timeout_ms)
    with session.connect() as mq, ensure_sequencer(mq), deleted_afterwards(mq, name, group is None):
        result: dict[str, Any] = consume_load(mq, topics, load, note)
    columns = (*_CONSUMED, *(_DELIVERED if begin == "latest" else ()))
    show([{"topics": topics, "group": name, **result}], session.output, columns)
    if result["messages"] < messages:
        note(f"messages that did not come within {timeout_ms} ms: {messages - result['messages']:,}")


def _read_payloads(file: Path) -> list[bytes]:
    from lakemq.errors import InvalidRequest

    try:
        payloads = [line for line in file.read_bytes().split(b"\n") if line]
    except OSError as error:
        raise InvalidRequest(f"The file cannot be read: {error.strerror}.", found=str(file)) from None
    if not payloads:
        raise InvalidRequest("The file has no lines to send.", found=str(file))
    return payloads


# Measure how fast a client publishes and consumes: `lakemq bench`, as kafka-producer-perf-test does.


MB = 1 << 20
"""Bytes in a megabyte, as Kafka's tools count them."""

REPORT_S = 5.0
_POLL_MS = 500
_TIMED_COUNT = 20_000
"""About so many messages are timed: a callback for each message would halve the rate that is measured."""

_PAYLOAD_COUNT = 1_000
"""Number of different payloads: enough that a page of a data file does not compress to nothing."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class ProducerLoad:
    """What to publish. per_second: at most so many messages; None: as fast as possible. key_count: 0: no keys."""

    messages: int
    payloads: Sequence[bytes]
    per_second: float | None = None
    warmup: int = 0
    key_count: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsumerLoad:
    """What to consume. timeout_ms: end after this time without a message."""

    messages: int
    group: str
    protocol: str
    start: str
    timeout_ms: int


def make_payloads(size_bytes: int) -> list[bytes]:
    """Return payloads of random letters, as Kafka's tool makes them; the same ones in each run."""
    letters = random.Random(0)
    return ["".join(letters.choices(string.ascii_uppercase, k=size_bytes)).encode() for _ in range(_PAYLOAD_COUNT)]


def publish_load(mq: Connection, topic: str, load: ProducerLoad, report: Report) -> dict[str, Any]:
    """Publish, and return the figures. The latency of a message is the time from `send` to its acknowledgement.

    Raises LakeMQError: a message was refused, or got no answer.
    """
    latencies_ms, meter = array("f"), _IntervalMeter(report)
    with mq.producer(**load.options) as producer:
        for number in range(load.warmup):
            producer.send(topic, load.payloads[number % len(load.payloads)], _key(number, load.key_count))
        producer.flush()
        begun_s = time.perf_counter()
        sent_bytes = _send_all(producer, topic, load, latencies_ms, meter)
        producer.flush()
        seconds = time.perf_counter() - begun_s
    return {**_throughput(load.messages, sent_bytes, seconds), **_percentiles("latency", latencies_ms)}


def _send_all(producer: Producer, topic: str, load: ProducerLoad, latencies_ms: array[float], meter: Any) -> int:
    clock, payloads, sent_bytes = time.perf_counter, load.payloads, 0
    stride, begun_s = max(1, load.messages // _TIMED_COUNT), clock()
    for number in range(load.messages):
        if load.per_second is not None and (early_s := begun_s + number / load.per_second - clock()) > 0.001:
            time.sleep(early_s)
        payload, key = payloads[number % len(payloads)], _key(number, load.key_count)
        sent_bytes += len(payload) + len(key or b"")
        if number % stride:
            producer.send(topic, payload, key)
            continue
        sent_s = clock()
        producer.send(topic, payload, key).add_done_callback(partial(_keep_latency, latencies_ms, sent_s))
        meter.add(number + 1, sent_bytes, latencies_ms)
    return sent_bytes


def _keep_latency(latencies_ms: array[float], sent_s: float, _: object) -> None:
    latencies_ms.append((time.perf_counter() - sent_s) * 1000)


def _key(number: int, key_count: int) -> bytes | None:
    return b"%d" % (number % key_count) if key_count else None


def consume_load(mq: Connection, topics: Sequence[str], load: ConsumerLoad, report: Report) -> dict[str, Any]:
    """Consume as a member of a group, and return the figures.

    join_ms: the time until the first message. With start `latest` messages are new, so their delivery latency, from the
    message's timestamp to the poll that returned it, means something.
    """
    counts, polls_ms, deliveries_ms, meter = [0, 0], array("f"), array("f"), _IntervalMeter(report)
    begun_s, first_s = time.perf_counter(), None
    options: dict[str, Any] = {"topics": topics, "protocol": load.protocol, "auto_offset_reset": load.start}
    with mq.consumer(load.group, **options) as consumer:
        last_s = begun_s
        for batch, poll_ms, polled_s in _poll_batches(consumer, load):
            first_s = first_s or polled_s
            rows = batch.to_arrow()
            last_s = time.perf_counter()
            counts = [counts[0] + rows.num_rows, counts[1] + _payload_bytes(rows)]
            polls_ms.append(poll_ms)
            if load.start == "latest":
                deliveries_ms.extend(_ages_ms(rows))
            meter.add(counts[0], counts[1], polls_ms)
        seconds = last_s - begun_s
    return {
        **_throughput(counts[0], counts[1], seconds),
        "join_ms": None if first_s is None else round((first_s - begun_s) * 1000, 1),
        **_percentiles("poll", polls_ms),
        **_percentiles("delivery", deliveries_ms),
    }


def _poll_batches(consumer: Any, load: ConsumerLoad) -> Iterator[tuple[ConsumerBatch, float, float]]:
    """Yield batches with the ms that each poll took and its end, until the load is done. Commits each batch."""
    remaining, last_message_s = load.messages, time.perf_counter()
    while remaining > 0:
        begun_s = time.perf_counter()
        batch = consumer.poll(min(remaining, 100_000), timeout_ms=_POLL_MS)
        ended_s = time.perf_counter()
        if batch:
            remaining -= batch.record_count
            yield batch, (ended_s - begun_s) * 1000, ended_s
            consumer.commit(batch)
            last_message_s = time.perf_counter()
        elif (ended_s - last_message_s) * 1000 >= load.timeout_ms:
            return


def _payload_bytes(rows: pa.Table) -> int:
    import pyarrow.compute as pc

    return sum(pc.sum(pc.binary_length(rows[name]), min_count=0).as_py() for name in ("key", "value"))


def _ages_ms(rows: pa.Table) -> list[float]:
    import pyarrow as pa

    now_us = time.time_ns() // 1000
    return [(now_us - at_us) / 1000 for at_us in rows["timestamp"].cast(pa.int64()).to_pylist()]


def _throughput(messages: int, size_bytes: int, seconds: float) -> dict[str, Any]:
    per_s = 1 / seconds if seconds else 0.0
    return {
        "messages": messages,
        "bytes": size_bytes,
        "seconds": round(seconds, 3),
        "messages_per_s": round(messages * per_s, 1),
        "mb_per_s": round(size_bytes * per_s / MB, 3),
    }


def _percentiles(name: str, values_ms: array[float]) -> dict[str, float | None]:
    import numpy as np

    points = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "max": 100.0}
    if not values_ms:
        return {f"{name}_{point}_ms": None for point in ("avg", *points)}
    values = np.frombuffer(values_ms.tobytes(), dtype=np.float32)
    levels_ms = np.percentile(values, list(points.values()))
    by_point = dict(zip(points, levels_ms.tolist(), strict=True))
    return {f"{name}_{point}_ms": round(ms, 2) for point, ms in {"avg": float(values.mean()), **by_point}.items()}


class _IntervalMeter:
    """Reports the rate and the latencies of each interval."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._since_s, self._messages, self._bytes, self._seen = time.perf_counter(), 0, 0, 0

    def add(self, messages: int, size_bytes: int, values_ms: array[float]) -> None:
        """Add counts so far; report if the interval is over."""
        now_s = time.perf_counter()
        if now_s - self._since_s < REPORT_S:
            return
        seconds, count = now_s - self._since_s, messages - self._messages
        recent = values_ms[self._seen :] or array("f", [0.0])
        self._report(
            f"{count:,} messages, {count / seconds:,.1f} messages/s ({(size_bytes - self._bytes) / seconds / MB:.2f} "
            f"MB/s), {sum(recent) / len(recent):.1f} ms average, {max(recent):.1f} ms at most"
        )
        self._since_s, self._messages, self._bytes, self._seen = now_s, messages, size_bytes, len(values_ms)


@contextmanager
def deleted_afterwards(mq: Connection, group: str, is_new: bool) -> Iterator[None]:
    """Delete the group at the end of the block if it is the command's own."""
    yield
    if is_new and group in mq.groups.list():
        mq.groups.delete(group)
