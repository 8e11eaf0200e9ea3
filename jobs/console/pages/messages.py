"""The message browser: messages by offset, time or key, and one message as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.jobs.commands.messages import find_last_offsets
from lakemq.jobs.console.changes import BadInput, read_choice, read_number, read_position, read_text
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.parts import (
    Actions,
    Facts,
    Field,
    Form,
    Link,
    Notice,
    Page,
    Part,
    Table,
    TextBlock,
    format_time,
    list_records,
    make_link,
)
from lakemq.jobs.console.payloads import FORMATS, LONG_CHARACTERS, escape_invisible, show_payload
from lakemq.jobs.output import format_size

ISOLATIONS = ("read_committed", "read_uncommitted")
DEFAULT_LIMIT, HIGHEST_LIMIT = 50, 200
SCAN_ROWS, SCAN_S = 200_000, 10.0
"""How many messages a search for a key reads at most, and for how long."""

_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


class _Search(NamedTuple):
    """What the visitor looks for."""

    topic: str
    partition: int | None
    start: Any
    key: str
    how: str
    isolation: Any
    limit: int


class _FoundMessages(NamedTuple):
    """The messages of a search. scanned: how many were read; is_complete: whether the log was read to its end."""

    rows: list[dict[str, Any]]
    scanned: int
    is_complete: bool


def read_messages(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the page of the message browser for a topic."""
    search = _read_search(inputs)
    result = _find_messages(console, search)
    parts: list[Part] = [_make_form(search)]
    if search.key and not result.is_complete:
        text = f"The search has read {result.scanned:,} messages and stopped. Start it at a later offset to go on."
        parts.append(Notice(text))
    parts += [_list_messages(search, result), *_offer_pages(search, result)]
    topic = Link(search.topic, make_link("/topic", name=search.topic))
    return Page(f"Messages of {search.topic}", parts, [Link("Topics", "/topics"), topic])


def _read_search(inputs: Mapping[str, Any]) -> _Search:
    partition = read_number(inputs, "partition", -1, low=-1, high=2**31 - 1)
    start = read_position(inputs, "from", "last") if inputs.get("from") not in (None, "", "last") else "last"
    return _Search(
        topic=read_text(inputs, "topic"),
        partition=None if partition < 0 else partition,
        start=start,
        key=read_text(inputs, "key", ""),
        how=read_choice(inputs, "as", FORMATS),
        isolation=read_choice(inputs, "isolation", ISOLATIONS),
        limit=read_number(inputs, "limit", DEFAULT_LIMIT, low=1, high=HIGHEST_LIMIT),
    )


