"""Heartbeats: one thread of a connection sends them for all its group members, to show that the process lives.

A heartbeat goes on a line to the leader, if there is one and the leader confirms that it counts. Otherwise it is an
object, which any leader finds. When the line is lost, the object is written at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from lakemq.tables.storage.coordination.beats import Beats

from ....namespace.follow_frames import LineBeat
from ....namespace.processes.process import start_thread
from ....protocol.codec.beat import FencedMember, MemberBeat, encode_beat
from ....protocol.errors import UnknownServerError
from ...requests.follow_line import FollowLine
from .open_members import OpenMember

log = logging.getLogger("lakemq.consumer")

_LOOK_AT_LINE_S = 0.25
"""How often the thread looks whether its line is still there."""


class Heartbeat:
    """The heartbeat of one member."""

    def __init__(self, thread: HeartbeatThread, group: str, member_id: str, interval_ms: int, polls: int) -> None:
        self._thread, self.group, self.member_id, self.interval_ms = thread, group, member_id, interval_ms
        self.polls = polls

    def note_poll(self) -> None:
        """Count a poll. The group loses a member that lives but does not poll."""
        self.polls += 1

    def build_beating(self) -> MemberBeat:
        """Return what the next heartbeat says of the member."""
        return MemberBeat(self.group, self.member_id, self.polls, self.interval_ms)

    def stop(self) -> None:
        """Send no more heartbeats for this member."""
        self._thread.remove(self)


class HeartbeatThread:
    """Sends heartbeats while there are members. Thread-safe. In a forked process it does nothing."""

    def __init__(
        self, beats: Beats, new_id: Callable[[], str], new_line: Callable[[], FollowLine] | None = None
    ) -> None:
        """new_line: returns a new line to the leader. None: all heartbeats are objects."""
        self._beats, self._new_id, self._new_line = beats, new_id, new_line
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._heartbeats: list[Heartbeat] = []
        self._has_news = False
        self._thread: threading.Thread | None = None
        self._fails = False
        self.abandoned: SimpleQueue[OpenMember] = SimpleQueue()
        """Members whose consumers are garbage. The thread closes them, with its next look at the line or heartbeat."""

    def add(self, group: str, member_id: str, interval_ms: int, polls: int = 0) -> Heartbeat:
        """Send heartbeats for the member from now on.

        Args:
            polls: how often it has polled. A member that joins again under its id must go on counting: the leader
                ignores lower counts than that of an earlier beat.

        Raises:
            UnknownServerError: no thread can be started.
        """
        heartbeat = Heartbeat(self, group, member_id, interval_ms, polls)
        with self._changed:
            self._heartbeats.append(heartbeat)
            self._has_news = True
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_thread(self._run, "lakemq-heart")
            self._changed.notify()
        return heartbeat

    def remove(self, heartbeat: Heartbeat) -> None:
        if os.getpid() != self._pid:
            return
        with self._changed:
            if heartbeat in self._heartbeats:
                self._heartbeats.remove(heartbeat)
            self._changed.notify()

    def stop(self) -> None:
        """Send no more heartbeats for any member."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._heartbeats.clear()
            self._changed.notify()

    def note_fence(self, member: FencedMember) -> None:
        """Tell operators that two consumers use one instance id. Without this note they see only the second one."""
        subject = f"{member.group}\0{member.instance_id}"
        self._try_to(self._beats.put_note, subject, member.fenced_at_ms // 1000, encode_beat([member]))

    def _run(self) -> None:
        sender = _BeatSender(self._new_id(), self._new_line, self._beats, self._try_to)
        while True:
            self._close_abandoned()
            with self._changed:
                beatings = [heartbeat.build_beating() for heartbeat in self._heartbeats]
                self._has_news = False
                if not beatings:
                    self._thread = None
                    break
                interval_s = min(heartbeat.interval_ms for heartbeat in self._heartbeats) / 1000
            sender.send(encode_beat(beatings))
            self._wait(sender, time.monotonic() + interval_s)
        sender.close()

    def _close_abandoned(self) -> None:
        while not self.abandoned.empty():
            try:
                start_thread(self.abandoned.get().close_abandoned, "lakemq-close")
            except UnknownServerError as error:
                log.warning("A consumer that is gone keeps its partitions for max_poll_interval_ms: %s", error)

    def _wait(self, sender: _BeatSender, until_s: float) -> None:
        """Wait until the next heartbeat is due: at once if a member is new, if the line is lost, or if none is left."""
        while (left_s := until_s - time.monotonic()) > 0 and not sender.has_lost_line() and self.abandoned.empty():
            with self._changed:
                most_s = min(left_s, _LOOK_AT_LINE_S) if sender.is_on_line else left_s
                if self._changed.wait_for(lambda: self._has_news or not self._heartbeats, most_s):
                    return

    def _try_to(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write, and go on if that fails: the next heartbeat follows. Log the first of several failures."""
        try:
            write(*arguments)
            self._fails = False
        except Exception as error:  # a store of the user may raise anything, and the thread must not end
            if not self._fails:
                log.warning("A heartbeat could not be written. The next one is tried as usual. Error: %s", error)
            self._fails = True


class _BeatSender:
    """Sends the heartbeats of one run of the thread: on a line, or as an object.

    Both share one sequence of numbers, so the leader knows which is newer. While heartbeats go on the line there is no
    object: a later leader could take an old one for a silent member.
    """

    def __init__(
        self,
        beats_id: str,
        new_line: Callable[[], FollowLine] | None,
        beats: Beats,
        try_to: Callable[..., None],
    ) -> None:
        """Create it.

        Args:
            beats_id: of this run alone, so that forgetting it at the end hits no other thread's beats.
            new_line: as of HeartbeatThread.
            try_to: calls a function with arguments, and logs what it raises.
        """
        self._beats_id, self._beats, self._try_to = beats_id, beats, try_to
        self._line = None if new_line is None else new_line()
        self._number = 0
        self._has_object = self.is_on_line = False

    def send(self, body: bytes) -> None:
        self._number += 1
        # A line that was just lost is opened again with the next heartbeat: a leader that is gone may take seconds.
        line = None if self.has_lost_line() else self._line
        self.is_on_line = line is not None and line.send_beat(LineBeat(self._beats_id, self._number, body))
        if not self.is_on_line:
            self._try_to(self._beats.put, self._beats_id, self._number, body)
            self._has_object = True
        elif self._has_object:
            self._forget_objects()

    def has_lost_line(self) -> bool:
        """Return whether the last heartbeat went on a line that is lost by now."""
        return self.is_on_line and self._line is not None and not self._line.is_open()

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._has_object:
            self._forget_objects()

    def _forget_objects(self) -> None:
        self._try_to(self._beats.forget, [self._beats_id])
        self._has_object = False
