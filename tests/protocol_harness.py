"""The pure protocol in memory: send requests, and look at answers and decisions. No store, no clock, no files.

Every step goes through the codec before it changes the state, as a request goes through the mailbox and a decision
through the journal.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from copy import copy, deepcopy
from dataclasses import asdict, fields
from typing import Any

import msgspec

from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.waiting_rows import DueRun
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.codec.few_rows import Rows
from lakemq.engine.protocol.codec.letter import decode_letter, encode_letter
from lakemq.engine.protocol.codec.steps import (
    StepHead,
    decode_step_object,
    decode_steps,
    encode_step_object,
    encode_steps,
)
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.rules import clients
from lakemq.engine.protocol.rules.schedules import find_due_occurrences
from lakemq.engine.protocol.rules.timers import ObservedWaits, Time
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.dead_letters import DyingFound, RowLocation
from lakemq.engine.protocol.values.decision import DecisionInputs, InlineRows, Limits
from lakemq.engine.protocol.values.delays import DelayedRange
from lakemq.engine.protocol.values.groups import TargetComputed
from lakemq.engine.protocol.values.journal import JournalEntry, Step
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import (
    ApplicationVersion,
    DataFile,
    PendingFile,
    Produce,
    Ranges,
    RejectedRows,
    RowsJournaled,
)
from lakemq.engine.protocol.values.producers import (
    InitProducer,
    ProducerDone,
    ProducerSequences,
    TransactionRef,
    waiting_unit,
)
from lakemq.engine.protocol.values.schedules import DueOccurrence
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import CreateTopic, TopicRef
from lakemq.engine.sequencer.assignments import PlugInThreads, TargetAssignments
from lakemq.engine.sequencer.delay_queue import DelayQueue
from lakemq.engine.sequencer.step_decider import Observation, decide_recurring
from lakemq.tables.specs.messages import SEQUENCERS_FILES, FileFacts
from lakemq.tables.specs.topics import SEGMENT_SCHEMA

HOUR_MS = 3_600_000

F, G, H = 1, 2, 3
"""Ids of data files that publishers wrote. A request names F unless it says otherwise."""


def letter_bytes(letter: Letter, rows: Rows | None = None) -> bytes:
    """Encode a letter whose requests need no check."""
    rows_begin = [request.first_row if isinstance(request, Produce) else 0 for request in letter.requests]
    requests = list(zip(rows_begin, map(msgspec.json.encode, letter.requests), strict=True))
    return encode_letter(letter.client_id, letter.number, requests, letter.sent_at_ms, rows, letter.namespace_id)


class AtOnce(Executor):
    """An executor that runs work at once, before `submit` returns."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Harness:
    """The state of one sequencer. `missing`: ids of files that are not in the store."""

    def __init__(self) -> None:
        self.state, self.steps = State(), list[Step]()
        self.now_ms, self.missing = 1_000, set[int]()
        self.waits = ObservedWaits()
        self._letters = 0

    def ask(self, *requests: AnyRequest, inline_rows: int = 0, client: str = "", number: int = 0) -> list[AnyResult]:
        """Decide a letter with these requests in a step of its own, and return their results."""
        self._letters += 1
        sent = Letter(client or f"client-{self._letters}", number or 1, list(requests), self.now_ms)
        letter = decode_letter(letter_bytes(sent))[0]
        named = [f for r in letter.requests if isinstance(r, Produce) for f in r.files]
        facts = {f.file_id: None if f.file_id in self.missing else facts_of(f) for f in named}
        machine.begin_step(self.state, self.now_ms)
        inline = inline_file(self._letters, inline_rows) if inline_rows else None
        entries = machine.decide_letter(self.state, letter, DecisionInputs(inline=inline, facts=facts))
        answer = entries[-1].record
        entries += machine.decide_group_changes(self.state)
        if inline is None:
            self.land(entries)
        else:
            riding = RowsJournaled(inline.file.file_id, inline.first_row, inline_rows)
            self.land([JournalEntry(riding), *entries], rows=b"%d rows" % inline_rows)
        return list(answer.results)  # type: ignore[union-attr]

    def land(self, entries: list[JournalEntry], rows: bytes | None = None) -> None:
        """Put the step into the log, and its entries into the journal."""
        step = Step(self.state.step, self.state.now_ms, self.state.leader_epoch, entries, rows)
        head = StepHead(1, "", "", step.step, step.decided_at_ms, "", step.leader_epoch, 0)
        decoded_head, decoded_step = decode_step_object(encode_step_object(head, step))
        assert (decoded_head, decoded_step) == (head, step)
        assert decode_steps(encode_steps([step])) == [msgspec.structs.replace(step, rows=None)]
        self.steps.append(decoded_step)
        self.waits.observe(machine.find_watched_waits(self.state), self.now_ms)

    def one(self, request: AnyRequest, **options: Any) -> AnyResult:
        (result,) = self.ask(request, **options)
        return result

    def refused(self, request: AnyRequest, **options: Any) -> Refusal:
        """Return the refusal of a request. Check that the request changes nothing but the state of its client."""
        before, count = plain(self.state), len(self.steps)
        result = self.one(request, **options)
        assert isinstance(result, Refusal), result
        kinds = [entry.record.kind for step in self.steps[count:] for entry in step.entries]
        # rows that travel in a letter are journaled before it is decided
        assert [kind for kind in kinds if kind != "rows_journaled"] == ["answered"]
        after = plain(self.state)
        for changed in ("step", "now_ms", "clients"):
            del before[changed], after[changed]
        assert before == after
        return result

    def expire(
        self, client_ms: int = HOUR_MS, producer_ms: int = HOUR_MS, transactional_id_ms: int = HOUR_MS
    ) -> list[str]:
        """Put a step in which only time passes, and return the kinds of its decisions."""
        now_ms = machine.begin_step(self.state, self.now_ms)
        time = Time(now_ms, self.now_ms, Limits(client_ms, producer_ms, transactional_id_ms), self.waits)
        due = machine.find_due(self.state, time)
        entries = machine.decide_timers(self.state, due, time)
        assert bool(due) == bool(entries)
        entries += machine.decide_group_changes(self.state)
        self.land(entries) if entries else None
        return [entry.record.kind for entry in entries]

    def dying(self, group: str, tp: tuple[int, int], ranges: Sequence[tuple[int, int]] | None = None) -> DyingFound:
        """Find the rows of a group's dying messages in a partition, or of `ranges`. Markers have no rows."""
        deliveries = self.state.find_deliveries(group, tp)
        if ranges is None:
            dying = deliveries.list_dying_stretches() if deliveries else []
            ranges = [(stretch.first, stretch.length) for stretch in dying]
        rows: list[RowLocation] = []
        empty: list[tuple[int, int]] = []
        for segment in sorted(self.segments(), key=lambda segment: segment["base_offset"]):
            if (segment["topic_id"], segment["partition"]) != tp:
                continue
            for begin, count in ranges:
                first, until = max(begin, segment["base_offset"]), min(begin + count, segment["last_offset"] + 1)
                if first < until and segment["kind"] == "data":
                    location = {name: segment[name] for name in RowLocation.__struct_fields__[2:]}
                    location["first_row"] += first - segment["base_offset"]
                    rows.append(RowLocation(first, until - first, **location))
                elif first < until:
                    empty.append((first, until - first))
        return DyingFound(group, *tp, rows, empty, [])

    def segments(self) -> list[dict[str, Any]]:
        """Return all segments of the journal."""
        all_segments = [entry.segments for step in self.steps for entry in step.entries]
        return [
            dict(zip(SEGMENT_SCHEMA.names, row, strict=True))
            for segments in all_segments
            for row in zip(*segments.lists(), strict=True)
        ]

    def see(self, *observations: Observation) -> list[str]:
        """Put a step with what the leader has noticed or computed by itself, and return the kinds of its decisions."""
        machine.begin_step(self.state, self.now_ms)
        entries = machine.decide_observations(self.state, observations)
        entries += machine.decide_group_changes(self.state)
        self.land(entries or machine.fold(self.state, [clients.decide_renew(self.state)]))
        return [entry.record.kind for entry in entries]

    def targets(self) -> list[TargetComputed]:
        """Compute the targets of all groups that need one."""
        targets = TargetAssignments(AtOnce(), PlugInThreads(), 5)
        targets.start_missing(self.state)
        return targets.take_targets()

    def assign(self) -> None:
        """Put steps until no group needs a target, and no partition can move."""
        while (computed := self.targets()) or self.state.list_moving_groups():
            kinds = self.see(*computed)
            assert computed or "partitions_moved" in kinds

    def release(self, due_times: Mapping[tuple[int, int], int] | None = None, most: int = 1000) -> list[str]:
        """Put a step that releases due messages, and return the kinds of its decisions.

        due_times: (file id, row) -> its due time, for ranges with several due times.
        """

        def read(ranges: Sequence[DelayedRange]) -> list[list[DueRun]]:
            return [_build_due_runs(range_, due_times or {}) for range_ in ranges]

        now_ms = machine.begin_step(self.state, self.now_ms)
        slots = DelayQueue(self.state.delays, read, AtOnce, _Still(), 120_000, most, 100_000)
        slots.read_ahead(self.state.delays, now_ms)
        slots.read_ahead(self.state.delays, now_ms)
        due = slots.take_due(self.state.delays, now_ms)
        entries = [] if due is None else machine.release_delays(self.state, due)
        self.land(entries or machine.fold(self.state, [clients.decide_renew(self.state)]))
        return [entry.record.kind for entry in entries]

    def recur(self, due: Sequence[DueOccurrence] | None = None) -> list[str]:
        """Put a step with what schedules publish, and return the kinds of its decisions.

        due: the occurrences that the leader found before the step. Default: all that are due.
        """
        due = find_due_occurrences(self.state, self.now_ms, 1000) if due is None else due
        machine.begin_step(self.state, self.now_ms)
        count = sum(len(occurrence.copies) for occurrence in due)
        file = PendingFile(SEQUENCERS_FILES | 1 << 40 | self.state.step, count)
        entries = decide_recurring(self.state, due, file, 0)
        riding = [JournalEntry(RowsJournaled(file.file_id, 0, count))] if count else []
        landed = [*riding, *entries] or machine.fold(self.state, [clients.decide_renew(self.state)])
        self.land(landed, rows=b"%d rows" % count if count else None)
        return [entry.record.kind for entry in entries]

    # -- requests ---------------------------------------------------------------------------------------

    def create(self, topic: str = "t", partitions: int = 1, **more: Any) -> int:
        """Create a topic and return its id."""
        result = self.one(CreateTopic(topic, partitions, **more))
        return int(result.topic_id)  # type: ignore[union-attr]

    def producer(self) -> int:
        result = self.one(InitProducer())
        assert isinstance(result, ProducerDone)
        return result.producer_id

    def begin(self, transactional_id: str, timeout_ms: int = 60_000) -> TransactionRef:
        """Fence the id's last producer, and return the reference of the new producer's transaction."""
        result = self.one(InitProducer(transactional_id, timeout_ms))
        assert isinstance(result, ProducerDone), result
        return TransactionRef(transactional_id, result.producer_id, result.producer_epoch)

    def current(self, transactional_id: str) -> TransactionRef:
        """Return the reference of the id's open transaction, or else of its next one."""
        transaction = self.state.transactions[transactional_id]
        return TransactionRef(transactional_id, transaction.producer_id, transaction.producer_epoch)

    def refs(self, *topics: str) -> list[TopicRef]:
        return [TopicRef(t.topic, t.topic_id, t.partition_count) for t in map(self.state.topic, topics)]

    def produce(
        self,
        counts: Mapping[int, int],
        topic: str = "t",
        producer: tuple[int, int] | None = None,
        sequence: int = 0,
        version: tuple[str, int] | None = None,
        rejected: int = 0,
        file_id: int = F,
        transaction: TransactionRef | None = None,
        due_ms: Mapping[int, tuple[int, int]] | None = None,
    ) -> Produce:
        """Build a request with rows of a file for one topic: partition -> count, in that order; then `rejected` rows.

        producer: id and epoch; every partition, and the rejected rows, start at `sequence`. version: application and
        version. transaction: the transaction to which the request belongs. due_ms: partition -> when its first and last
        rows are due.
        """
        request = self.produce_to(
            {(topic, partition): count for partition, count in counts.items()},
            file_id,
            transaction,
            producer,
            [sequence] * len(counts),
            {(topic, partition): due for partition, due in (due_ms or {}).items()},
        )
        if version:
            request = msgspec.structs.replace(request, application=ApplicationVersion(*version, topic))
        if rejected == 0:
            return request
        good = sum(counts.values())
        return msgspec.structs.replace(
            request,
            topics=self.refs(topic),
            files=[msgspec.structs.replace(request.files[0], record_count=good + rejected)],
            rejected=[RejectedRows(topic, 0, good, rejected, "MESSAGE_TOO_LARGE", "big")],
            producer=request.producer and msgspec.structs.replace(request.producer, rejected_sequence=sequence),
        )

    def produce_to(
        self,
        counts: Mapping[tuple[str, int], int],
        file_id: int,
        transaction: TransactionRef | None = None,
        producer: tuple[int, int] | None = None,
        sequences: Sequence[int] = (),
        due_ms: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    ) -> Produce:
        """Build a request with rows of a file for any topics: (topic, partition) -> count, in that order.

        sequences: one per tp, of `producer` (id and epoch). due_ms: tp -> when its first and last rows are due.
        """
        due = [(due_ms or {}).get(tp, (-1, -1)) for tp in counts]
        units = [waiting_unit(p) if first != -1 else p for (_, p), (first, _) in zip(counts, due, strict=True)]
        topics = sorted({topic for topic, _ in counts})
        columns = [topics.index(topic) for topic, _ in counts], [partition for _, partition in counts]
        rows = list(counts.values())
        return Produce(
            self.refs(*topics),
            Ranges(
                *columns,
                [0] * len(rows),
                [sum(rows[:i]) for i in range(len(rows))],
                rows,
                [1_000] * len(rows),
                [2_000] * len(rows),
                [first for first, _ in due],
                [last for _, last in due],
            ),
            self.state.step,
            [DataFile(file_id, 100, sum(rows), 1_000, 2_000, 7)],
            producer=ProducerSequences(*producer, columns[0], units, list(sequences)) if producer else None,
            transaction=transaction,
        )


