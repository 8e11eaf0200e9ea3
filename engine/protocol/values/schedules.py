"""Schedules of recurring messages: their requests, records and state."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from ..errors import UnknownSchedule
from ..names import shorten
from .base import Record, Request, Result, Transitions
from .topics import TopicRef

MAX_SCHEDULES = 10_000
"""The most schedules of a namespace. The state has all of them."""
MAX_MESSAGE_BYTES = 16 << 10
"""The most bytes of key, value and headers of a recurring message, which the state has too."""

NAME_HEADER, TIME_HEADER = "schedule.name", "schedule.time"
"""Headers of a recurring message: its schedule, and the time of the occurrence in epoch milliseconds, as text."""

Header = tuple[str, bytes | None]


class MissedPolicy(StrEnum):
    """What happens to occurrences at which nothing could be published."""

    ONCE = "once"
    """One message stands for all of them."""
    SKIP = "skip"
    """They are left out."""


class ScheduleStatus(StrEnum):
    """The states of a schedule."""

    ACTIVE = "active"
    PAUSED = "paused"


class ScheduleEvent(StrEnum):
    """The events that change the state of a schedule."""

    PAUSE = "pause"
    """By request, or because the leader cannot compute its next time."""
    RESUME = "resume"


SCHEDULE_TRANSITIONS = Transitions(
    "A schedule",
    (ScheduleStatus.ACTIVE,),
    {
        ScheduleEvent.PAUSE: ({ScheduleStatus.ACTIVE}, ScheduleStatus.PAUSED),
        ScheduleEvent.RESUME: ({ScheduleStatus.PAUSED}, ScheduleStatus.ACTIVE),
    },
)


class CreateSchedule(Request, frozen=True, tag="create_schedule"):  # Decided by `rules/schedules.py`.
    """Publish a message to the topic at each time of the cron expression, in the time zone."""

    name: str
    topic: str
    cron: str
    time_zone: str = "UTC"
    missed: MissedPolicy = MissedPolicy.ONCE
    key: bytes | None = None
    value: bytes | None = None
    headers: list[Header] = []


class PauseSchedule(Request, frozen=True, tag="pause_schedule"):  # Decided by `rules/schedules.py`.
    name: str


class ResumeSchedule(Request, frozen=True, tag="resume_schedule"):  # Decided by `rules/schedules.py`.
    name: str


class DeleteSchedule(Request, frozen=True, tag="delete_schedule"):  # Decided by `rules/schedules.py`.
    name: str


class ScheduleDone(Result, frozen=True, tag="schedule"):
    next_at_ms: int


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """A schedule. `next_at_ms` is its next occurrence that is not decided, `last_at_ms` the last that was published.

    reason: why it is paused.
    """

    name: str
    topic_id: int
    topic: str
    cron: str
    time_zone: str
    missed: MissedPolicy
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    next_at_ms: int
    last_at_ms: int | None = None
    status: ScheduleStatus = ScheduleStatus.ACTIVE
    reason: str | None = None


class ScheduleRecord(Record, frozen=True):
    """Base of the records about a schedule."""

    name: str

    @property
    def subject(self) -> str:
        return self.name


class ScheduleCreated(Record, frozen=True, tag="schedule_created"):
    schedule: Schedule

    @property
    def subject(self) -> str:
        return self.schedule.name


class SchedulePaused(ScheduleRecord, frozen=True, tag="schedule_paused"):
    reason: str


class ScheduleResumed(ScheduleRecord, frozen=True, tag="schedule_resumed"):
    pass


class ScheduleDeleted(ScheduleRecord, frozen=True, tag="schedule_deleted"):
    pass


class OccurrenceDecided(ScheduleRecord, frozen=True, tag="occurrence_decided"):
    """All occurrences before `next_at_ms` are over. The segments are the message of the one at `at_ms`.

    at_ms: None if they were missed and are left out. Both times are stored, so that folding needs no time zones.
    """

    at_ms: int | None
    next_at_ms: int


@dataclass(frozen=True)
class DueOccurrence:
    """An occurrence that the leader has found to be due, and for which it has prepared rows.

    Attributes:
        schedule: as it was when the leader looked.
        at_ms: the occurrence to publish; None: all are missed and left out.
        next_at_ms: the first occurrence after now.
        copies: a topic and a partition for each row.
        metadata_step: the step as of which the topics were found.
        error: why the times cannot be computed; empty if they can.
        may_pass: whether the error may pass, so that the occurrence waits and the schedule stays active.
    """

    schedule: Schedule
    at_ms: int | None = None
    next_at_ms: int = 0
    copies: tuple[tuple[TopicRef, int], ...] = ()
    metadata_step: int = 0
    error: str = ""
    may_pass: bool = False


@dataclass
class ScheduleIndex:
    """The schedules of a namespace, by name."""

    _by_name: dict[str, Schedule] = field(default_factory=dict)
    _next_at_ms: int | None = field(default=None, compare=False)
    _is_stale: bool = field(default=False, compare=False)

    def get(self, name: str) -> Schedule | None:
        return self._by_name.get(name)

    def find(self, name: str) -> Schedule:
        """Return a schedule. Raises UnknownSchedule."""
        if (schedule := self._by_name.get(name)) is None:
            raise UnknownSchedule(found=shorten(name), expected="a name that mq.schedules.list() shows")
        return schedule

    def put(self, schedule: Schedule) -> None:
        self._by_name[schedule.name] = schedule
        self._is_stale = True

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)
        self._is_stale = True

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def next_at_ms(self) -> int | None:
        """The next time at which one is due; None if none is active. Computed once per change: each step asks."""
        if self._is_stale:
            times = (s.next_at_ms for s in self._by_name.values() if s.status is ScheduleStatus.ACTIVE)
            self._next_at_ms, self._is_stale = min(times, default=None), False
        return self._next_at_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether an occurrence is due."""
        return (at_ms := self.next_at_ms) is not None and at_ms <= now_ms

    def list_due(self, now_ms: int) -> list[Schedule]:
        """Return the active schedules that are due, those that are due first first."""
        if not self.is_due(now_ms):
            return []
        due = (s for s in self._by_name.values() if s.status is ScheduleStatus.ACTIVE and s.next_at_ms <= now_ms)
        return sorted(due, key=lambda schedule: (schedule.next_at_ms, schedule.name))


REQUESTS = (CreateSchedule, PauseSchedule, ResumeSchedule, DeleteSchedule)
RESULTS = (ScheduleDone,)
RECORDS = (ScheduleCreated, SchedulePaused, ScheduleResumed, ScheduleDeleted, OccurrenceDecided)
