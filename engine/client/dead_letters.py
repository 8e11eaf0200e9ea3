"""Dead letters of a connection: show the open ones, send them back to their source topics, or close them.

A dead letter is open until it was redriven (sent back) or purged (closed).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakemq.tables.specs.messages import HEADERS
from lakemq.tables.specs.spec import BINARY, INT32, INT64, TEXT, TIME

from ..namespace.clock import Clock
from ..namespace.process import ProcessBound
from ..protocol.errors import InvalidRequest, UnknownTopicOrPartition
from ..protocol.values.dead_letters import SUFFIX, Cause, DeadLettersJudged, SettleDeadLetters, decode_cause
from ..protocol.values.deliveries import DeliveryStatus, Range, Spans, group_into_spans
from ..protocol.values.state import State
from .arguments import parse_flag, parse_text, parse_topic_name, parse_whole_number
from .fetch.fetcher import Fetcher
from .fetch.plan import FetchPlan
from .fetch.rows import compute_source_offsets, segment_index_per_row
from .predicate import Predicate
from .requests.requester import Requester

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
"""Columns of dead letters, which conditions may use."""

_CAUSES = {"consumer_group": "group", "source_topic": "topic", "source_partition": "partition"}
"""Columns whose field of Cause has another name."""

_REQUEST_RANGES = 10_000
"""Ranges of offsets in one request."""
_LOOK_MS = 20
_SECOND_MS = 1_000


@dataclass(frozen=True)
class Redriven:
    """The result of `redrive`.

    Attributes:
        messages: dead letters that go back to their source topics.
        waiting: how many of them were not published there yet when the time for an answer was over.
        without_topic: dead letters that stay, because their source topic does not exist.
    """

    messages: int
    waiting: int = 0
    without_topic: int = 0


class DeadLetterCount(NamedTuple):
    """The number of open dead letters of a topic with the same consumer group, reason and source topic."""

    topic: str
    consumer_group: str
    reason: str
    source_topic: str
    messages: int


class _Selection(NamedTuple):
    """Open dead letters of a topic: spans of offsets by partition, and how many are left out for want of a topic."""

    topic: str
    topic_id: int
    spans: dict[int, Spans]
    without_topic: int

    @property
    def messages(self) -> int:
        return _count(self.spans)


class DeadLetters(ProcessBound):
    """The dead letters of all topics. Arguments named `where` are conditions in DuckDB's SQL over COLUMNS."""

    def __init__(
        self,
        requester: Requester,
        fetcher: Callable[[], Fetcher],
        clock: Clock,
        timeout_ms: int,
    ) -> None:
        self._requester, self._fetcher = requester, fetcher
        self._clock, self._timeout_ms = clock, timeout_ms

    def counts(self, topic: str | None = None) -> list[DeadLetterCount]:
        """Return how many open dead letters there are, by topic and cause.

        Args:
            topic: a dead-letter topic; left out, all of them.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            InvalidRequest: the argument is not valid.
        """
        topics = self._find_topics() if topic is None else [parse_topic_name("topic", topic)]
        counts: dict[tuple[str, str, str, str], int] = {}
        for name in topics:
            try:
                plan = self._plan(name)
            except UnknownTopicOrPartition:
                if topic is not None:
                    raise
                continue  # deleted meanwhile
            spans = self._find_open(plan)
            for partition, first, end, cause in _dead_segments(plan):
                count = sum(until - begin for begin, until in spans[partition].within(first, end))
                key = name, cause.group, cause.reason, cause.topic
                counts[key] = counts.get(key, 0) + count
        return [DeadLetterCount(*key, count) for key, count in sorted(counts.items()) if count]

    def all(self, topic: str, where: str | None = None, limit: int | None = None) -> pa.Table:
        """Return the open dead letters of a topic, by partition and offset.

        Args:
            topic: a dead-letter topic.
            where: a condition.
            limit: the most rows; no more files are read than these rows need.

        Returns:
            A table with COLUMNS.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            InvalidRequest: an argument is not valid.
        """
        condition = _parse_condition(where)
        max_rows = None if limit is None else parse_whole_number("limit", limit, 0)
        plan = self._plan(parse_topic_name("topic", topic))
        parts, count = [COLUMNS.empty_table()], 0
        for part in self._read_rows(plan, self._find_open(plan), condition):
            parts.append(part)
            count += part.num_rows
            if max_rows is not None and count >= max_rows:
                break
        return pa.concat_tables(parts).slice(0, max_rows)

    def redrive(
        self, topic: str, where: str | None = None, *, dry_run: bool = False, rate_per_s: int | None = None
    ) -> Redriven:
        """Send open dead letters back to their source topics. Each is sent once, even if several callers ask for it.

        They become new messages at the end of the source topic, in the partition with the old number. They refer to the
        stored rows, which are not copied.

        Args:
            topic: a dead-letter topic.
            where: a condition; left out, all open dead letters of the topic.
            dry_run: only count them.
            rate_per_s: the most that are sent in a second.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            UnknownTopicId: the topic was deleted and created again meanwhile.
            InvalidRequest: an argument is not valid.
            RequestTimedOut: no sequencer has answered. Some may have been sent back: call it again.
        """
        condition = _parse_condition(where)
        rate = None if rate_per_s is None else parse_whole_number("rate_per_s", rate_per_s, 1)
        selection = self._select(parse_topic_name("topic", topic), condition, needs_source=True)
        if parse_flag("dry_run", dry_run):
            return Redriven(selection.messages, 0, selection.without_topic)
        count = 0
        for ranges in _split_by_second(selection.spans, rate):
            begun_ms = self._clock.steady_ms()
            count += self._settle(selection, ranges, purge=False)
            if rate is not None:
                self._clock.sleep(max(0, begun_ms + _SECOND_MS - self._clock.steady_ms()))
        return Redriven(count, self._wait_for_publication(selection), selection.without_topic)

    def purge(self, topic: str, where: str | None = None, *, dry_run: bool = False) -> int:
        """Close open dead letters: they are shown no more, and cannot be sent back.

        They stay in the log of the topic for as long as its retention says.

        Args:
            topic: a dead-letter topic.
            where: a condition; left out, all open dead letters of the topic.
            dry_run: only count them.

        Returns:
            How many there were.

        Raises:
            UnknownTopicOrPartition, UnknownTopicId, InvalidRequest, RequestTimedOut: as with `redrive`.
        """
        selection = self._select(parse_topic_name("topic", topic), _parse_condition(where), needs_source=False)
        if parse_flag("dry_run", dry_run):
            return selection.messages
        return sum(self._settle(selection, ranges, purge=True) for ranges in _split_by_second(selection.spans, None))

    def _find_topics(self) -> list[str]:
        """Return all dead-letter topics: those that topics name now, and those that have dead letters of the past."""
        topic_ids = self._fetcher().read_dead_letter_topic_ids()

        def find(state: State) -> list[str]:
            stored = {state.topics[topic_id].topic for topic_id in topic_ids if topic_id in state.topics}
            return sorted(name for name in _list_dead_letter_topics(state) | stored if name in state.topic_ids)

        return self._fetcher().query(find)

    def _check_kind(self, topic: str) -> None:
        """Raise InvalidRequest if this is no dead-letter topic."""
        topics = self._find_topics()
        if topic not in topics and not topic.endswith(SUFFIX):
            near = topic + SUFFIX
            raise InvalidRequest(
                f"Topic {topic!r} is no dead-letter topic.",
                found=topic,
                expected=near if near in topics else ", ".join(topics) or "a topic that a queue group has filled",
            )

    # -- selecting --------------------------------------------------------------------------------------

    def _plan(self, topic: str) -> FetchPlan:
        # Expired messages are included, because `_read_rows` finds the cause of a row by its number in the plan.
        try:
            return self._fetcher().plan(topic, "read_committed", "earliest", "latest", include_expired=True)
        except UnknownTopicOrPartition as error:
            if topic not in self._fetcher().query(_list_dead_letter_topics):
                raise
            detail = f"Dead-letter topic {topic!r} does not exist: no message has died yet, or it was deleted."
            raise type(error)(detail, found=topic) from None

    def _find_open(self, plan: FetchPlan) -> dict[int, Spans]:
        """Return the offsets of open dead letters in the plan, by partition."""
        spans_by_partition: dict[int, Spans] = {}
        for partition, first, end, _ in _dead_segments(plan):
            spans_by_partition.setdefault(partition, Spans()).add(first, end)

        def find_closed_spans(state: State) -> list[tuple[int, int, int]]:
            topic = state.topics.get(plan.topic_id)
            if topic is None:
                raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=plan.topic)
            return [
                (partition, *span)
                for partition, redrives in topic.redrives.items()
                for span in [
                    (0, redrives.start),
                    *(part.span for part in redrives.stretches if part.status is not DeliveryStatus.AVAILABLE),
                ]
            ]

        for partition, first, end in self._fetcher().query(find_closed_spans):
            if partition in spans_by_partition:
                spans_by_partition[partition].remove(first, end)
        return spans_by_partition

    def _select(self, topic: str, condition: Predicate | None, needs_source: bool) -> _Selection:
        """Select open dead letters for which the condition holds; needs_source: whose source topic exists."""
        plan = self._plan(topic)
        spans = self._find_open(plan)
        if not spans:
            self._check_kind(topic)
        if condition is not None:
            spans = _find_spans(self._read_rows(plan, spans, condition))
        if not needs_source:
            return _Selection(plan.topic, plan.topic_id, spans, 0)
        count = _count(spans)
        sources = {cause.topic for *_, cause in _dead_segments(plan)}
        existing = self._fetcher().query(lambda state: {name for name in sources if name in state.topic_ids})
        for partition, first, end, cause in _dead_segments(plan):
            if cause.topic not in existing and partition in spans:
                spans[partition].remove(first, end)
        return _Selection(plan.topic, plan.topic_id, spans, count - _count(spans))

    def _read_rows(
        self, plan: FetchPlan, spans: Mapping[int, Spans], condition: Predicate | None
    ) -> Iterator[pa.Table]:
        """Yield the rows (COLUMNS) at these offsets for which the condition holds, piece by piece."""
        segment_indices = segment_index_per_row(plan.segments)
        causes = [
            None if text is None else decode_cause(text) for text in plan.segments.column("dead_letter").to_pylist()
        ]
        cause_columns = {
            name: pa.array(
                [cause and getattr(cause, _CAUSES.get(name, name)) for cause in causes], COLUMNS.field(name).type
            )
            for name in ("consumer_group", "reason", "error", "delivery_count", "source_topic", "source_partition")
        }
        source_offsets, begin = compute_source_offsets(plan.segments, segment_indices), 0
        for piece in self._fetcher().open_plan(plan).pieces():
            end = begin + piece.num_rows
            index = pa.array(segment_indices[begin:end])
            columns: dict[str, Any] = {name: column.take(index) for name, column in cause_columns.items()}
            columns["source_offset"] = source_offsets.slice(begin, piece.num_rows)
            columns |= {name: piece.column(name) for name in COLUMNS.names if name not in columns}
            rows = pa.table([columns[name] for name in COLUMNS.names], schema=COLUMNS)
            rows = rows.filter(pa.array(_are_within(rows, spans)))
            if rows.num_rows:
                yield rows if condition is None else condition.select_rows(rows)
            begin = end

    # -- settling ---------------------------------------------------------------------------------------

    def _settle(self, selection: _Selection, ranges: Mapping[int, Sequence[Range]], purge: bool) -> int:
        """Redrive or purge these ranges; return how many dead letters were still open."""
        topic, topic_id = selection.topic, selection.topic_id
        requests = [
            SettleDeadLetters(topic, topic_id, {partition: list(in_partition[i : i + _REQUEST_RANGES])}, purge)
            for partition, in_partition in ranges.items()
            for i in range(0, len(in_partition), _REQUEST_RANGES)
        ]
        count = 0
        for future in self._requester.submit_all([(request, None) for request in requests]):
            answer = future.result()
            assert isinstance(answer, DeadLettersJudged)
            count += answer.count
        return count

    def _wait_for_publication(self, selection: _Selection) -> int:
        """Wait until the dead letters are in their source topics; return how many are not when the time is over."""
        ranges = {
            partition: [(first, end - first) for first, end in spans] for partition, spans in selection.spans.items()
        }

        def count_dying(state: State) -> int:
            topic = state.topics.get(selection.topic_id)
            redrives = {} if topic is None else topic.redrives
            return sum(
                part.length
                for partition, in_partition in ranges.items()
                if partition in redrives and redrives[partition].dying_count
                for part in redrives[partition].find_stretches(in_partition)
                if part.status is DeliveryStatus.DYING
            )

        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        while (count := self._fetcher().query(count_dying)) and self._clock.steady_ms() < deadline_ms:
            self._clock.sleep(_LOOK_MS)
        return count