class _Still(SystemClock):
    """A clock that stands still."""

    def steady_ms(self) -> int:
        return 0


def _build_due_runs(range_: DelayedRange, due_times: Mapping[tuple[int, int], int]) -> list[DueRun]:
    times = [due_times[range_.file_id, range_.first_row + i] for i in range(range_.record_count)]
    return [DueRun(ms, max(i for i, other in enumerate(times) if other == ms) + 1) for ms in sorted(set(times))]


def riding(request: Produce) -> Produce:
    """Return the same publish, with rows that travel in its letter instead of a file."""
    ranges = msgspec.structs.replace(request.ranges, file=[-1] * len(request.ranges.file))
    rejected = [msgspec.structs.replace(rows, file=-1) for rows in request.rejected]
    return msgspec.structs.replace(request, files=[], ranges=ranges, rejected=rejected)


def facts_of(file: DataFile) -> FileFacts:
    """Return what the store says about a file that its request describes truthfully."""
    return FileFacts(file.size_bytes, file.record_count, file.footer_hash)


def inline_file(number: int, rows: int) -> InlineRows:
    """Return the rows of a letter, in a file that begins with other rows."""
    return InlineRows(PendingFile(SEQUENCERS_FILES | number, rows + 20), 10, rows)


def plain(state: State) -> dict[str, Any]:
    """Return a state that can be compared: arrays as lists, nothing shared with the state."""
    topics = {}
    for topic_id, t in state.topics.items():
        topics[topic_id] = {
            **vars(t),
            "high_watermarks": list(map(int, t.high_watermarks)),
            "log_starts": list(map(int, t.log_starts)),
            "final_offsets": list(map(int, t.final_offsets)),
            "open_transactions": {p: dict(firsts) for p, firsts in t.open_transactions.items()},
        }
    producers = {i: {**vars(p), "units": dict(p.units)} for i, p in state.producers.items()}
    soft = ("topics", "producers", "shared_topics", "touched_groups", "delays", "schedules", "changes")
    shallow = {part.name: getattr(state, part.name) for part in fields(state) if part.name not in soft}
    return {
        **{name: copy(value) for name, value in shallow.items()},
        "topics": topics,
        "producers": producers,
        "delays": {
            "pointer_ms": state.delays.pointer_ms,
            "ranges": {range_.published.key: asdict(range_) for range_ in state.delays.ranges},
            "pending": dict(state.delays.pending),
            "open": {author: list(keys) for author, keys in state.delays.open.items()},
        },
        "schedules": {schedule.name: schedule for schedule in state.schedules},
        "transactions": deepcopy(state.transactions),
        "groups": deepcopy(state.groups),
        "deliveries": deepcopy(state.deliveries),
        "offsets": {group: dict(committed) for group, committed in state.offsets.items()},
        "applications": {key: asdict(version) for key, version in state.applications.items()},
        "clients": {key: vars(client).copy() for key, client in state.clients.items()},
    }
