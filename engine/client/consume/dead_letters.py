"""Dead letters: to look at those that nobody has dealt with, to send them back where they come from, or to be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakemq.tables.specs.messages import HEADERS
from lakemq.tables.specs.spec import BINARY, INT32, INT64, TEXT, TIME

from ...namespace.clock import Clock
from ...protocol.errors import UnknownTopicOrPartition
from ...protocol.values.dead_letters import SUFFIX, Cause, DeadLettersJudged, SettleDeadLetters, cause_of
from ...protocol.values.deliveries import DeliveryStatus, Range
from ...protocol.values.state import State
from ..arguments import flag, text, topic_name, whole_number
from ..fetch.causes import source_offsets, whose_are
from ..fetch.fetching import Fetching
from ..fetch.plan import FetchPlan
from ..predicate import Predicate
from ..requester import Requester
from .spans import Spans, spans_of

COLUMNS = pa.schema(
    {
        "partition": INT32,
        "offset": INT64,
        "consumer_group": TEXT,
        "reason": TEXT,
        "error": TEXT,
        "delivery_count": INT32,
        "source_topic": TEXT,
        "source_partition": INT32,
        "source_offset": INT64,
        "timestamp": TIME,
        "key": BINARY,
        "value": BINARY,
        "headers": HEADERS,
    }
)
"""Of a dead letter. What a condition may look at."""

_CAUSES = {"consumer_group": "group", "source_topic": "topic", "source_partition": "partition"}
"""Columns whose field of Cause has another name."""

_RANGES = 10_000
"""Of a request."""
_LOOK_MS = 20
_SECOND_MS = 1_000


@dataclass(frozen=True)
class Redriven:
    """messages: so many dead letters go back where they come from. waiting: of them have not yet, in the time that an
    answer may take; without_topic: are left as they are, because there is no topic to go back to.
    """

    messages: int
    waiting: int = 0
    without_topic: int = 0


class DeadLetterCount(NamedTuple):
    """messages: so many dead letters of this topic, which this group gave up for this reason, from there."""

    topic: str
    consumer_group: str
    reason: str
    source_topic: str
    messages: int


class _Chosen(NamedTuple):
    """Of this topic, offsets of each partition, and how many are left out."""

    topic: str
    topic_id: int
    spans: dict[int, Spans]
    without_topic: int

    @property
    def messages(self) -> int:
        return _count(self.spans)


class DeadLetters:
    """Of the topics that have them. Arguments named `where` are conditions in DuckDB's SQL over COLUMNS."""

    def __init__(self, requester: Requester, fetching: Callable[[], Fetching], clock: Clock, timeout_ms: int) -> None:
        self._requester, self._fetching, self._clock, self._timeout_ms = requester, fetching, clock, timeout_ms

    def counts(self, topic: str | None = None) -> list[DeadLetterCount]:
        """How many there are with which nobody has dealt, of one dead-letter topic or of all, by topic and cause.

        Raises UnknownTopicOrPartition, InvalidRequest.
        """
        topics = self._topics() if topic is None else [topic_name("topic", topic)]
        found: dict[tuple[str, str, str, str], int] = {}
        for name in topics:
            try:
                plan = self._plan(name)
            except UnknownTopicOrPartition:
                if topic is not None:
                    raise
                continue  # deleted meanwhile
            spans = self._open(plan)
            for partition, first, end, cause in _segments(plan):
                count = sum(until - begin for begin, until in spans[partition].within(first, end))
                key = name, cause.group, cause.reason, cause.topic
                found[key] = found.get(key, 0) + count
        return [DeadLetterCount(*key, count) for key, count in sorted(found.items()) if count]

    def all(self, topic: str, where: str | None = None, limit: int | None = None) -> pa.Table:
        """Those of this dead-letter topic with which nobody has dealt: COLUMNS, by partition and offset.

        limit: at most so many, of which no more is read than it takes. Raises UnknownTopicOrPartition, InvalidRequest.
        """
        condition = _condition(where)
        most = None if limit is None else whole_number("limit", limit, 0)
        plan = self._plan(topic_name("topic", topic))
        parts, count = [COLUMNS.empty_table()], 0
        for part in self._rows(plan, self._open(plan), condition):
            parts.append(part)
            count += part.num_rows
            if most is not None and count >= most:
                break
        return pa.concat_tables(parts).slice(0, most)

    def redrive(
        self, topic: str, where: str | None = None, *, dry_run: bool = False, rate_per_s: int | None = None
    ) -> Redriven:
        """Send those of this dead-letter topic back where they come from, each once, whoever else asks for it.

        They are new messages there, at its end, in the partition of the old number, by reference. rate_per_s: at most
        so many in a second; dry_run: only count them. Raises UnknownTopicOrPartition, UnknownTopicId (this one was made
        anew meanwhile), InvalidRequest, RequestTimedOut.
        """
        condition = _condition(where)
        rate = None if rate_per_s is None else whole_number("rate_per_s", rate_per_s, 1)
        chosen = self._chosen(topic_name("topic", topic), condition, to_go_back=True)
        if flag("dry_run", dry_run):
            return Redriven(chosen.messages, 0, chosen.without_topic)
        count = 0
        for ranges in _in_seconds(chosen.spans, rate):
            begun_ms = self._clock.steady_ms()
            count += self._settle(chosen, ranges, purge=False)
            if rate is not None:
                self._clock.sleep(max(0, begun_ms + _SECOND_MS - self._clock.steady_ms()))
        return Redriven(count, self._still_waiting(chosen), chosen.without_topic)

    def purge(self, topic: str, where: str | None = None, *, dry_run: bool = False) -> int:
        """Be done with those of this dead-letter topic: they are shown as such no more, and never go back; how many.

        They stay in the log of the topic, as its retention says. dry_run: only count them. Raises
        UnknownTopicOrPartition, UnknownTopicId (the topic was made anew meanwhile), InvalidRequest, RequestTimedOut.
        """
        chosen = self._chosen(topic_name("topic", topic), _condition(where), to_go_back=False)
        if flag("dry_run", dry_run):
            return chosen.messages
        return sum(self._settle(chosen, ranges, purge=True) for ranges in _in_seconds(chosen.spans, None))

    def _topics(self) -> list[str]:
        """All that have any: also of sources that are deleted, or that named another one then."""
        stored = set(self._fetching().stored_dead_letter_topics())

        def named(state: State) -> list[str]:
            mine = {one.setting("dead.letter.topic") or one.topic + SUFFIX for one in state.topics.values()}
            return sorted(name for name in mine | stored if name in state.topic_ids)

        return self._fetching().look(named)

    # -- which ------------------------------------------------------------------------------------------

    def _plan(self, topic: str) -> FetchPlan:
        # with those that have expired: rows are told their causes by where they are among all of the plan
        return self._fetching().plan(topic, "read_committed", "earliest", "latest", include_expired=True)

    def _open(self, plan: FetchPlan) -> dict[int, Spans]:
        """Dead letters of the plan with which nobody has dealt, by partition."""
        found: dict[int, Spans] = {}
        for partition, first, end, _ in _segments(plan):
            found.setdefault(partition, Spans()).add(first, end)

        def settled(state: State) -> list[tuple[int, int, int]]:
            topic = state.topics.get(plan.topic_id)
            if topic is None:
                raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=plan.topic)
            return [
                (partition, *span)
                for partition, known in topic.redrives.items()
                for span in [
                    (0, known.start),
                    *((one.first, one.end) for one in known.stretches if one.status is not DeliveryStatus.AVAILABLE),
                ]
            ]

        for partition, first, end in self._fetching().look(settled):
            if partition in found:
                found[partition].remove(first, end)
        return found

    def _chosen(self, topic: str, condition: Predicate | None, to_go_back: bool) -> _Chosen:
        plan = self._plan(topic)
        spans = self._open(plan)
        if condition is not None:
            spans = _spans_of(self._rows(plan, spans, condition))
        if not to_go_back:
            return _Chosen(plan.topic, plan.topic_id, spans, 0)
        count = _count(spans)
        sources = {cause.topic for *_, cause in _segments(plan)}
        known = self._fetching().look(lambda state: {name for name in sources if name in state.topic_ids})
        for partition, first, end, cause in _segments(plan):
            if cause.topic not in known and partition in spans:
                spans[partition].remove(first, end)
        return _Chosen(plan.topic, plan.topic_id, spans, count - _count(spans))

    def _rows(self, plan: FetchPlan, spans: Mapping[int, Spans], condition: Predicate | None) -> Iterator[pa.Table]:
        """Of these offsets those for which it holds, piece by piece: COLUMNS."""
        whose = whose_are(plan.segments)
        causes = [None if one is None else cause_of(one) for one in plan.segments.column("dead_letter").to_pylist()]
        told = {
            name: pa.array([one and getattr(one, _CAUSES.get(name, name)) for one in causes], COLUMNS.field(name).type)
            for name in ("consumer_group", "reason", "error", "delivery_count", "source_topic", "source_partition")
        }
        sources, at = source_offsets(plan.segments, whose), 0
        for piece in self._fetching().fetched(plan).pieces():
            mine, at = slice(at, at + piece.num_rows), at + piece.num_rows
            index = pa.array(whose[mine])
            columns: dict[str, Any] = {name: column.take(index) for name, column in told.items()}
            columns["source_offset"] = sources.slice(mine.start, piece.num_rows)
            columns |= {name: piece.column(name) for name in COLUMNS.names if name not in columns}
            rows = pa.table([columns[name] for name in COLUMNS.names], schema=COLUMNS)
            rows = rows.filter(pa.array(_are_within(rows, spans)))
            if rows.num_rows:
                yield rows if condition is None else condition.chosen(rows)

    # -- what becomes of them ---------------------------------------------------------------------------

    def _settle(self, chosen: _Chosen, ranges: Mapping[int, Sequence[Range]], purge: bool) -> int:
        requests = [
            (
                SettleDeadLetters(chosen.topic, chosen.topic_id, {partition: list(listed[at : at + _RANGES])}, purge),
                None,
            )
            for partition, listed in ranges.items()
            for at in range(0, len(listed), _RANGES)
        ]
        count = 0
        for future in self._requester.submit_all(requests):
            judged = future.result()
            assert isinstance(judged, DeadLettersJudged)
            count += judged.count
        return count

    def _still_waiting(self, chosen: _Chosen) -> int:
        """How many of these have not gone when the time of an answer is over, whatever else is to go."""
        ranges = {partition: [(first, end - first) for first, end in mine] for partition, mine in chosen.spans.items()}

        def waiting(state: State) -> int:
            topic = state.topics.get(chosen.topic_id)
            known = {} if topic is None else {p: one for p, one in topic.redrives.items() if p in ranges}
            parts = (part for p, one in known.items() if one.dying_count for part in one.within(ranges[p]))
            return sum(part.length for part in parts if part.status is DeliveryStatus.DYING)

        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        while (count := self._fetching().look(waiting)) and self._clock.steady_ms() < deadline_ms:
            self._clock.sleep(_LOOK_MS)
        return count


