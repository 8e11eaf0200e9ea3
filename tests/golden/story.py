"""Play a story: each line sends a request and checks the answer, or checks what can be seen then.

A word of a line is a method: `ask_WORD` builds a request, `see_WORD` returns what `expect` compares.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from golden.group_words import GroupWords
from golden.queue_words import QueueWords, format_range, parse_tp
from protocol_harness import Harness, plain
from protocol_reader import Reader

from lakemq.engine.protocol import errors, machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.dead_letters import DeadLettersJudged
from lakemq.engine.protocol.values.delays import CancelDelays, Delayed, DelayedRange, DelaysJudged, RescheduleDelays
from lakemq.engine.protocol.values.deliveries import AcknowledgementsJudged
from lakemq.engine.protocol.values.groups import MemberSilent, TargetComputed
from lakemq.engine.protocol.values.journal import JournalEntry
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import ApplicationVersion, Produce, Produced, Published, RejectedRows
from lakemq.engine.protocol.values.offsets import OffsetsChanged, OffsetsFetched, OffsetsJudged
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, TransactionRef, UnitAppended
from lakemq.engine.protocol.values.schedules import (
    CreateSchedule,
    DeleteSchedule,
    MissedPolicy,
    OccurrenceDecided,
    PauseSchedule,
    ResumeSchedule,
    ScheduleCreated,
)
from lakemq.engine.protocol.values.topics import (
    AlterTopic,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    LogOutgrown,
    RecordsDeleted,
    TopicDone,
    TopicRef,
)
from lakemq.engine.protocol.values.transactions import (
    AbortTransaction,
    EndTransaction,
    TransactionEnded,
    TransactionMoved,
    TransactionStatus,
)

DAY_MS = 86_400_000


def _rows_with(values: list[str], expected: str) -> list[int]:
    return [row for row, value in enumerate(values) if value == expected]


def _delayed_ranges(record: Any) -> list[DelayedRange]:
    return record.ranges.to_ranges() if isinstance(record, Delayed) else []


class StoryProducer:
    """A process: its identity, and the parts of its transaction that were accepted, which are publishes and groups."""

    def __init__(self) -> None:
        self.ref = TransactionRef("", 0, 0)
        self.publishes, self.groups = 0, set[str]()

    @property
    def parts(self) -> int:
        return self.publishes + len(self.groups)


class Story(GroupWords, QueueWords):
    def __init__(self) -> None:
        self.mq, self.reader = Harness(), Reader()
        self.values: dict[int, list[str]] = {}
        self.producers: dict[str, StoryProducer] = {}
        self.published: list[Produce] = []
        self.due_times: dict[tuple[int, int], int] = {}
        self.read_steps = 0
        self.answers_at_once = True
        self.late_targets: list[TargetComputed] = []

    def tell(self, line: dict[str, Any]) -> None:
        line = dict(line)
        name, lost = line.pop("who", None), line.pop("answer_lost", None)
        answer = {word: line.pop(word, None) for word in ("gives", "found", "expected")}
        producer = self.producers.setdefault(name, StoryProducer()) if name else None
        (word, argument), *more = line.items()
        if word == "expect":
            for subject, expected in argument.items():
                assert getattr(self, f"see_{subject}")(expected) == expected, subject
        elif word == "wait_ms":
            self.mq.now_ms += argument
            self.mq.expire(DAY_MS, DAY_MS, 7 * DAY_MS)
        elif word == "clock":
            self.mq.now_ms = parse_time_ms(argument)
        elif word == "recur":
            self.mq.recur()
        elif word == "deliver":
            self.mq.release(self.due_times, argument or 1000)
        elif word == "silent":
            self.mq.see(MemberSilent(dict(more).get("group", "g"), argument, dict(more).get("reason", "session")))
        elif word == "bury":
            self.bury(argument, **dict(more))
        elif word == "outgrown":
            self._outgrow(argument, **dict(more))
        elif word == "assignor":
            self.mq.see(*self.late_targets) if argument == "answers" and self.late_targets else None
            self.late_targets = self.mq.targets() if argument == "asked" else []
            self.answers_at_once = argument == "answers"
        elif word == "as_if_in_epoch":
            self._pretend_epoch(producer, argument)
        elif word == "as_if_appended":
            self._pretend_append(**argument)
        elif word == "is":
            assert producer
            producer.ref = TransactionRef(argument["id"], argument["producer"], argument["epoch"])
        else:
            before = plain(self.mq.state) if isinstance(answer["gives"], str) else None
            result = self.mq.one(getattr(self, f"ask_{word}")(producer, argument, **dict(more)))
            self._check(result, **answer)
            if before is not None:
                assert_unchanged(before, plain(self.mq.state))
            if producer and not lost:
                self._note_result(producer, result, dict(more).get("group", "g"))
        if self.answers_at_once:
            self.mq.assign()

    def _outgrow(
        self,
        of: str | int,
        by_age: Mapping[str, int] | None = None,
        by_size: Mapping[str, int] | None = None,
        looked_by: Mapping[str, int] | None = None,
    ) -> None:
        """Let the leader find that a log is too old or too large.

        of: a topic, or the id of one that is gone; looked_by: settings other than its own.
        """
        topic = None if isinstance(of, int) else self.mq.state.topic(of)
        settings = looked_by or {
            name: topic.setting(name) if topic else 0 for name in ("retention.ms", "retention.bytes")
        }
        cuts = ({parse_tp(tp)[1]: offset for tp, offset in (ends or {}).items()} for ends in (by_age, by_size))
        self.mq.see(LogOutgrown(topic.topic_id if topic else int(of), *settings.values(), *cuts))

    def _check(self, result: AnyResult, gives: Any, found: Any, expected: Any) -> None:
        if isinstance(gives, str):
            name, *code = gives.split()
            assert isinstance(result, Refusal), result
            assert result.error == name
            assert [str(type(errors.error_from_refusal(result)).code)] == (code or ["None"])
            assert found in (None, result.found)
            assert expected in (None, result.expected)
            return
        assert not isinstance(result, Refusal), result
        if gives is not None:
            assert answer_of(result) == gives

    def _note_result(self, producer: StoryProducer, result: AnyResult, group: str) -> None:
        if isinstance(result, ProducerDone | TransactionEnded):
            identity = {"producer_id": result.producer_id, "producer_epoch": result.producer_epoch}
            producer.ref = msgspec.structs.replace(producer.ref, **identity)
            producer.publishes, producer.groups = 0, set()
        elif isinstance(result, Done | OffsetsJudged | AcknowledgementsJudged):
            producer.groups.add(group)
        elif isinstance(result, Published) and not result.duplicate:
            producer.publishes += 1

    def _pretend_epoch(self, producer: StoryProducer | None, epoch: int) -> None:
        """Pretend that so many transactions of the id have ended before."""
        assert producer
        producer.ref = msgspec.structs.replace(producer.ref, producer_epoch=epoch)
        moved = TransactionMoved(*msgspec.structs.astuple(producer.ref), TransactionStatus.EMPTY, 60_000)
        machine.fold(self.mq.state, [JournalEntry(moved)])

    def _pretend_append(
        self, topic: str, partition: int, producer: int, sequence: int, records: int, offset: int
    ) -> None:
        """Pretend that the producer has published up to here."""
        unit = UnitAppended(self.mq.state.topic(topic).topic_id, partition, sequence, records, offset)
        machine.fold(self.mq.state, [JournalEntry(Produced(topic, producer, 0, [unit]))])

    # -- requests ---------------------------------------------------------------------------------------

    def ask_create(self, _: Any, topic_partitions: dict[str, int], **more: Any) -> AnyRequest:
        ((topic, partitions),) = topic_partitions.items()
        return CreateTopic(topic, partitions, **more)

    def ask_alter(self, _: Any, topic: str, **changes: Any) -> AnyRequest:
        return AlterTopic(topic, **changes)

    def ask_delete(self, _: Any, topic: str) -> AnyRequest:
        return DeleteTopic(topic)

    def ask_schedule(
        self,
        _: Any,
        name: str,
        topic: str = "t",
        cron: str = "",
        zone: str = "UTC",
        missed: str = "once",
        bytes: int = 1,
    ) -> AnyRequest:
        """Create a schedule of messages with so many bytes."""
        return CreateSchedule(name, topic, cron, zone, MissedPolicy(missed), value=b"v" * bytes)

    def ask_pause_schedule(self, _: Any, name: str) -> AnyRequest:
        return PauseSchedule(name)

    def ask_resume_schedule(self, _: Any, name: str) -> AnyRequest:
        return ResumeSchedule(name)

    def ask_delete_schedule(self, _: Any, name: str) -> AnyRequest:
        return DeleteSchedule(name)

    def ask_delete_records(self, _: Any, offsets: dict[str, int]) -> AnyRequest:
        before = {parse_tp(tp): offset for tp, offset in offsets.items()}
        (topic,) = {topic for topic, _ in before}  # one topic at a time
        return DeleteRecords(topic, {partition: offset for (_, partition), offset in before.items()})

    def ask_init_producer(self, _: Any, given: None) -> AnyRequest:
        return InitProducer()

    def ask_init(self, producer: StoryProducer | None, name_or_repeat: Any, timeout_ms: int = 60_000) -> AnyRequest:
        name = _text_of(name_or_repeat)
        if producer:
            producer.ref = TransactionRef(name, 0, 0)
        return InitProducer(name, timeout_ms)

    def ask_publish(
        self,
        process: StoryProducer | None,
        values_by_tp: dict[str, list[str] | int],
        sequence: int | None = None,
        producer: int | None = None,
        epoch: int = 0,
        outside: bool = False,
        rejected: int = 0,
        stale: bool = False,
        hashed_to_partitions: int | None = None,
        file_is_missing: bool = False,
        application: Any = None,
        version: int = 1,
        target: str = "t",
        due: Mapping[str, list[int]] | None = None,
        known_step: int | None = None,
    ) -> AnyRequest:
        """Publish values.

        values_by_tp: tp -> the values, or only how many; producer, epoch: those of a producer that is not a
        process of the story; due: tp -> when its values are due, in order; known_step: the step up to which the
        client knows the topics, by default the last one.
        """
        values = {parse_tp(tp): _values(tp, values_or_count) for tp, values_or_count in values_by_tp.items()}
        file_id = len(self.values)
        self.values[file_id] = [value for of_partition in values.values() for value in of_partition]
        self.mq.missing = {file_id} if file_is_missing else set()
        ref = process.ref if process else None
        identity = (ref.producer_id, ref.producer_epoch) if ref and sequence is not None else None
        if producer is not None:
            identity = (producer, epoch)
        counts = {tp: len(of_partition) for tp, of_partition in values.items()}
        request = self.mq.produce_to(
            counts,
            file_id,
            None if outside else ref,
            identity,
            [sequence or 0] * len(counts),
            {parse_tp(tp): (times[0], times[-1]) for tp, times in (due or {}).items()},
        )
        if due:
            times = [
                ms
                for tp, values_or_count in values_by_tp.items()
                for ms in due.get(tp, [0] * len(_values(tp, values_or_count)))
            ]
            self.due_times |= {(file_id, row): ms for row, ms in enumerate(times)}
        if rejected:
            rows = [RejectedRows("t", 0, 0, rejected, "MESSAGE_TOO_LARGE", "big")]
            request = msgspec.structs.replace(request, rejected=rows)
        if stale:
            request = msgspec.structs.replace(request, topics=[TopicRef("t", 1, 99)])
        if hashed_to_partitions:
            refs = [TopicRef(ref.topic, ref.topic_id, hashed_to_partitions) for ref in request.topics]
            request = msgspec.structs.replace(request, topics=refs)
        if application is not None:
            request = msgspec.structs.replace(
                request, application=ApplicationVersion(_text_of(application), version, target)
            )
        if known_step is not None:
            request = msgspec.structs.replace(request, metadata_step=known_step)
        self.published.append(request)
        return request

    def ask_again(self, _: Any, number: int) -> AnyRequest:
        """Send a publish of the story once more, unchanged."""
        return self.published[number]

    def ask_commit(self, producer: StoryProducer, batch_id: int | None, parts: int | None = None) -> AnyRequest:
        return EndTransaction(producer.ref, True, producer.parts if parts is None else parts, batch_id)

    def ask_abort(self, producer: StoryProducer, batch_id: None) -> AnyRequest:
        return EndTransaction(producer.ref, False, producer.parts, batch_id)

    def ask_operator_aborts(self, _: Any, transactional_id: str) -> AnyRequest:
        return AbortTransaction(transactional_id)

    def ask_cancel(self, _: Any, values: list[str], reschedules: int = 0) -> AnyRequest:
        return CancelDelays(*self._receipts(values, reschedules))

    def ask_reschedule(self, _: Any, values: list[str], to: Sequence[int], reschedules: int = 0) -> AnyRequest:
        return RescheduleDelays(*self._receipts(values, reschedules), list(to))

    def _receipts(self, values: list[str], reschedules: int) -> list[list[int]]:
        """Return the columns of the messages' receipts after so many reschedules."""
        rows = [
            (file_id, row)
            for value in values
            for file_id, values_of_file in self.values.items()
            for row in _rows_with(values_of_file, value)
        ]
        ranges = [r for step in self.mq.steps for entry in step.entries for r in _delayed_ranges(entry.record)]
        receipts = [
            (range_.topic_id, range_.file_id, row, 0, reschedules)
            if reschedules
            else (range_.topic_id, range_.file_id, range_.first_row, row - range_.first_row, 0)
            for file_id, row in rows
            for range_ in ranges
            if range_.file_id == file_id and range_.first_row <= row < range_.first_row + range_.record_count
        ]
        return list(map(list, zip(*receipts, strict=True)))

    # -- views for expect -------------------------------------------------------------------------------

    def see_states(self, expected: dict[str, str]) -> dict[str, str]:
        transactions = self.mq.state.transactions
        return {name: transactions[name].status if name in transactions else "Dead" for name in expected}

    def see_moves(self, _: Any) -> list[str]:
        """Return the states in the rows of the transaction log."""
        records = [entry.record for step in self.mq.steps for entry in step.entries]
        return [record.status for record in records if isinstance(record, TransactionMoved)]

    def see_waiting(self, expected: dict[str, int]) -> dict[str, int]:
        """Return how many messages of each topic wait."""
        state = self.mq.state
        return {name: state.delays.pending.get(state.topic_ids.get(name, 0), 0) for name in expected}

    def see_pointer_ms(self, _: int) -> int:
        return self.mq.state.delays.pointer_ms

    def see_occurrences(self, expected: dict[str, list[str]]) -> dict[str, list[str]]:
        """Return the occurrences that were published, as local times with their offset."""
        records = [(entry.record, entry.segments) for step in self.mq.steps for entry in step.entries]
        published: dict[str, list[str]] = {name: [] for name in expected}
        zones: dict[str, ZoneInfo] = {}
        for record, segments in records:
            if isinstance(record, ScheduleCreated):
                zones[record.schedule.name] = ZoneInfo(record.schedule.time_zone)
            elif isinstance(record, OccurrenceDecided):
                assert bool(len(segments)) == (record.at_ms is not None)
                if record.at_ms is not None and record.name in published:
                    at = datetime.fromtimestamp(record.at_ms / 1000, zones[record.name])
                    published[record.name].append(at.isoformat(" ", "minutes"))
        return published

    def see_schedules(self, _: Any) -> dict[str, str]:
        """Return the states of schedules."""
        return {schedule.name: schedule.status.value for schedule in self.mq.state.schedules}

    def see_log_ends(self, expected: dict[str, int]) -> dict[str, int]:
        topic_partitions = {text: parse_tp(text) for text in expected}
        return {
            text: int(self.mq.state.topic(topic).high_watermarks[p]) for text, (topic, p) in topic_partitions.items()
        }

    def see_settings(self, expected: dict[str, Any]) -> dict[str, Any]:
        """Return the settings that topics do not have by default."""
        return {name: self.mq.state.topic(name).config for name in expected}

    def see_log_starts(self, expected: dict[str, int]) -> dict[str, int]:
        topic_partitions = {text: parse_tp(text) for text in expected}
        return {text: int(self.mq.state.topic(topic).log_starts[p]) for text, (topic, p) in topic_partitions.items()}

    def see_logs(self, expected: dict[str, list[str]]) -> dict[str, list[str]]:
        """Return the states of the partitions of topics."""
        topics = {name: self.mq.state.topic(name) for name in expected}
        return {name: [topic.status(p).value for p in range(topic.log_count)] for name, topic in topics.items()}

    def see_deleted_by(self, _: Any) -> list[Any]:
        """Return why the last step deleted records, and the new log starts."""
        records = [entry.record for entry in self.mq.steps[-1].entries]
        return [[record.reason, record.log_starts] for record in records if isinstance(record, RecordsDeleted)]

    def see_last_stable_offsets(self, expected: dict[str, int]) -> dict[str, int]:
        topic_partitions = {text: parse_tp(text) for text in expected}
        return {
            text: int(self.mq.state.topic(topic).last_stable_offsets[p])
            for text, (topic, p) in topic_partitions.items()
        }

    def see_read_committed(self, expected: dict[str, Any]) -> dict[str, Any]:
        return self._read(expected, "read_committed")

    def see_read_uncommitted(self, expected: dict[str, Any]) -> dict[str, Any]:
        return self._read(expected, "read_uncommitted")

    def _read(self, expected: dict[str, Any], isolation: str) -> dict[str, Any]:
        self.reader.follow(self.mq.steps[self.read_steps :])
        self.read_steps = len(self.mq.steps)
        values = {}
        for text in expected:
            topic, partition = parse_tp(text)
            rows = self.reader.read(self.mq.state.topic(topic), partition, isolation)
            values[text] = [self.values[row.file_id][row.row] for row in rows.values()]
        return values


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that a refused request has changed nothing, except that its transaction can then only be aborted."""
    for changed in ("step", "now_ms", "clients"):
        del before[changed], after[changed]
    failed = [name for name, transaction in after["transactions"].items() if transaction.error is not None]
    for changed in ("transactions", "ongoing", "has_transactions") if failed else ():
        del before[changed], after[changed]
    assert before == after


def parse_time_ms(text: str) -> int:
    """Return a time in ISO 8601 with an offset in milliseconds."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _text_of(text_or_repeat: Any) -> str:
    """Return a text, which a story may give as what to repeat, and how often."""
    if isinstance(text_or_repeat, dict):
        return str(text_or_repeat["repeat"] * text_or_repeat["times"])
    return str(text_or_repeat)