def _find_messages(console: Console, search: _Search) -> _FoundMessages:
    mq, isolation = console.mq, search.isolation
    ends = mq.end_offsets(search.topic, isolation)
    if search.partition is not None:
        if search.partition not in ends:
            raise BadInput(f"The topic {search.topic} has no partition {search.partition}.")
        ends = {search.partition: ends[search.partition]}
    start: Any = search.start
    if start == "last":
        start = "earliest"
        if not search.key:
            per_partition = -(-search.limit // max(1, len(ends)))
            start = find_last_offsets(mq, search.topic, isolation, ends, per_partition)
    elif isinstance(start, int):
        start = {
            partition: _clamp(start, first, ends[partition])
            for partition, first in mq.beginning_offsets(search.topic).items()
            if partition in ends
        }
    fetched = mq.fetch(
        search.topic,
        isolation=isolation,
        start=start,
        end="latest",
        partitions=list(ends),
        include_expired=True,
    )
    total = fetched.plan.record_count
    if search.key:
        return _scan_for_key(fetched.pieces(SCAN_ROWS, 4 << 20), search, total)
    tables = list(fetched.pieces(search.limit))
    return _FoundMessages(_to_rows(tables), sum(table.num_rows for table in tables), total <= search.limit)


def _clamp(offset: int, first: int, end: int) -> int:
    """Return the offset of the log that is nearest: a visitor may ask for one that was deleted."""
    return max(first, min(offset, end))


def _scan_for_key(pieces: Iterator[pa.Table], search: _Search, total: int) -> _FoundMessages:
    """Read pieces until enough messages have the key, or the scan has taken long enough."""
    key, deadline_s = pa.scalar(search.key.encode(), pa.binary()), time.monotonic() + SCAN_S
    tables: list[pa.Table] = []
    scanned = matches = 0
    for piece in pieces:
        scanned += piece.num_rows
        selected = piece.filter(pc.equal(piece.column("key").cast(pa.binary()), key))
        tables.append(selected.slice(0, search.limit - matches))
        matches += tables[-1].num_rows
        if matches >= search.limit or time.monotonic() > deadline_s:
            break
    return _FoundMessages(_to_rows(tables), scanned, scanned >= total)


def _to_rows(tables: Sequence[pa.Table]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.select(_COLUMNS).to_pylist()]


def _make_form(search: _Search) -> Form:
    start = search.start
    return Form(
        "Find messages",
        "/messages",
        [
            Field("topic", "topic", search.topic, is_hidden=True),
            Field("partition", "partition (empty: all)", "" if search.partition is None else str(search.partition)),
            Field("from", "from: last, earliest, an offset or a time", start if isinstance(start, str) else str(start)),
            Field("key", "key", search.key),
            Field("as", "show as", search.how, FORMATS),
            Field("isolation", "isolation", search.isolation, ISOLATIONS),
            Field("limit", f"at most (up to {HIGHEST_LIMIT})", str(search.limit)),
        ],
        "Show",
    )


def _list_messages(search: _Search, result: _FoundMessages) -> Table:
    return list_records(
        "Messages",
        result.rows,
        ", ".join(_COLUMNS),
        "No message matches.",
        how=search.how,
        offset=lambda row: Link(
            str(row["offset"]),
            make_link("/message", topic=search.topic, partition=row["partition"], offset=row["offset"]),
        ),
        headers=lambda row: _join_headers(row["headers"]),
    )


def _join_headers(headers: Sequence[Mapping[str, Any]] | None) -> str:
    texts = [f"{header['key']}: {show_payload(header['value'], 'auto', 200).text}" for header in headers or ()]
    return escape_invisible("\n".join(texts))


def _offer_pages(search: _Search, result: _FoundMessages) -> list[Part]:
    """Return links to the messages before and after, which need a single partition."""
    if search.partition is None or search.key or not result.rows:
        return []
    common = {
        "topic": search.topic,
        "partition": search.partition,
        "as": search.how,
        "isolation": search.isolation,
        "limit": search.limit,
    }
    first, last = result.rows[0]["offset"], result.rows[-1]["offset"]
    return [
        Actions(
            [
                Link("Older", make_link("/messages", **common, **{"from": max(0, first - search.limit)})),
                Link("Newer", make_link("/messages", **common, **{"from": last + 1})),
            ]
        )
    ]


def read_message(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the page of one message."""
    topic, how = read_text(inputs, "topic"), read_choice(inputs, "as", FORMATS)
    partition, offset = read_number(inputs, "partition", high=2**31 - 1), read_number(inputs, "offset")
    row = _read_row(console, topic, partition, offset)
    value = show_payload(row["value"], how, LONG_CHARACTERS)
    key = show_payload(row["key"], how, LONG_CHARACTERS)
    headers = [
        [header["key"], show_payload(header["value"], how, LONG_CHARACTERS // 16)] for header in row["headers"] or ()
    ]
    place = {"topic": topic, "partition": partition, "offset": offset}
    pairs = [
        *place.items(),
        ("timestamp", format_time(row["timestamp"])),
        ("key", format_size(key.size_bytes)),
        ("value", format_size(value.size_bytes)),
    ]
    cut = "Only the beginning is shown." if value.is_cut else ""
    parts: list[Part] = [
        Actions([Link(f"as {other}", make_link("/message", **place, **{"as": other})) for other in FORMATS]),
        Facts("Message", pairs),
        TextBlock(f"Key ({key.kind})", key.text),
        TextBlock(f"Value ({value.kind})", value.text, cut),
        Table("Headers", ("header", "value"), headers, "It has no headers."),
    ]
    trail = [
        Link("Topics", "/topics"),
        Link(topic, make_link("/topic", name=topic)),
        Link("Messages", make_link("/messages", topic=topic, partition=partition, **{"from": offset})),
    ]
    return Page(f"{topic}-{partition}, offset {offset}", parts, trail)


def _read_row(console: Console, topic: str, partition: int, offset: int) -> dict[str, Any]:
    ends = console.mq.end_offsets(topic, "read_uncommitted")
    first = console.mq.beginning_offsets(topic).get(partition)
    if first is None or not first <= offset < ends.get(partition, 0):
        raise BadInput(f"The partition {topic}-{partition} has no offset {offset} now.")
    fetched = console.mq.fetch(
        topic,
        isolation="read_uncommitted",
        start={partition: offset},
        end={partition: offset + 1},
        partitions=[partition],
        include_expired=True,
    )
    rows = _to_rows([fetched.to_arrow()])
    if not rows:
        raise BadInput(f"Offset {offset} of {topic}-{partition} holds no message: it marks the end of a transaction.")
    return rows[0]
