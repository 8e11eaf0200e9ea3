"""Write down which members are overdue, so that people see a stuck member before it is lost.

Heartbeats that come on lines are known to the leader alone, and a session may last for minutes. So the leader notes the
members whose heartbeats have stopped, or that have not polled for long, where every process can read it. A note is
written only if its members change: usually there is none, and it costs no request to a store.
"""

from __future__ import annotations

import logging

from lakemq.tables.storage.coordination.overdue_notes import OverdueNotes

from ..namespace.processes.clock import Clock
from ..protocol.codec.overdue_member import OverdueMember, encode_overdue_members
from .beat_reader import MemberKey

log = logging.getLogger("lakemq.serve")

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
