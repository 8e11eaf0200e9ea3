"""Attendance: find members of groups that are lost or overdue, by the heartbeats of their processes.

A process puts a beat into the store every few seconds. The beat lists the process's members, with how often each has
polled. Every second, or three in a store, the leader reads all beats in another thread, compares them with those it has
seen, and reports silent members. A step then removes them from their groups.

Nothing seen here becomes part of a step: a new leader starts with the beats in the store. Three rules keep every live
member safe.

1. A member is silent only if a complete reading of the beats, which began after its deadline, found no new beat of it.
2. Sessions run on while no sequencer leads. So the first reading of a term takes the age of each beat by the store's
   clock. But the age alone never ends a session. The leader must itself see the beat unchanged for so long that a live
   member would have sent another one (`_confirmation_ms`). So a session does not end early if a clock has jumped, a
   machine has slept, or the store could not be written.
3. Time in which the leader could not read beats counts against no member, and that observation starts again
   (`_discount_blind_time`).

A member whose process has certainly ended is lost at once (`namespace/process.py`). Static members keep their
session: a process that restarts under the same instance id takes the member's place within it.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lakemq.tables.storage.coordination.beats import Beats, OverdueNotes

from ..namespace.clock import Clock
from ..namespace.process import is_process_gone, new_id, read_own_identity
from ..protocol.codec.beat import MemberBeat, OverdueMember, decode_beat, encode_beat, encode_overdue_members
from ..protocol.values.assignments import GroupMember
from ..protocol.values.groups import MemberSilent
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")

# Read the heartbeats of a namespace.


MemberKey = tuple[str, str]
"""Group and member id."""


class NewestBeat(NamedTuple):
    """The newest beat of a process.

    number: grows with each beat; members: None if the process replaced the beat while it was read; age_ms: by the
    store's clock in the first reading of a term, 0 in all others.
    """

    number: int
    members: list[MemberBeat] | None
    age_ms: int


class BeatReading(NamedTuple):
    """The result of reading all beats.

    began_ms, ended_ms: by the leader's steady clock; beats: by the id of their process's beats; gone: identities of
    processes that have certainly ended.
    """

    began_ms: int
    ended_ms: int
    beats: dict[str, NewestBeat]
    gone: set[str]


class BeatReader:
    """Reads heartbeats for one term of leadership, in a thread of its own."""

    def __init__(self, beats: Beats, clock: Clock) -> None:
        self._beats, self._clock = beats, clock
        self._notes: set[str] = set()
        """Ids of beats that this leader has written for members without any."""

    def read(
        self,
        used: set[str],
        abandoned: list[str],
        first_members: set[MemberKey] | None,
        processes: set[str],
    ) -> BeatReading:
        """Read all beats, and delete the abandoned ones.

        Args:
            used: ids of beats that have named members. They are read first.
            abandoned: ids of beats.
            first_members: all members in the first reading of a term, else None. A member without a beat gets one,
                which tells the next leader for how long it has had none.
            processes: identities of the members' processes.
        """
        began_ms = self._clock.steady_ms()
        # read the store's time before the beats: if this process stops in between, beats seem younger, never older
        store_ms = self._read_store_time() if first_members is not None else None
        own = read_own_identity() if self._beats.is_on_local_disk else ""
        beats: dict[str, NewestBeat] = {}
        for beats_id, (number, body) in self._beats.read_newest(first=used).items():
            if beats_id in self._notes:
                continue
            members = None if body is None else _decode_members(body)
            age_ms = 0 if store_ms is None else self._read_age_ms(beats_id, number, store_ms)
            beats[beats_id] = NewestBeat(number, members, age_ms)
        gone = {process for process in processes if is_process_gone(process, own)}
        if first_members and all(beat.members is not None for beat in beats.values()):
            named = {(beating.group, beating.member_id) for beat in beats.values() for beating in beat.members or ()}
            self._put_note(sorted(first_members - named))
        if abandoned:
            self._beats.forget(abandoned)
        return BeatReading(began_ms, self._clock.steady_ms(), beats, gone)

    def _read_store_time(self) -> int | None:
        try:
            return self._beats.time_ms()
        except OSError as error:
            log.warning("The store's time cannot be read, so sessions of members start again: %s", error)
            return None

    def _read_age_ms(self, beats_id: str, number: int, store_ms: int) -> int:
        modified_ms = self._beats.modified_ms(beats_id, number)
        return 0 if modified_ms is None else max(0, store_ms - modified_ms)

    def _put_note(self, keys: list[MemberKey]) -> None:
        """Put one beat in the name of members without any, so that the next leader sees since when they have had none.

        Such a member's first beat never landed, or it closed without leaving: it is static, or its request was lost.
        """
        if not keys:
            return
        note = new_id()
        self._notes.add(note)
        try:
            self._beats.put(note, 1, encode_beat([MemberBeat(*key, 0) for key in keys]))
        except OSError as error:
            log.warning("Members without a beat could not be noted: %s", error)


def _decode_members(body: bytes) -> list[MemberBeat]:
    try:
        return decode_beat(body)
    except ValueError:  # not written by a member: any user may put a file there
        return []


# Write down which members are overdue, so that people see a stuck member before it is lost.
#
# What is new in a heartbeat is known to the leader alone, and a session may last for minutes. So the leader notes
# the members whose heartbeats have stopped, or that have not polled for long, where every process can read it. A note
# is written only if its members change: usually there is none, and it costs no request to a store.


MISSED_BEATS = 3
"""One or two heartbeats may be late on a busy machine."""
_SHORTEST_MS = 3_000
_POLL_SHARE = 0.5
"""A member that has not polled for this share of its `max_poll_interval_ms` will be lost if nothing changes."""


def is_silent(silent_ms: int, interval_ms: int, session_timeout_ms: int) -> bool:
    """Return whether a member's heartbeats are overdue. interval_ms: between heartbeats; 0: not known."""
    return silent_ms > max(_SHORTEST_MS, MISSED_BEATS * interval_ms if interval_ms else session_timeout_ms // 2)


def is_idle(unpolled_ms: int, max_poll_interval_ms: int) -> bool:
    """Return whether a member's next poll is overdue."""
    return unpolled_ms > _POLL_SHARE * max_poll_interval_ms


class OverdueMembers:
    """The members that are overdue during one term of leadership.

    The sequencer's thread sets them. Another thread, one at a time, writes them.
    """

    def __init__(self, notes: OverdueNotes, clock: Clock) -> None:
        self._notes, self._clock = notes, clock
        self._epoch = 0
        self._members: dict[MemberKey, OverdueMember] = {}
        self._written: dict[MemberKey, OverdueMember] = {}
        self._number = 0
        self._cannot_write = False

    def set(self, epoch: int, steady_times: dict[MemberKey, tuple[int | None, int | None]]) -> None:
        """Set the members that are overdue.

        steady_times: member -> when it was last heard, and when it polled last, by the steady clock; None: in time.
        """
        offset_ms = self._clock.now_ms() - self._clock.steady_ms()
        members: dict[MemberKey, OverdueMember] = {}
        for key, times in steady_times.items():
            heard_ms, polled_ms = (None if at_ms is None else at_ms + offset_ms for at_ms in times)
            before = self._members.get(key)
            # the two clocks drift apart: the same silence must not become a new note
            if before is None or (before.heard_ms is None, before.polled_ms is None) != (
                heard_ms is None,
                polled_ms is None,
            ):
                before = OverdueMember(*key, heard_ms, polled_ms)
            members[key] = before
        self._epoch, self._members = epoch, members

    def list_keys(self) -> list[MemberKey]:
        """Return the members that were overdue at the last reading; some may have left since."""
        return [*self._members]

    def write(self) -> None:
        """Write the note if its members have changed. A store that fails is logged once, and tried again."""
        members = self._members
        if members == self._written:
            return
        try:
            if members:
                self._number += 1
                self._notes.put(self._epoch, self._number, encode_overdue_members(list(members.values())))
            else:
                self._notes.clear()
        except OSError as error:
            if not self._cannot_write:
                log.warning("The note about members that are overdue cannot be written: %s", error)
            self._cannot_write = True
            return
        self._written, self._cannot_write = members, False


# Attendance: which members are lost.


READ_INTERVAL_MS, STORE_READ_INTERVAL_MS = 1_000, 3_000
"""Time between two readings. In a store each costs requests, and no process is known to have ended."""
MAX_READ_GAP_MS = 5_000
"""Longest normal time between two readings. If it takes longer, the leader or its store was stopped."""
MAX_READ_MS = 30_000
"""How long a run of `step` waits for one reading."""
ABANDONED_AFTER_MS = 3_600_000
"""Beats that name no member and stay unchanged for this long are deleted."""
_SOON_MS = 5
"""About how long a reading takes on a disk."""


@dataclass
class _MemberRecord:
    """The facts that this leader has seen of a member. All times are by the leader's steady clock.

    Attributes:
        beat_ms: when it beat last.
        poll_ms: when it polled last.
        marks: id of beats -> number, for all beats that name the member.
        polls: how often it had polled, by its newest beat.
        joined_at_ms: when it joined. A member that was lost and has come back is observed from the beginning.
        interval_ms: how often it beats. 0: unknown.
        confirmed_ms: when a beat that may be older than this term has been unchanged for long enough to end the
            session. None: the beat is of this term.
    """

    beat_ms: int
    poll_ms: int
    marks: dict[str, int] = field(default_factory=dict)
    polls: int = -1
    joined_at_ms: int | None = None
    interval_ms: int = 0
    confirmed_ms: int | None = None

    def deadline_ms(self, member: GroupMember) -> int:
        """Return when its session is over, unless it beats before."""
        return max(self.beat_ms + member.session_timeout_ms, self.confirmed_ms or 0)


class Attendance:
    """Watches the members of groups for one term of leadership.

    The sequencer's thread calls it. It reads the beats in a thread of `executor`.
    """

    def __init__(self, beats: Beats, overdue: OverdueMembers, clock: Clock, executor: Executor) -> None:
        """overdue: writes down which members are overdue, for people."""
        self._overdue, self._clock, self._executor = overdue, clock, executor
        self._reader = BeatReader(beats, clock)
        self._records: dict[MemberKey, _MemberRecord] = {}
        self._unchanged: dict[str, tuple[int, int]] = {}
        """Id of beats -> their number, and since when it has been that one."""
        self._running: Future[BeatReading] | None = None
        self._running_since_ms = 0
        self._last_began_ms: int | None = None
        self._last_ended_ms: int | None = None
        self._deadline_ms: int | None = None
        self._is_first_reading, self._cannot_read = True, False
        self._interval_ms = READ_INTERVAL_MS if beats.is_on_local_disk else STORE_READ_INTERVAL_MS

    def find_silent_members(self, state: State) -> list[MemberSilent]:
        """Return the members that the last finished reading found silent, and begin a reading when one is due."""
        silent: list[MemberSilent] = []
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            silent = self._take_reading(state, running)
        if self._running is None and self.due_in_ms(state) == 0:
            self._running_since_ms = self._clock.steady_ms()
            members = _list_members(state)
            first_members = set(members) if self._is_first_reading else None
            processes = {member.process for member in members.values() if member.process}
            used = {beats_id for record in self._records.values() for beats_id in record.marks}
            abandoned = self._find_abandoned_beats(used)
            self._running = self._executor.submit(
                self._read, partial(self._reader.read, used, abandoned, first_members, processes)
            )
        return silent

    def _read(self, read: Callable[[], BeatReading]) -> BeatReading:
        """Write down who was overdue at the reading before, then read the beats."""
        self._overdue.write()
        return read()

    def due_in_ms(self, state: State) -> float | None:
        """Return in how many ms `find_silent_members` has something to do; None: no group has members."""
        if not state.groups_with_members:
            return None
        if self._running is not None:
            return _SOON_MS
        now_ms = self._clock.steady_ms()
        if self._last_began_ms is None:
            return 0
        due_ms = self._last_began_ms + self._interval_ms
        if self._deadline_ms is not None and self._deadline_ms >= self._last_began_ms:
            due_ms = min(due_ms, self._deadline_ms + 1)
        return max(0, due_ms - now_ms)

    def observation_left_ms(self, state: State) -> int:
        """Return for how long members that seem dead must still be watched. 0: no member seems dead.

        A run of `step` stays for it, because the next leader would have to start the observation again. The wait also
        ends if beats cannot be read.
        """
        if not state.groups_with_members:
            return 0
        now_ms = self._clock.steady_ms()
        if self._last_began_ms is None:
            began_ms = now_ms if self._running is None else self._running_since_ms
            return _SOON_MS if now_ms - began_ms <= MAX_READ_MS else 0
        if self._cannot_read or (self._running is not None and now_ms - self._running_since_ms > MAX_READ_MS):
            return 0
        sessions_ms = {key: member.session_timeout_ms for key, member in _list_members(state).items()}
        waits = [
            record.confirmed_ms + 1 + _SOON_MS - now_ms
            for key, record in self._records.items()
            if record.confirmed_ms is not None and key in sessions_ms and record.beat_ms + sessions_ms[key] < now_ms
        ]
        return max([0, *(max(1, wait_ms) for wait_ms in waits)])

    # -- judging ----------------------------------------------------------------------------------------

    def _take_reading(self, state: State, running: Future[BeatReading]) -> list[MemberSilent]:
        """Note the beats of a finished reading, and return the members that it found silent."""
        try:
            reading = running.result()
        except Exception as error:  # a store may raise anything, and no member is silent because the leader cannot read
            if not self._cannot_read:
                log.warning("The beats of members cannot be read: %s", error)
            self._cannot_read, self._last_began_ms = True, self._clock.steady_ms()
            return []
        self._cannot_read = False
        before_ms = self._last_began_ms
        sessions_ms = {key: member.session_timeout_ms for key, member in _list_members(state).items()}
        self._discount_blind_time(reading, sessions_ms)
        self._last_ended_ms = reading.ended_ms
        for beats_id, beat in reading.beats.items():
            if self._unchanged.get(beats_id, (None, 0))[0] != beat.number:
                self._unchanged[beats_id] = beat.number, reading.began_ms - beat.age_ms
            for beating in beat.members or ():
                key = beating.group, beating.member_id
                self._note_beat(key, beating, beats_id, beat, reading, sessions_ms.get(key))
            if beat.members is None:
                self._note_replaced_beat(beats_id, beat.number, reading.began_ms)
        self._unchanged = {key: since for key, since in self._unchanged.items() if key in reading.beats}
        self._is_first_reading = False
        return list(self._find_silent(state, reading, before_ms))

    def _discount_blind_time(self, reading: BeatReading, sessions_ms: dict[MemberKey, int]) -> None:
        """Move all deadlines by the time in which the leader could not read beats, so that no session ends by it.

        Every observation starts again.
        """
        passed_ms = 0 if self._last_ended_ms is None else reading.began_ms - self._last_ended_ms
        if passed_ms > MAX_READ_GAP_MS:
            for key, record in self._records.items():
                record.beat_ms += passed_ms
                record.poll_ms += passed_ms
                if record.confirmed_ms is not None and key in sessions_ms:
                    record.confirmed_ms = reading.ended_ms + _confirmation_ms(sessions_ms[key], record.interval_ms)
        self._last_began_ms = reading.began_ms

    def _note_beat(
        self,
        key: MemberKey,
        beating: MemberBeat,
        beats_id: str,
        beat: NewestBeat,
        reading: BeatReading,
        session_ms: int | None,
    ) -> None:
        """Note that a beat names a member. session_ms: of the member; None: it has left."""
        record = self._records.get(key)
        if record is None:
            # the member may already have been silent for the beat's age
            record = self._records[key] = _MemberRecord(
                reading.began_ms - beat.age_ms, reading.began_ms, {beats_id: beat.number}
            )
            if beat.age_ms and session_ms is not None:
                record.confirmed_ms = reading.ended_ms + _confirmation_ms(session_ms, beating.interval_ms)
        elif beats_id not in record.marks and self._is_first_reading:  # the younger of two counts
            record.beat_ms = max(record.beat_ms, reading.began_ms - beat.age_ms)
        elif record.marks.get(beats_id) != beat.number:
            record.beat_ms, record.confirmed_ms = reading.began_ms, None
        record.marks[beats_id] = beat.number
        record.interval_ms = beating.interval_ms or record.interval_ms  # a note does not know it
        if record.polls < beating.polls:  # a note, or a beat that outlived its thread, has a lower count
            record.polls, record.poll_ms = beating.polls, reading.began_ms

    def _note_replaced_beat(self, beats_id: str, number: int, at_ms: int) -> None:
        """Note that a process replaced its beat while it was read: all members that the last one named are alive."""
        for record in self._records.values():
            if beats_id in record.marks and record.marks[beats_id] != number:
                record.marks[beats_id], record.beat_ms, record.confirmed_ms = number, at_ms, None

    def _find_silent(self, state: State, reading: BeatReading, before_ms: int | None) -> Iterator[MemberSilent]:
        """Yield the silent members. before_ms: when the reading before this one began."""
        members = _list_members(state)
        self._records = {key: self._record_of(key, member, reading.began_ms) for key, member in members.items()}
        deadlines = []
        overdue: dict[MemberKey, tuple[int | None, int | None]] = {}
        for key, member in members.items():
            record = self._records[key]
            times = _find_overdue(record, member, reading.began_ms)
            if times != (None, None):
                overdue[key] = times
            reason, deadline_ms = _judge_member(record, member, reading.began_ms, before_ms)
            deadlines.append(deadline_ms)
            if member.process in reading.gone and member.instance_id is None:
                reason = "process"
            if reason:
                yield MemberSilent(*key, reason)
        self._overdue.set(state.leader_epoch, overdue)
        self._deadline_ms = min(
            (deadline_ms for deadline_ms in deadlines if deadline_ms >= reading.began_ms), default=None
        )

    def _record_of(self, key: MemberKey, member: GroupMember, at_ms: int) -> _MemberRecord:
        """Return the record of this membership. A new member, or one that has joined again, counts as seen now."""
        record = self._records.get(key)
        if record is None or record.joined_at_ms not in (None, member.joined_at_ms):
            record = _MemberRecord(at_ms, at_ms)
        record.joined_at_ms = member.joined_at_ms
        return record

    def _find_abandoned_beats(self, used: set[str]) -> list[str]:
        """Return the ids of beats that name no member and have not changed for ABANDONED_AFTER_MS."""
        oldest_ms = self._clock.steady_ms() - ABANDONED_AFTER_MS
        return [
            beats_id
            for beats_id, (_, since_ms) in self._unchanged.items()
            if beats_id not in used and since_ms < oldest_ms
        ]


def _confirmation_ms(session_ms: int, interval_ms: int) -> int:
    """Return how long a leader must see an old beat unchanged before it believes that the member is dead.

    That is the longest stop that the leader does not notice, and two beats. If the interval is unknown, it is taken as
    a third of the session, the longest that it should be. A whole session is always enough.
    """
    return min(session_ms, MAX_READ_GAP_MS + 2 * (interval_ms or session_ms // 3))


def _judge_member(record: _MemberRecord, member: GroupMember, began_ms: int, before_ms: int | None) -> tuple[str, int]:
    """Return why the member is lost, or "", and when it will be if nothing is seen of it until then.

    began_ms, before_ms: when this reading and the one before it began. Beats say how often a member has polled. So a
    member has missed its poll only if a beat that was written after that deadline shows no new poll. A beat that this
    reading found new, and the one before did not, was written after the one before began.
    """
    session_end_ms, poll_end_ms = record.deadline_ms(member), record.poll_ms + member.max_poll_interval_ms
    has_missed_poll = record.beat_ms == began_ms and before_ms is not None and before_ms > poll_end_ms
    reason = "session" if began_ms > session_end_ms else "poll" if has_missed_poll else ""
    # A poll deadline that has passed no longer says when to read. The end of the session does, until a beat shows more.
    return reason, session_end_ms if poll_end_ms < began_ms else min(session_end_ms, poll_end_ms)


def _find_overdue(record: _MemberRecord, member: GroupMember, at_ms: int) -> tuple[int | None, int | None]:
    """Return when the member was last heard, and when it polled last; None where that is not long ago."""
    silent = is_silent(at_ms - record.beat_ms, record.interval_ms, member.session_timeout_ms)
    idle = is_idle(at_ms - record.poll_ms, member.max_poll_interval_ms)
    return record.beat_ms if silent else None, record.poll_ms if idle else None


def _list_members(state: State) -> dict[MemberKey, GroupMember]:
    groups = (state.groups[name] for name in sorted(state.groups_with_members))
    return {(group.group, member.member_id): member for group in groups for member in group.members.values()}
