"""The message browser: messages by offset, time or content, the tail of a topic, and one message."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.errors import LakeMQError
from lakemq.jobs.commands.messages import find_last_offsets
from lakemq.jobs.console import parts as ui
from lakemq.jobs.console.changes import BadInput, read_choice, read_number, read_position, read_text
from lakemq.jobs.console.console import Busy, Console, quote_sql
from lakemq.jobs.console.payloads import FORMATS, LONG_CHARACTERS, escape_invisible, show_payload
from lakemq.jobs.output import format_size

ISOLATIONS = ("read_committed", "read_uncommitted")
DEFAULT_LIMIT, HIGHEST_LIMIT = 50, 200
SCAN_ROWS, SCAN_S = 200_000, 10.0
"""How many messages a search reads at most, and for how long."""
TAIL_ROWS, TAIL_S = 20_000, 2.0
"""As above, for each look at the end of a topic. A page that follows the topic looks every second."""
LOOKS = threading.BoundedSemaphore(8)
"""Bounds the looks at a time: a server has 40 threads, and other pages need some."""
MOST_TAILED = 256
"""Partitions that a tail follows: their offsets are in its address."""
INPUTS = ("topic", "partition", "key", "header", "text", "as", "isolation", "limit")
"""What the pages of messages take."""

_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


class Search(NamedTuple):
    """What the visitor looks for."""

    topic: str
    partition: int | None
    start: Any
    key: str
    header: str
    text: str
    how: str
    isolation: Any
    limit: int

    @property
    def is_filtered(self) -> bool:
        """Whether not every message is wanted."""
        return bool(self.key or self.header or self.text)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of a page that looks for the same at another place."""
        return {name: getattr(self, "how" if name == "as" else name) for name in INPUTS}


class _FoundMessages(NamedTuple):
    """The messages of a search. scanned: how many were read; is_complete: whether the log was read to its end."""

    rows: list[dict[str, Any]]
    scanned: int
    is_complete: bool


