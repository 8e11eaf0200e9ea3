"""Schedules: create, pause, resume and delete them, and publish their occurrences.

Invariant: each occurrence is decided once. The record that publishes its message also moves the schedule to the next
one, in one step. So neither a take-over nor a repeated look can publish it again. The record has both times: folding
needs no library and no time zones, and another version of the time-zone database changes no decision that is made.

Cron expressions mean what they mean to Debian's cron, a Vixie cron. If minute and hour are fixed, a local time that a
change of the clocks leaves out occurs at the first minute after it, and one that comes twice occurs the first time. If
one of them is `*` or `*/n`, occurrences follow the time that passes: in an hour that comes twice they come twice.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from ..errors import (
    InvalidRequest,
    InvalidSchedule,
    MessageTooLarge,
    ScheduleAlreadyExists,
    StaleTopicMetadata,
    StorageError,
)
from ..hashing import partition_few_keys
from ..names import MAX_LENGTH, find_reached_topics, is_name, shorten
from ..values.base import Done
from ..values.decision import Decision, DecisionInputs
from ..values.journal import JournalEntry
from ..values.log import Produce, Ranges
from ..values.schedules import (
    MAX_MESSAGE_BYTES,
    MAX_SCHEDULES,
    SCHEDULE_TRANSITIONS,
    CreateSchedule,
    DeleteSchedule,
    DueOccurrence,
    MissedPolicy,
    OccurrenceDecided,
    PauseSchedule,
    ResumeSchedule,
    Schedule,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleDone,
    ScheduleEvent,
    SchedulePaused,
    ScheduleResumed,
    ScheduleStatus,
)
from ..values.segments import Segments
from ..values.state import State
from ..values.topics import Topic, TopicRef
from .log import decide_produce
from .timers import Folds, Rules, Timers

# Times: the occurrences of a cron expression.


_MAX_CRON, _MAX_ZONE = 256, 64
"""Characters of an expression and of the name of a time zone: longer ones take too long to parse."""
_FIELDS = "five fields: minute, hour, day of month, month, day of week, such as '0 8 * * MON-FRI'"
MISSED_AFTER_MS = 60_000
"""An occurrence is missed if it could not be published within this time. A cron expression has no shorter step."""


def _iterate_occurrences(cron: str, time_zone: str, after_ms: int) -> Iterator[int]:
    """Yield the occurrences after a time, in order. Raises InvalidSchedule, StorageError."""
    if len(cron) > _MAX_CRON or len(cron.split()) != 5:
        raise InvalidSchedule("This is not a cron expression.", found=shorten(cron), expected=_FIELDS)
    zone, last_ms = _find_zone(time_zone), after_ms
    after = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone)
    try:
        times = CronSim(cron, after)
    except CronSimError as error:
        raise InvalidSchedule(
            f"This is not a cron expression: {error}.", found=shorten(cron), expected=_FIELDS
        ) from None
    for at in times:
        at_ms = int(at.timestamp()) * 1000
        if at_ms > last_ms:  # by a clock that is put back, it begins with times that are over
            last_ms = at_ms
            yield at_ms


def _find_zone(name: str) -> ZoneInfo:
    """Return a time zone. Raises InvalidSchedule: there is none of this name. StorageError: it cannot be read now."""
    expected = "a name of the IANA database, such as 'Europe/Berlin'"
    if not 1 <= len(name) <= _MAX_ZONE:
        raise InvalidSchedule("The time zone is not known.", found=shorten(name), expected=expected)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, IsADirectoryError, NotADirectoryError):
        raise InvalidSchedule("The time zone is not known.", found=name, expected=expected) from None
    except OSError as error:  # such as too many open files
        text = f"The sequencer cannot read its file of the time zone {name}."
        raise StorageError(text, found=error.strerror or type(error).__name__) from error


def find_next_ms(cron: str, time_zone: str, after_ms: int) -> int:
    """Return the first occurrence after a time. Raises InvalidSchedule, StorageError."""
    for at_ms in _iterate_occurrences(cron, time_zone, after_ms):
        return at_ms
    raise InvalidSchedule("The cron expression never occurs.", found=cron, expected="a date that exists")


def _find_times(schedule: Schedule, now_ms: int) -> tuple[int, int]:
    """Return the last occurrence up to now of a schedule that is due, and the next one.

    Raises InvalidSchedule, StorageError.

    Half a million may have been missed in a year, so this halves the time in which the last one is.
    """
    last_ms, end_ms = schedule.next_at_ms, now_ms  # there is none after `end_ms` up to now
    while (next_ms := find_next_ms(schedule.cron, schedule.time_zone, last_ms)) <= now_ms:
        middle_ms = (next_ms + end_ms) // 2
        later_ms = find_next_ms(schedule.cron, schedule.time_zone, middle_ms)
        if later_ms <= now_ms:
            last_ms = later_ms
        else:
            last_ms, end_ms = next_ms, middle_ms
    return last_ms, next_ms


def find_due_occurrences(state: State, now_ms: int, most: int) -> list[DueOccurrence]:
    """Return what is due, at most so many schedules, the earliest first. For the leader, before it prepares a step."""
    due = state.schedules.list_due(now_ms)[:most]
    return [_find_occurrence(state, schedule, now_ms, state.step + number) for number, schedule in enumerate(due)]


def _find_occurrence(state: State, schedule: Schedule, now_ms: int, start: int) -> DueOccurrence:
    """Return a due occurrence. start: where partitions of messages without a key begin to take turns."""
    try:
        last_ms, next_at_ms = _find_times(schedule, now_ms)
    except StorageError as error:
        return DueOccurrence(schedule, error=str(error), may_pass=True)
    except Exception as error:  # this machine's time zones may differ; one schedule must not hold up the others
        return DueOccurrence(schedule, error=f"Its next time cannot be computed: {error}")
    if schedule.missed is MissedPolicy.SKIP and now_ms - last_ms >= MISSED_AFTER_MS:
        return DueOccurrence(schedule, None, next_at_ms)
    names = find_reached_topics(schedule.topic, state.topic_ids, state.subscribers)
    copies = tuple(_place(state.topic(name), schedule, start) for name in names)
    return DueOccurrence(schedule, last_ms, next_at_ms, copies, state.step)


def _place(topic: Topic, schedule: Schedule, start: int) -> tuple[TopicRef, int]:
    ref = TopicRef(topic.topic, topic.topic_id, topic.partition_count)
    (partition,) = partition_few_keys([schedule.key], ref.partition_count, topic.setting("partitioner"), start)
    return ref, partition


# Requests.


def decide_create(state: State, request: CreateSchedule, inputs: DecisionInputs) -> Decision:
    """Create a schedule. Its first occurrence is the first after now.

    Raises InvalidSchedule, ScheduleAlreadyExists, UnknownTopicOrPartition, MessageTooLarge, InvalidRequest,
    StorageError.
    """
    if not is_name(request.name):
        raise InvalidSchedule(
            "This is not a name of a schedule.",
            found=shorten(request.name),
            expected=f"1 to {MAX_LENGTH} of [A-Za-z0-9._-], not '.' or '..'",
        )
    if (existing := state.schedules.get(request.name)) is not None:
        raise ScheduleAlreadyExists(
            f"The schedule {existing.name} exists: {existing.cron!r} in {existing.time_zone} to {existing.topic}.",
            found=existing.name,
            expected="another name, or delete it first",
        )
    if len(state.schedules) >= MAX_SCHEDULES:
        raise InvalidRequest(
            "The namespace has as many schedules as it may have.",
            found=len(state.schedules),
            expected=f"at most {MAX_SCHEDULES}: delete one first",
        )
    topic = state.topic(request.topic)
    _check_size(topic, request)
    next_at_ms = find_next_ms(request.cron, request.time_zone, state.now_ms)
    schedule = Schedule(topic_id=topic.topic_id, next_at_ms=next_at_ms, **msgspec.structs.asdict(request))
    return Decision(ScheduleDone(next_at_ms), (JournalEntry(ScheduleCreated(schedule)),))


def _check_size(topic: Topic, request: CreateSchedule) -> None:
    size = len(request.key or b"") + len(request.value or b"")
    size += sum(len(name.encode()) + len(value or b"") for name, value in request.headers)
    most = min(MAX_MESSAGE_BYTES, topic.setting("max.message.bytes"))
    if size > most:
        raise MessageTooLarge(
            "Key, value and headers of a recurring message are too large.",
            found=f"{size} bytes",
            expected=f"at most {most}. Put the data elsewhere, and its address into the message",
        )


def decide_pause(state: State, request: PauseSchedule, inputs: DecisionInputs) -> Decision:
    """Pause a schedule. One that is paused stays so. Raises UnknownSchedule."""
    if state.schedules.find(request.name).status is ScheduleStatus.PAUSED:
        return Decision(Done())
    return Decision(Done(), (JournalEntry(SchedulePaused(request.name, "paused by request")),))


def decide_resume(state: State, request: ResumeSchedule, inputs: DecisionInputs) -> Decision:
    """Let a schedule go on. What it has missed is decided with its next occurrence. Raises UnknownSchedule."""
    if state.schedules.find(request.name).status is ScheduleStatus.ACTIVE:
        return Decision(Done())
    return Decision(Done(), (JournalEntry(ScheduleResumed(request.name)),))


def decide_delete(state: State, request: DeleteSchedule, inputs: DecisionInputs) -> Decision:
    """Delete a schedule. Raises UnknownSchedule."""
    return Decision(Done(), (JournalEntry(ScheduleDeleted(state.schedules.find(request.name).name)),))


def decide_occurrence(state: State, due: DueOccurrence, inputs: DecisionInputs) -> Decision:
    """Publish a due occurrence. inputs.inline: a row for each of its copies.

    If the schedule or its topics have changed since the leader has looked, nothing happens, and the next step looks
    again. So it does if an error may pass.
    """
    schedule = state.schedules.get(due.schedule.name)
    if schedule is None or schedule != due.schedule or due.may_pass:
        return Decision(Done())
    if due.error:
        return Decision(Done(), (JournalEntry(SchedulePaused(schedule.name, due.error)),))
    record = OccurrenceDecided(schedule.name, due.at_ms, due.next_at_ms)
    if not due.copies:
        return Decision(Done(), (JournalEntry(record),))
    refs, partitions = map(list, zip(*due.copies, strict=True))
    n, now_ms = len(refs), [state.now_ms] * len(refs)
    ranges = Ranges(list(range(n)), partitions, [-1] * n, list(range(n)), [1] * n, now_ms, now_ms)
    try:  # the rows get their offsets as those of any publish do
        published = decide_produce(state, Produce(refs, ranges, due.metadata_step), inputs)
    except StaleTopicMetadata:
        return Decision(Done())
    return Decision(Done(), (JournalEntry(record, published.entries[-1].segments),))


# Folding.


def add_schedule(state: State, record: ScheduleCreated, segments: Segments) -> None:
    state.put_schedule(record.schedule)


def pause_schedule(state: State, record: SchedulePaused, segments: Segments) -> None:
    _move(state, record.name, ScheduleEvent.PAUSE, record.reason)


def resume_schedule(state: State, record: ScheduleResumed, segments: Segments) -> None:
    _move(state, record.name, ScheduleEvent.RESUME, None)


def _move(state: State, name: str, event: ScheduleEvent, reason: str | None) -> None:
    schedule = state.schedules.get(name)
    if schedule is not None:  # a reader does not know those that were there before it began
        status = SCHEDULE_TRANSITIONS.move(schedule.status, event)
        state.put_schedule(msgspec.structs.replace(schedule, status=status, reason=reason))


def delete_schedule(state: State, record: ScheduleDeleted, segments: Segments) -> None:
    state.remove_schedule(record.name)


def advance_schedule(state: State, record: OccurrenceDecided, segments: Segments) -> None:
    state.advance_logs(segments)
    schedule = state.schedules.get(record.name)
    if schedule is not None:
        last_at_ms = schedule.last_at_ms if record.at_ms is None else record.at_ms
        moved = msgspec.structs.replace(schedule, next_at_ms=record.next_at_ms, last_at_ms=last_at_ms)
        state.put_schedule(moved)


DECIDE: Rules = {
    CreateSchedule: decide_create,
    PauseSchedule: decide_pause,
    ResumeSchedule: decide_resume,
    DeleteSchedule: decide_delete,
    DueOccurrence: decide_occurrence,
}
EVOLVE: Folds = {
    ScheduleCreated: add_schedule,
    SchedulePaused: pause_schedule,
    ScheduleResumed: resume_schedule,
    ScheduleDeleted: delete_schedule,
    OccurrenceDecided: advance_schedule,
}
TIMERS: Timers = ()
