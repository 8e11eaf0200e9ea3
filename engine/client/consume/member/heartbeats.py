"""Heartbeats: one thread of a connection shows for all members in it that their process lives."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from lakemq.tables.storage.coordination.beats import Beats

from ....namespace.processes.process import start_thread
from ....namespace.processes.process_identity import read_own_identity
from ....protocol.codec.beat import MemberBeat, encode_beat

log = logging.getLogger("lakemq.consumer")


class Heartbeat:
    """The heartbeat of one member."""

    def __init__(self, thread: HeartbeatThread, group: str, member_id: str, interval_ms: int) -> None:
        self._thread, self.group, self.member_id, self.interval_ms = thread, group, member_id, interval_ms
        self._polls = 0

    def note_poll(self) -> None:
        """Count a poll. The group loses a member that lives but does not poll."""
        self._polls += 1

    def build_beating(self, process: str) -> MemberBeat:
        """Return what the next heartbeat says of the member."""
        return MemberBeat(self.group, self.member_id, self._polls, self.interval_ms, process)

    def stop(self) -> None:
        """Send no more heartbeats for this member."""
        self._thread.remove(self)


class HeartbeatThread:
    """Writes heartbeats while there are members. Thread-safe. In a forked process it does nothing."""

    def __init__(self, beats: Beats, new_id: Callable[[], str]) -> None:
        self._beats, self._new_id = beats, new_id
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._heartbeats: list[Heartbeat] = []
        self._has_news = False
        self._thread: threading.Thread | None = None
        self._fails = False

    def add(self, group: str, member_id: str, interval_ms: int) -> Heartbeat:
        """Send heartbeats for the member from now on. Raises UnknownServerError: no thread can be started."""
        heartbeat = Heartbeat(self, group, member_id, interval_ms)
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

    def _run(self) -> None:
        beats_id = self._new_id()  # of this run alone, so that forgetting it at the end hits no other thread's beats
        process = read_own_identity()
        for number in itertools.count(1):
            with self._changed:
                beatings = [heartbeat.build_beating(process) for heartbeat in self._heartbeats]
                self._has_news = False
                if not beatings:
                    self._thread = None
                    break
                wait_s = min(heartbeat.interval_ms for heartbeat in self._heartbeats) / 1000
            self._try_to(self._beats.put, beats_id, number, encode_beat(beatings))
            with self._changed:
                # A new member beats at once. A member that goes does not hurry the thread, unless it is the last one.
                self._changed.wait_for(lambda: self._has_news or not self._heartbeats, wait_s)
        self._try_to(self._beats.forget, [beats_id])

    def _try_to(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write, and go on if that fails: the next heartbeat follows. Log the first of several failures."""
        try:
            write(*arguments)
            self._fails = False
        except Exception as error:  # a store of the user may raise anything, and the thread must not end
            if not self._fails:
                log.warning("A heartbeat could not be written. The next one is tried as usual. Error: %s", error)
            self._fails = True