def _list_dead_letter_topics(state: State) -> set[str]:
    """Return the names of the dead-letter topics of all topics. One is created when the first message dies."""
    return {topic.setting("dead.letter.topic") or topic.topic + SUFFIX for topic in state.topics.values()}


def _count(spans: Mapping[int, Spans]) -> int:
    return sum(map(len, spans.values()))


def _parse_condition(where: Any) -> Predicate | None:
    return None if where is None else Predicate(parse_text("where", where), COLUMNS)


def _dead_segments(plan: FetchPlan) -> Iterator[tuple[int, int, int, Cause]]:
    """Yield partition, first offset, end offset (exclusive) and cause of each segment of dead letters."""
    names = ("partition", "base_offset", "record_count", "dead_letter")
    for partition, first, count, cause in zip(*(plan.segments.column(n).to_pylist() for n in names), strict=True):
        if cause is not None:
            yield partition, first, first + count, decode_cause(cause)


def _are_within(rows: pa.Table, spans: Mapping[int, Spans]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the rows whose offset is in the spans of its partition."""
    partitions, offsets = rows.column("partition").to_numpy(), rows.column("offset").to_numpy()
    mask = np.zeros(rows.num_rows, np.bool_)
    for partition, in_partition in spans.items():
        bounds = np.array(list(in_partition), np.int64).reshape(-1, 2)
        if not len(bounds):
            continue
        index = np.searchsorted(bounds[:, 0], offsets, side="right") - 1
        mask |= (partitions == partition) & (index >= 0) & (offsets < bounds[np.maximum(index, 0), 1])
    return mask


def _find_spans(parts: Iterator[pa.Table]) -> dict[int, Spans]:
    """Return the offsets of these rows, by partition."""
    offsets_by_partition: dict[int, list[int]] = {}
    for rows in parts:
        for partition in rows.column("partition").unique().to_pylist():
            is_of_partition = rows.column("partition").to_numpy() == partition
            offsets = rows.column("offset").to_numpy()[is_of_partition].tolist()
            offsets_by_partition.setdefault(partition, []).extend(offsets)
    return {partition: Spans(group_into_spans(offsets)) for partition, offsets in offsets_by_partition.items()}


def _split_by_second(spans: Mapping[int, Spans], rate: int | None) -> Iterator[dict[int, list[Range]]]:
    """Yield ranges by partition, of at most `rate` offsets in all at a time; all at once without a rate."""
    room, batch = rate or 0, dict[int, list[Range]]()
    for partition, in_partition in sorted(spans.items()):
        for first, end in in_partition:
            while first < end:
                count = end - first if rate is None else min(end - first, room)
                batch.setdefault(partition, []).append((first, count))
                first, room = first + count, room - count
                if rate is not None and not room:
                    yield batch
                    room, batch = rate, {}
    if batch:
        yield batch