def _count(spans: Mapping[int, Spans]) -> int:
    return sum(map(len, spans.values()))


def _condition(where: Any) -> Predicate | None:
    return None if where is None else Predicate(text("where", where), COLUMNS)


def _segments(plan: FetchPlan) -> Iterator[tuple[int, int, int, Cause]]:
    """Those of dead letters: partition, first offset, the one after the last, and why."""
    names = ("partition", "base_offset", "record_count", "dead_letter")
    for partition, first, count, cause in zip(*(plan.segments.column(n).to_pylist() for n in names), strict=True):
        if cause is not None:
            yield partition, first, first + count, cause_of(cause)


def _are_within(rows: pa.Table, spans: Mapping[int, Spans]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    partitions, offsets = rows.column("partition").to_numpy(), rows.column("offset").to_numpy()
    found = np.zeros(rows.num_rows, np.bool_)
    for partition, mine in spans.items():
        bounds = np.array(list(mine), np.int64).reshape(-1, 2)
        if not len(bounds):
            continue
        at = np.searchsorted(bounds[:, 0], offsets, side="right") - 1
        found |= (partitions == partition) & (at >= 0) & (offsets < bounds[np.maximum(at, 0), 1])
    return found


def _spans_of(parts: Iterator[pa.Table]) -> dict[int, Spans]:
    """Where these rows are."""
    found: dict[int, list[int]] = {}
    for rows in parts:
        for partition in rows.column("partition").unique().to_pylist():
            mine = rows.column("partition").to_numpy() == partition
            found.setdefault(partition, []).extend(rows.column("offset").to_numpy()[mine].tolist())
    return {partition: Spans(spans_of(offsets)) for partition, offsets in found.items()}


def _in_seconds(spans: Mapping[int, Spans], rate: int | None) -> Iterator[dict[int, list[Range]]]:
    """All of them, at most so many at a time."""
    room, now = rate or 0, dict[int, list[Range]]()
    for partition, mine in sorted(spans.items()):
        for first, end in mine:
            while first < end:
                count = end - first if rate is None else min(end - first, room)
                now.setdefault(partition, []).append((first, count))
                first, room = first + count, room - count
                if rate is not None and not room:
                    yield now
                    room, now = rate, {}
    if now:
        yield now