def _values(tp: str, values_or_count: list[str] | int) -> list[str]:
    return [f"{tp}#{i}" for i in range(values_or_count)] if isinstance(values_or_count, int) else values_or_count


def play(*lines: dict[str, Any]) -> Story:
    """Return the story after these lines."""
    story = Story()
    for line in lines:
        story.tell(line)
    return story


def answer_of(result: AnyResult) -> Any:
    """Return a result as a story writes it."""
    if isinstance(result, TopicDone):
        return {"topic_id": result.topic_id, "partitions": result.partitions}
    if isinstance(result, Published):
        offsets = {f"{unit.topic}-{unit.partition}": unit.base_offset for unit in result.units}
        return {"at": offsets, "duplicate": True} if result.duplicate else {"at": offsets}
    if isinstance(result, AcknowledgementsJudged):
        answer: dict[str, Any] = {"fenced": result.fenced, "invalid": result.invalid}
        if result.refused:
            answer["refused"] = [[format_range(*range_) for range_ in ranges] for ranges in result.refused]
        return answer
    if isinstance(result, DeadLettersJudged):
        return {"count": result.count}
    if isinstance(result, DelaysJudged):
        outcomes: dict[str, Any] = {"outcomes": [outcome.value for outcome in result.outcomes]}
        return {**outcomes, "due_ms": result.due_ms} if result.due_ms else outcomes
    if isinstance(result, OffsetsJudged):
        return {"fenced": result.fenced}
    if isinstance(result, OffsetsChanged):
        return {f"{change.topic}-{change.partition}": [change.before, change.after] for change in result.changes}
    if isinstance(result, OffsetsFetched):
        return {f"{fetched.topic}-{fetched.partition}": fetched.offset for fetched in result.offsets}
    assert isinstance(result, ProducerDone | TransactionEnded)
    answer: dict[str, Any] = {"producer": result.producer_id, "epoch": result.producer_epoch}
    if isinstance(result, ProducerDone):
        return answer if result.batch_id < 0 else {**answer, "last_batch": result.batch_id}
    return {**answer, "duplicate": True} if result.duplicate else answer
