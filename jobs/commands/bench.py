"""`lakemq bench`: measure how fast one client publishes and consumes."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from lakemq.jobs.commands.shared.context import NEEDS_SEQUENCER, ensure_sequencer, get_session
from lakemq.jobs.output import note, show

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
    from lakemq.jobs.commands.shared.load_test import ProducerLoad, make_payloads, publish_load

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
    from lakemq.jobs.commands.shared.load_test import ConsumerLoad, consume_load, deleted_afterwards

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