def read_messages(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the page of the message browser for a topic."""
    search = read_search(inputs)
    result = _find_messages(console, search)
    parts: list[ui.Part] = [_make_form(search)]
    if search.is_filtered and not result.is_complete:
        text = f"The search has read {result.scanned:,} messages and stopped. Start it at a later offset to go on."
        parts.append(ui.Notice(text))
    parts += [_list_messages(search, result), *_offer_pages(search, result)]
    topic = ui.Link(search.topic, ui.make_link("/topic", name=search.topic))
    return ui.Page(f"Messages of {search.topic}", parts, [ui.Link("Topics", "/topics"), topic])


def read_search(inputs: Mapping[str, Any]) -> Search:
    """Return what the visitor looks for. Raises BadInput."""
    partition = read_number(inputs, "partition", -1, low=-1, high=2**31 - 1)
    start = read_position(inputs, "from", "last") if inputs.get("from") not in (None, "", "last") else "last"
    return Search(
        topic=read_text(inputs, "topic"),
        partition=None if partition < 0 else partition,
        start=start,
        key=read_text(inputs, "key", ""),
        header=read_text(inputs, "header", ""),
        text=read_text(inputs, "text", ""),
        how=read_choice(inputs, "as", FORMATS),
        isolation=read_choice(inputs, "isolation", ISOLATIONS),
        limit=read_number(inputs, "limit", DEFAULT_LIMIT, low=1, high=HIGHEST_LIMIT),
    )


def _find_messages(console: Console, search: Search) -> _FoundMessages:
    mq, isolation = console.mq, search.isolation
    ends = _find_ends(console, search)
    start: Any = search.start
    if start == "last":
        start = "earliest"
        if not search.is_filtered:
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
    if search.is_filtered:
        return _scan(fetched.pieces(SCAN_ROWS, 4 << 20), search, total)
    tables = list(fetched.pieces(search.limit))
    return _FoundMessages(_to_rows(tables), sum(table.num_rows for table in tables), total <= search.limit)


def _clamp(offset: int, first: int, end: int) -> int:
    """Return the offset of the log that is nearest: a visitor may ask for one that was deleted."""
    return max(first, min(offset, end))


def _find_ends(console: Console, search: Search) -> dict[int, int]:
    """Return the ends of the partitions that the search covers."""
    ends = console.mq.end_offsets(search.topic, search.isolation)
    if search.partition not in (None, *ends):
        raise BadInput(f"The topic {search.topic} has no partition {search.partition}.")
    return {partition: end for partition, end in ends.items() if search.partition in (None, partition)}


def _scan(pieces: Iterator[pa.Table], search: Search, total: int) -> _FoundMessages:
    """Read pieces until enough messages match, or the scan has taken long enough."""
    deadline_s = time.monotonic() + SCAN_S
    tables: list[pa.Table] = []
    scanned = matches = 0
    for piece in pieces:
        scanned += piece.num_rows
        tables.append(select_messages(piece, search).slice(0, search.limit - matches))
        matches += tables[-1].num_rows
        if matches >= search.limit or time.monotonic() > deadline_s:
            break
    return _FoundMessages(_to_rows(tables), scanned, scanned >= total)


def select_messages(messages: pa.Table, search: Search) -> pa.Table:
    """Return the messages that match all filters."""
    if search.key:
        messages = messages.filter(pc.equal(messages["key"].cast(pa.binary()), pa.scalar(search.key.encode())))
    if search.text:
        messages = messages.filter(pc.match_substring(messages["value"].cast(pa.binary()), search.text))
    if search.header:
        name, has_value, value = search.header.partition("=")
        rows, headers = pc.list_parent_indices(messages["headers"]), pc.list_flatten(messages["headers"])
        matches = pc.equal(pc.struct_field(headers, "key"), name)
        if has_value:
            matches = pc.and_(matches, pc.equal(pc.struct_field(headers, "value"), pa.scalar(value.encode())))
        messages = messages.take(rows.filter(matches).unique())
    return messages


def _to_rows(tables: Sequence[pa.Table]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.select(_COLUMNS).to_pylist()]


def _make_form(search: Search, path: str = "/messages") -> ui.Form:
    start = ui.Field("from", "from: last, earliest, an offset or a time", str(search.start))
    return ui.Form(
        "Find messages",
        path,
        [
            ui.Field("topic", "topic", search.topic, is_hidden=True),
            ui.Field("partition", "partition (empty: all)", "" if search.partition is None else str(search.partition)),
            *([start] if path == "/messages" else []),
            ui.Field("key", "key", search.key),
            ui.Field("header", "header: name or name=value", search.header),
            ui.Field("text", "text in the value", search.text),
            ui.Field("as", "show as", search.how, FORMATS),
            ui.Field("isolation", "isolation", search.isolation, ISOLATIONS),
            ui.Field("limit", f"at most (up to {HIGHEST_LIMIT})", str(search.limit)),
        ],
        "Show",
    )


def _list_messages(search: Search, result: _FoundMessages) -> ui.Table:
    return ui.list_records(
        "Messages",
        result.rows,
        ", ".join(_COLUMNS),
        "No message matches.",
        how=search.how,
        offset=lambda row: ui.Link(
            str(row["offset"]),
            ui.make_link("/message", topic=search.topic, partition=row["partition"], offset=row["offset"]),
        ),
        headers=lambda row: _join_headers(row["headers"]),
    )


def _join_headers(headers: Sequence[Mapping[str, Any]] | None) -> str:
    texts = [f"{header['key']}: {show_payload(header['value'], 'auto', 200).text}" for header in headers or ()]
    return escape_invisible("\n".join(texts))


def _offer_pages(search: Search, result: _FoundMessages) -> list[ui.Part]:
    """Return links to the messages before and after, which need a single partition."""
    links = [ui.Link("Follow new messages", ui.make_link("/tail", **search.inputs))]
    if search.partition is not None and not search.is_filtered and result.rows:
        first, last = result.rows[0]["offset"], result.rows[-1]["offset"]
        older, newer = {"from": max(0, first - search.limit)}, {"from": last + 1}
        links += [
            ui.Link("Older", ui.make_link("/messages", **search.inputs, **older)),
            ui.Link("Newer", ui.make_link("/messages", **search.inputs, **newer)),
        ]
    return [ui.Actions(links)]


# The tail of a topic. Its address says how far it has read, so the console keeps nothing between two looks.


def read_tail(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the page that follows a topic: what came since the offsets of its address, the newest first.

    It never falls behind: if more came than it reads in time, it passes over the rest and says so. Raises Busy.
    """
    if not LOOKS.acquire(blocking=False):
        raise Busy("Too many pages follow topics now. Try again in a few seconds.")
    try:
        return _read_next_tail(console, inputs)
    finally:
        LOOKS.release()


def _read_next_tail(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    search = read_search(inputs)
    topic_id = console.mq.state().topic(search.topic).topic_id  # before the ends: the next look sees if it is replaced
    ends = _find_ends(console, search)
    if len(ends) > MOST_TAILED:
        raise BadInput(f"{search.topic} has {len(ends)} partitions. Choose one: a tail follows up to {MOST_TAILED}.")
    share = TAIL_ROWS // len(ends)
    if inputs.get("after"):
        seen_id, offsets = _read_offsets(inputs)
        # a topic that was created again is read from its beginning
        since = {**console.mq.beginning_offsets(search.topic), **(offsets if seen_id == topic_id else {})}
    else:
        since = find_last_offsets(console.mq, search.topic, search.isolation, ends, min(share, search.limit))
    result, passed = _read_newest(console, search, since, ends, share)
    position = ".".join([str(topic_id), *(f"{partition}-{end}" for partition, end in ends.items())])
    newer = ui.Actions([ui.Link("Newer", ui.make_link("/tail", **search.inputs, after=position))])
    parts: list[ui.Part] = [_make_form(search, "/tail"), newer]
    if passed and inputs.get("after"):
        text = f"{passed:,} messages or offsets were passed over: more came than a page reads in time. Use a filter,"
        parts.append(ui.Notice(f"{text} or read them under Messages."))
    topic = ui.Link(search.topic, ui.make_link("/topic", name=search.topic))
    browse = ui.Link("Messages", ui.make_link("/messages", **search.inputs))
    trail = [ui.Link("Topics", "/topics"), topic, browse]
    return ui.Page(f"Tail of {search.topic}", [*parts, _list_messages(search, result)], trail, follows=True)


def _read_offsets(inputs: Mapping[str, Any]) -> tuple[int, dict[int, int]]:
    """Return the id of the topic and partition -> offset, as the link of a tail has them. Raises BadInput."""
    text = read_text(inputs, "after")
    if not re.fullmatch(r"\d{1,18}(\.\d{1,9}-\d{1,18})+", text, re.ASCII):
        raise BadInput(
            "The input after has no offsets. Expected TOPIC_ID.PARTITION-OFFSET.PARTITION-OFFSET..., as in the link."
        )
    topic_id, *pairs = text.split(".")
    return int(topic_id), {int(partition): int(offset) for partition, offset in (pair.split("-") for pair in pairs)}


def _read_newest(
    console: Console, search: Search, since: Mapping[int, int], ends: Mapping[int, int], share: int
) -> tuple[_FoundMessages, int]:
    """Return the newest messages since some offsets, and how many offsets or messages were passed over.

    share: the most offsets that are read of a partition. It reads from the ends back, in ranges that double, and begins
    none after the deadline. So what it passes over is the oldest of each partition.
    """
    first = console.mq.beginning_offsets(search.topic)
    positions = {partition: _clamp(since[partition], first[partition], end) for partition, end in ends.items()}
    lowest = {partition: max(offset, ends[partition] - share) for partition, offset in positions.items()}
    unread, reach = dict(ends), max(1, search.limit // len(ends))
    deadline_s, matches = time.monotonic() + TAIL_S, 0
    newest: pa.Table | None = None
    while unread != lowest:
        starts = {partition: max(lowest[partition], end - reach) for partition, end in unread.items()}
        fetched = console.mq.fetch(
            search.topic,
            isolation=search.isolation,
            start=starts,
            end=unread,
            partitions=list(ends),
            include_expired=True,
        )
        for piece in fetched.pieces(target_bytes=4 << 20):
            selected = select_messages(piece, search)
            matches += selected.num_rows
            both = selected if newest is None else pa.concat_tables([newest, selected])
            newest = both.sort_by([("timestamp", "descending"), ("offset", "descending")]).slice(0, search.limit)
        unread, reach = starts, 2 * reach
        if time.monotonic() >= deadline_s:
            break
    rows = [] if newest is None else _to_rows([newest])
    passed = sum(unread.values()) - sum(positions.values()) + matches - len(rows)
    return _FoundMessages(rows, matches, True), passed


def read_message(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the page of one message."""
    topic, how = read_text(inputs, "topic"), read_choice(inputs, "as", FORMATS)
    partition, offset = read_number(inputs, "partition", high=2**31 - 1), read_number(inputs, "offset")
    row, segment = _read_row(console, topic, partition, offset)
    data, by_schema, misfits = _decode_value(console, topic, row["value"]) if how == "auto" else (row["value"], "", [])
    value = show_payload(data, how, LONG_CHARACTERS)
    key = show_payload(row["key"], how, LONG_CHARACTERS)
    headers = [
        [header["key"], show_payload(header["value"], how, LONG_CHARACTERS // 16)] for header in row["headers"] or ()
    ]
    place = {"topic": topic, "partition": partition, "offset": offset}
    pairs = [
        *place.items(),
        ("timestamp", ui.format_time(row["timestamp"])),
        ("key", format_size(key.size_bytes)),
        ("value", format_size(value.size_bytes)),
    ]
    cut = "Only the beginning is shown." if value.is_cut else ""
    parts: list[ui.Part] = [
        ui.Actions([ui.Link(f"as {other}", ui.make_link("/message", **place, **{"as": other})) for other in FORMATS]),
        ui.Facts("Message", pairs),
        *_link_causes(console, row, segment),
        *misfits,
        ui.TextBlock(f"Key ({key.kind})", key.text),
        ui.TextBlock(f"Value ({value.kind}{by_schema})", value.text, cut),
        ui.Table("Headers", ("header", "value"), headers, "It has no headers."),
    ]
    trail = [
        ui.Link("Topics", "/topics"),
        ui.Link(topic, ui.make_link("/topic", name=topic)),
        ui.Link("Messages", ui.make_link("/messages", topic=topic, partition=partition, **{"from": offset})),
    ]
    return ui.Page(f"{topic}-{partition}, offset {offset}", parts, trail)


_DEAD = "dead-letter."
_ORIGIN = """\
SELECT origin, decided_at, expires_at, dead_letter, source_offset
FROM log
WHERE topic = {topic} AND partition = {partition} AND offset = {offset}"""


def _link_causes(console: Console, row: Mapping[str, Any], segment: Mapping[str, Any]) -> list[ui.Part]:
    """Return links to where the message comes from, and to what became of it."""
    topic, links = row["topic"], []
    if segment["dead_letter"] is not None:
        headers = {header["key"]: header["value"] for header in row["headers"]}  # those of the cause come last
        source = {name: headers[f"{_DEAD}{name}"].decode() for name in ("topic", "partition", "offset")}
        text = "Original: {topic}-{partition}, offset {offset}".format(**source)
        links += [
            ui.Link(text, ui.make_link("/message", **source)),
            ui.Link("Group", ui.make_link("/group", name=headers[f"{_DEAD}group"].decode())),
        ]
    names = {summary.topic: summary.settings["dead.letter.topic"] for summary in console.mq.topics.list()}
    dead = names.get(topic) or f"{topic}.dlq"
    if dead in names:
        place = {"partition": row["partition"], "from": "earliest", "header": f"{_DEAD}offset={row['offset']}"}
        links.append(ui.Link("Its dead letters", ui.make_link("/messages", topic=dead, **place)))
    query = _ORIGIN.format(topic=quote_sql(topic), partition=row["partition"], offset=row["offset"])
    links.append(ui.Link("Delayed, redriven or published? (SQL)", ui.make_link("/sql", text=query)))
    return [ui.Actions(links)]


def _decode_value(console: Console, topic: str, value: bytes | None) -> tuple[bytes | None, str, list[ui.Part]]:
    """Return the value as JSON by the schema of its topic, by which version, and how it does not fit."""
    versions = console.mq.topics.describe(topic).schemas
    if not versions or value is None:
        return value, "", []
    try:
        schema = console.mq.topics.schema(topic)
        misfits = schema.find_misfits([value])
        decoded = schema.decode_json([value])[0]
    except LakeMQError as error:
        return value, "", [ui.Notice(f"The schema of {topic} cannot be used: {error}", "bad")]
    version = f"version {versions[-1].version} of the schema ({versions[-1].type})"
    if misfits:
        return value, "", [ui.Notice(f"The value does not fit {version}: {misfits[0]}", "bad")]
    return decoded, f" by {version}", []


def _read_row(console: Console, topic: str, partition: int, offset: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a message, and the part of the log that it belongs to."""
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
    rows = fetched.to_arrow().to_pylist()
    if not rows:
        raise BadInput(f"Offset {offset} of {topic}-{partition} holds no message: it marks the end of a transaction.")
    return rows[0], fetched.plan.segments.slice(0, 1).to_pylist()[0]
