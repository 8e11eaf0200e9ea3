"""Attendance: who beats, who polls. What is seen is kept by the leader alone; nothing of it is journaled.

A member is silent when a whole look at the beats that began after its deadline has found no new one. A leader that was
stopped itself counts that time for nobody, and a new leader begins to count anew: nobody is ever thought dead early.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from lakemq.tables.storage.beats import Beats

from ..namespace.clock import Clock
from ..protocol.codec.beat import Beating, decode_beat
from ..protocol.values.assignments import Member
from ..protocol.values.groups import MemberSilent
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")

LOOK_EVERY_MS = 1_000
STOPPED_MS = 5_000
"""Between two looks: who takes longer was stopped, or the store was."""
_SOON_MS = 5
"""A look takes about so long on a disk."""
ABANDONED_MS = 3_600_000
"""After which beats that do not change, and are of nobody's, are deleted."""

_Key = tuple[str, str]
"""Group and member id."""
_Look = tuple[int, int, dict[str, tuple[int, bytes | None]]]
"""When it began and ended, and what it has found."""


@dataclass
class _Seen:
    """When a member was seen to beat, and to poll, last; mark: that beat; polls: its count then; joined_at_ms: of the
    membership that is judged, for one who was lost and is back is none that was silent.
    """

    beat_ms: int
    poll_ms: int
    mark: tuple[str, int] | None = None
    polls: int = -1
    joined_at_ms: int | None = None


class Attendance:
    """Of one term of leadership; called by the sequencer's thread, and looks in one of `executor`."""

    def __init__(self, beats: Beats, clock: Clock, executor: Executor) -> None:
        self._beats, self._clock, self._executor = beats, clock, executor
        self._seen: dict[_Key, _Seen] = {}
        self._unchanged: dict[str, tuple[int, int]] = {}
        """Id of beats -> number, and since when it is that one."""
        self._running: Future[_Look] | None = None
        self._looked_ms: int | None = None
        self._ended_ms: int | None = None
        self._deadline_ms: int | None = None
        self._fails = False

    def silent(self, state: State) -> list[MemberSilent]:
        """Who was found silent by a look that has ended since the last call; begins the next one when it is time."""
        found: list[MemberSilent] = []
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            found = self._taken(state, running)
        if self._running is None and self.due_in_ms(state) == 0:
            self._running = self._executor.submit(self._look, self._abandoned())
        return found

    def due_in_ms(self, state: State) -> float | None:
        """Until something is to be done; None: there is nobody to be watched."""
        if not state.manned_groups:
            return None
        if self._running is not None:
            return _SOON_MS
        now_ms = self._clock.steady_ms()
        if self._looked_ms is None:
            return 0
        due_ms = self._looked_ms + LOOK_EVERY_MS
        if self._deadline_ms is not None and self._deadline_ms >= self._looked_ms:
            due_ms = min(due_ms, self._deadline_ms + 1)
        return max(0, due_ms - now_ms)

    def _look(self, abandoned: list[str]) -> _Look:
        """In the background."""
        began_ms = self._clock.steady_ms()
        found = self._beats.look()
        if abandoned:
            self._beats.forget(abandoned)
        return began_ms, self._clock.steady_ms(), found

    def _taken(self, state: State, running: Future[_Look]) -> list[MemberSilent]:
        try:
            began_ms, ended_ms, found = running.result()
        except Exception as error:  # nobody is silent because the leader cannot read, whatever its store raises
            if not self._fails:
                log.warning("The beats of members cannot be read: %s", error)
            self._fails, self._looked_ms = True, self._clock.steady_ms()
            return []
        self._fails = False
        before_ms = self._looked_ms
        self._forgive(began_ms)
        self._ended_ms = ended_ms
        for beats_id, (number, body) in found.items():
            if self._unchanged.get(beats_id, (None, 0))[0] != number:
                self._unchanged[beats_id] = number, began_ms
            for one in _beating(body):
                self._see((one.group, one.member_id), (beats_id, number), one.polls, began_ms)
            if body is None:  # followed by another one while it was looked at
                self._see_again(beats_id, number, began_ms)
        self._unchanged = {one: since for one, since in self._unchanged.items() if one in found}
        return list(self._judged(state, began_ms, before_ms))

    def _forgive(self, began_ms: int) -> None:
        """What passed while nobody could look counts for nobody."""
        passed_ms = 0 if self._ended_ms is None else began_ms - self._ended_ms
        if passed_ms > STOPPED_MS:
            for seen in self._seen.values():
                seen.beat_ms += passed_ms
                seen.poll_ms += passed_ms
        self._looked_ms = began_ms

    def _see(self, key: _Key, mark: tuple[str, int], polls: int, at_ms: int) -> None:
        seen = self._seen.setdefault(key, _Seen(at_ms, at_ms))
        if seen.mark != mark:
            seen.mark, seen.beat_ms = mark, at_ms
        if seen.polls != polls:
            seen.polls, seen.poll_ms = polls, at_ms

    def _see_again(self, beats_id: str, number: int, at_ms: int) -> None:
        for seen in self._seen.values():
            if seen.mark is not None and seen.mark[0] == beats_id and seen.mark[1] != number:
                seen.mark, seen.beat_ms = (beats_id, number), at_ms

    def _judged(self, state: State, began_ms: int, before_ms: int | None) -> Iterator[MemberSilent]:
        manned = (state.groups[name] for name in sorted(state.manned_groups))
        members = {(group.group, one.member_id): one for group in manned for one in group.members.values()}
        self._seen = {key: self._of(key, member, began_ms) for key, member in members.items()}
        deadlines = []
        for key, member in members.items():
            reason, deadline_ms = _silence(self._seen[key], member, began_ms, before_ms)
            deadlines.append(deadline_ms)
            if reason:
                yield MemberSilent(*key, reason)
        self._deadline_ms = min((one for one in deadlines if one >= began_ms), default=None)

    def _of(self, key: _Key, member: Member, at_ms: int) -> _Seen:
        seen = self._seen.get(key)
        if seen is None or seen.joined_at_ms not in (None, member.joined_at_ms):
            seen = _Seen(at_ms, at_ms)
        seen.joined_at_ms = member.joined_at_ms
        return seen

    def _abandoned(self) -> list[str]:
        mine = {seen.mark[0] for seen in self._seen.values() if seen.mark}
        now_ms = self._clock.steady_ms()
        return [one for one, (_, since) in self._unchanged.items() if one not in mine and now_ms - since > ABANDONED_MS]


def _silence(seen: _Seen, member: Member, began_ms: int, before_ms: int | None) -> tuple[str, int]:
    """Why the member is lost, if it is, and when it will be, if nothing is seen of it until then.

    before_ms: when the look before began. Polls are told with beats: a member has not polled in time only if a beat
    that was written after its deadline says so.
    """
    session_ms, poll_ms = seen.beat_ms + member.session_timeout_ms, seen.poll_ms + member.max_poll_interval_ms
    is_told = seen.beat_ms == began_ms and before_ms is not None and before_ms > poll_ms
    reason = "session" if began_ms > session_ms else "poll" if is_told else ""
    return reason, session_ms if poll_ms < began_ms else min(session_ms, poll_ms)


def _beating(body: bytes | None) -> list[Beating]:
    try:
        return [] if body is None else decode_beat(body)
    except ValueError:  # whoever put it there
        return []
