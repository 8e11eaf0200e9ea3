"""`lakemq bench`: measure how fast one client publishes and consumes."""

from __future__ import annotations

import random
import secrets
import string
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.shared.context import NEEDS_SEQUENCER, connect, ensure_sequencer, show
from lakemq.jobs.commands.shared.printing import show_progress
from lakemq.jobs.output import note

if TYPE_CHECKING:
    from lakemq.engine.client.consume.batch import ConsumerBatch


bench = typer.Typer(no_args_is_help=True, help="Measure how fast one client publishes and consumes.")

_THROUGHPUT = ("messages", "seconds", "messages_per_s", "mb_per_s")
_LATENCIES = ("avg_ms", "p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")
_PRODUCED = (*_THROUGHPUT, *(f"latency_{point}" for point in _LATENCIES))
_CONSUMED = (*_THROUGHPUT, "join_ms", "poll_avg_ms", "poll_p50_ms", "poll_p99_ms", "poll_max_ms")
_DELIVERED = ("delivery_avg_ms", "delivery_p50_ms", "delivery_p99_ms", "delivery_max_ms")

_MB = "MB: 1,048,576 bytes of keys and values, as in Kafka's tools."


@bench.command(
    help="Publish random messages, and show rate and latency. The latency of a message is the time from `send` to its "
    f"acknowledgement. {_MB} {NEEDS_SEQUENCER} A sequencer of its own process measures more truly."
)
def produce(
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

    payloads = make_payloads(size) if payload_file is None else _read_payloads(payload_file)
    options: dict[str, Any] = {
        name: int(text) if text.isdigit() else text for name, text in parse_config(config or []).items()
    }
    with connect() as mq:
        mq.topics.describe(topic)
        with ensure_sequencer(mq), mq.producer(**options) as producer:

            def send(number: int) -> Future[Any]:
                key = b"%d" % (number % keys) if keys else None
                return producer.send(topic, payloads[number % len(payloads)], key)

            for number in range(warmup):
                send(number)
            producer.flush()
            latencies_ms, begun_s = array("f"), time.perf_counter()
            _send_all(send, messages, rate, latencies_ms)
            producer.flush()
            seconds = time.perf_counter() - begun_s
    key_bytes = sum(len(str(number % keys)) for number in range(messages)) if keys else 0
    sent_bytes = key_bytes + sum(len(payloads[number % len(payloads)]) for number in range(messages))
    result = {**_throughput(messages, sent_bytes, seconds), **_percentiles("latency", latencies_ms)}
    show([{"topic": topic, **result}], _PRODUCED)


@bench.command(
    help="Consume messages as a member of a group, and show the rate. join_ms: until the first message. poll: how long "
    "a poll with messages took. delivery (with --from latest): from a message's timestamp to the poll that returned "
    f"it. {_MB} {NEEDS_SEQUENCER}"
)
def consume(
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
    name = group or f"bench-{secrets.token_hex(4)}"
    how: dict[str, Any] = {"protocol": protocol, "auto_offset_reset": begin}
    with connect() as mq, ensure_sequencer(mq):
        figures = _ConsumedFigures(are_new=begin == "latest")
        with (
            mq.consumer(name, topics=topics, **how) as consumer,
            show_progress("consumed", lambda: figures.messages / messages) as tell,
        ):
            for batch, poll_ms in _poll_batches(consumer, messages, timeout_ms):
                figures.add(batch, poll_ms)
                tell(figures.messages)
        if group is None and name in mq.groups.list():
            mq.groups.delete(name)
    columns = (*_CONSUMED, *(_DELIVERED if begin == "latest" else ()))
    show([{"topics": topics, "group": name, **figures.result()}], columns)
    if figures.messages < messages:
        note(f"messages that did not come within {timeout_ms} ms: {messages - figures.messages:,}")


def _read_payloads(file: Path) -> list[bytes]:
    from lakemq.errors import InvalidRequest

    try:
        payloads = [line for line in file.read_bytes().split(b"\n") if line]
    except OSError as error:
        raise InvalidRequest(f"The file cannot be read: {error.strerror}.", found=str(file)) from None
    if not payloads:
        raise InvalidRequest("The file has no lines to send.", found=str(file))
    return payloads


# Measure how fast a client publishes and consumes, as kafka-producer-perf-test does.


_MB_BYTES = 1 << 20
_POLL_MS = 500
_TIMED_COUNT = 20_000
"""About so many messages are timed: a callback for each message would halve the rate that is measured."""

_PAYLOAD_COUNT = 1_000
"""Number of different payloads: enough that a page of a data file does not compress to nothing."""


def make_payloads(size_bytes: int) -> list[bytes]:
    """Return payloads of random letters, as Kafka's tool makes them; the same ones in each run."""
    letters = random.Random(0)
    return ["".join(letters.choices(string.ascii_uppercase, k=size_bytes)).encode() for _ in range(_PAYLOAD_COUNT)]


def _send_all(
    send: Callable[[int], Future[Any]], count: int, per_second: float | None, latencies_ms: array[float]
) -> None:
    """Send so many messages, and keep the latencies of some: from `send` to the acknowledgement."""
    clock, sent = time.perf_counter, 0
    stride, begun_s = max(1, count // _TIMED_COUNT), clock()
    with show_progress("sent", lambda: sent / count) as tell:
        for number in range(count):
            if per_second is not None and (early_s := begun_s + number / per_second - clock()) > 0.001:
                time.sleep(early_s)
            if number % stride:
                send(number)
                continue
            sent_s = clock()
            send(number).add_done_callback(partial(_keep_latency, latencies_ms, sent_s))
            sent = number + 1
            tell(sent)


def _keep_latency(latencies_ms: array[float], sent_s: float, _: object) -> None:
    latencies_ms.append((time.perf_counter() - sent_s) * 1000)


class _ConsumedFigures:
    """The figures of a consumer. join_ms: the time until the first message.

    If the messages are new, their delivery latency, from the message's timestamp to the poll that returned it, means
    something.
    """

    def __init__(self, are_new: bool) -> None:
        self.messages = self._bytes = 0
        self._are_new, self._polls_ms, self._deliveries_ms = are_new, array("f"), array("f")
        self._begun_s = self._last_s = time.perf_counter()
        self._join_ms: float | None = None

    def add(self, batch: ConsumerBatch, poll_ms: float) -> None:
        """Add a batch that has just come, and the time that its poll took."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._join_ms is None:
            self._join_ms = round((time.perf_counter() - self._begun_s) * 1000, 1)
        rows = batch.to_arrow()
        self._last_s = time.perf_counter()
        self.messages += rows.num_rows
        self._bytes += sum(pc.sum(pc.binary_length(rows[name]), min_count=0).as_py() for name in ("key", "value"))
        self._polls_ms.append(poll_ms)
        if self._are_new:
            now_us = time.time_ns() // 1000
            self._deliveries_ms.extend(
                (now_us - at_us) / 1000 for at_us in rows["timestamp"].cast(pa.int64()).to_pylist()
            )

    def result(self) -> dict[str, Any]:
        return {
            **_throughput(self.messages, self._bytes, self._last_s - self._begun_s),
            "join_ms": self._join_ms,
            **_percentiles("poll", self._polls_ms),
            **_percentiles("delivery", self._deliveries_ms),
        }


def _poll_batches(consumer: Any, count: int, timeout_ms: int) -> Iterator[tuple[ConsumerBatch, float]]:
    """Yield batches with the ms that each poll took, until so many messages have come. Commits each batch."""
    remaining, last_message_s = count, time.perf_counter()
    while remaining > 0:
        begun_s = time.perf_counter()
        batch = consumer.poll(min(remaining, 100_000), timeout_ms=_POLL_MS)
        ended_s = time.perf_counter()
        if batch:
            remaining -= batch.record_count
            yield batch, (ended_s - begun_s) * 1000
            consumer.commit(batch)
            last_message_s = time.perf_counter()
        elif (ended_s - last_message_s) * 1000 >= timeout_ms:
            return


def _throughput(messages: int, size_bytes: int, seconds: float) -> dict[str, Any]:
    per_s = 1 / seconds if seconds else 0.0
    return {
        "messages": messages,
        "bytes": size_bytes,
        "seconds": round(seconds, 3),
        "messages_per_s": round(messages * per_s, 1),
        "mb_per_s": round(size_bytes * per_s / _MB_BYTES, 3),
    }


def _percentiles(name: str, values_ms: Sequence[float]) -> dict[str, float | None]:
    import numpy as np

    points = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "max": 100.0}
    if not values_ms:
        return {f"{name}_{point}_ms": None for point in ("avg", *points)}
    values = np.array(values_ms)
    by_point = dict(zip(points, np.percentile(values, list(points.values())).tolist(), strict=True))
    return {f"{name}_{point}_ms": round(ms, 2) for point, ms in {"avg": float(values.mean()), **by_point}.items()}
