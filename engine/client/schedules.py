"""The API for schedules of recurring messages: `mq.schedules`."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec.structs import replace

from ..namespace.clock import Clock
from ..namespace.process import ProcessBound
from ..protocol.errors import InvalidRecord, ScheduleAlreadyExists
from ..protocol.values.base import copy_fields, find_shared_fields
from ..protocol.values.schedules import (
    CreateSchedule,
    DeleteSchedule,
    Header,
    MissedPolicy,
    PauseSchedule,
    ResumeSchedule,
    Schedule,
    ScheduleDone,
    ScheduleStatus,
)
from ..protocol.values.state import State
from .arguments import parse_choice, parse_flag, parse_text, parse_topic_name
from .requests.requester import Requester
from .rows.few_rows import build_few_body
from .rows.publication import build_produce_ranges, error_of_rejected_rows
from .rows.record import parse_bytes, parse_extras
from .rows.routing import Route, find_route
from .topics import QueryNewestState

Missed = Literal["once", "skip"]


@dataclass(frozen=True)
class ScheduleDescription:
    """A schedule.

    Attributes:
        missed: `once` or `skip`: what happens to occurrences that could not be published.
        state: `active` or `paused`.
        next_at: its next occurrence, in UTC; None while it is paused.
        last_at: the last occurrence that was published; None if there was none yet.
        reason: why it is paused; None if it is not.
        key, value, headers: of its messages.
    """

    name: str
    topic: str
    cron: str
    time_zone: str
    missed: str
    state: str
    next_at: datetime | None
    last_at: datetime | None
    reason: str | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Schedules(ProcessBound):
    """Create, list, pause, resume and delete schedules. The sequencer publishes their messages."""

    def __init__(
        self, requester: Requester, read_state: Callable[[], State], look: QueryNewestState, clock: Clock
    ) -> None:
        """read_state: returns the newest state with all schedules."""
        self._requester, self._read_state, self._look, self._clock = requester, read_state, look, clock

    def create(
        self,
        name: str,
        topic: str,
        *,
        cron: str,
        time_zone: str = "UTC",
        key: bytes | str | None = None,
        value: bytes | str | None = None,
        headers: Any = None,
        missed: Missed = "once",
        exist_ok: bool = False,
    ) -> ScheduleDescription:
        """Create a schedule, and return it.

        Args:
            name: its name, with the characters of names of topics.
            topic: the topic to which it publishes. If the topic is deleted, so is the schedule.
            cron: minute, hour, day of month, month and day of week, such as `0 8 * * MON-FRI`.
            time_zone: IANA time zone in which these hold.
            key: key of each message.
            value: value of each message.
            headers: its headers; `schedule.name` and `schedule.time` are added.
            missed: `once` publishes one message for all occurrences that were missed, `skip` none.
            exist_ok: accept a schedule that exists with the same arguments, also if it is paused.

        Raises:
            InvalidSchedule: name, expression or time zone are not valid, or there is no such date.
            ScheduleAlreadyExists: the name is taken; with `exist_ok`, the error names what differs.
            UnknownTopicOrPartition: the topic does not exist.
            MessageTooLarge, InvalidRecord, SchemaMismatch: the topics cannot take this message.
            InvalidRequest: there are too many schedules.
            StorageError: the sequencer cannot read its file of the time zone now.
        """
        topic = parse_topic_name("topic", topic)
        request = CreateSchedule(
            parse_text("name", name),
            topic,
            parse_text("cron", cron),
            parse_text("time_zone", time_zone),
            MissedPolicy(parse_choice("missed", missed, [policy.value for policy in MissedPolicy])),
            *self._check_message(topic, parse_bytes("key", key), parse_bytes("value", value), headers),
        )
        may_exist = parse_flag("exist_ok", exist_ok)
        parts = (request.cron, request.time_zone, request.missed, request.key, request.value, request.headers)
        requested = Schedule(request.name, 0, topic, *parts, 0)
        try:
            done = self._requester.ask(request)
        except ScheduleAlreadyExists:
            if not may_exist:
                raise
            return self._find_same(_describe(requested))
        assert isinstance(done, ScheduleDone)
        return _describe(replace(requested, next_at_ms=done.next_at_ms))

    def _find_same(self, requested: ScheduleDescription) -> ScheduleDescription:
        """Return the schedule of this name. Raises ScheduleAlreadyExists if it differs from the requested one."""
        existing = self.describe(requested.name)
        parts = ("topic", "cron", "time_zone", "missed", "key", "value", "headers")
        if different := [part for part in parts if getattr(existing, part) != getattr(requested, part)]:
            raise ScheduleAlreadyExists(
                f"The schedule {requested.name} exists with another {', '.join(different)}."
                " To change it, delete it and create it again."
            )
        return existing

    def _check_message(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Any
    ) -> tuple[bytes | None, bytes | None, list[Header]]:
        """Return key, value and headers if all topics that the message reaches can take it now."""
        listed = parse_extras(headers, None, None, None, None, None)[0][0]
        columns: dict[str, list[Any]] = {"key": [key], "value": [value], "headers": [listed]}
        body, _ = build_few_body(columns, topic, self._clock.now_ms())
        if body.delays is not None:
            raise InvalidRecord("A recurring message cannot be delayed.", expected="headers without a delay")
        route = self._look(lambda state: _find_route(state, topic))
        arranged = body.arrange(route.copies, None, 0)
        _, rejected = build_produce_ranges(route, [(0, copy, runs) for copy, runs in arranged.runs])
        if rejected:
            raise error_of_rejected_rows(rejected, arranged.partition, arranged.reasons)
        return body.keys[0], value, listed or []  # a key may be a header

    def list(self) -> list[ScheduleDescription]:
        """Return all schedules, sorted by name."""
        return [_describe(schedule) for schedule in sorted(self._read_state().schedules, key=lambda s: s.name)]

    def describe(self, name: str) -> ScheduleDescription:
        """Return a schedule. Raises UnknownSchedule."""
        return _describe(self._read_state().schedules.find(parse_text("name", name)))

    def pause(self, name: str) -> None:
        """Publish no occurrences until `resume`. Raises UnknownSchedule."""
        self._requester.ask(PauseSchedule(parse_text("name", name)))

    def resume(self, name: str) -> None:
        """Go on. Occurrences that were missed are published once, or skipped, as `missed` says.

        Raises UnknownSchedule.
        """
        self._requester.ask(ResumeSchedule(parse_text("name", name)))

    def delete(self, name: str) -> None:
        """Delete a schedule. Raises UnknownSchedule."""
        self._requester.ask(DeleteSchedule(parse_text("name", name)))


def _find_route(state: State, topic: str) -> Route:
    """Return the route of a topic, which must exist. Raises UnknownTopicOrPartition."""
    return find_route(state, state.topic(topic).topic)


def _describe(schedule: Schedule) -> ScheduleDescription:
    is_active = schedule.status is ScheduleStatus.ACTIVE
    return ScheduleDescription(
        missed=schedule.missed.value,
        state=schedule.status.value,
        next_at=_to_datetime(schedule.next_at_ms) if is_active else None,
        last_at=None if schedule.last_at_ms is None else _to_datetime(schedule.last_at_ms),
        **copy_fields(schedule, find_shared_fields(ScheduleDescription, Schedule, "missed")),
    )


def _to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
