"""The heart of a connection: one thread that beats for all members that live in it, so that nobody thinks them lost."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from lakemq.tables.storage.beats import Beats

from ...namespace.process import started_thread
from ...protocol.codec.beat import Beating, encode_beat

log = logging.getLogger("lakemq.consumer")


class Pulse:
    """Of one member."""

    def __init__(self, heart: Heart, group: str, member_id: str, interval_ms: int) -> None:
        self._heart, self.group, self.member_id, self.interval_ms = heart, group, member_id, interval_ms
        self._polls = 0

    def polled(self) -> None:
        """It lives, and does not only beat."""
        self._polls += 1

    def beating(self) -> Beating:
        return Beating(self.group, self.member_id, self._polls)

    def stop(self) -> None:
        """It beats no more."""
        self._heart.remove(self)


class Heart:
    """Thread-safe. In a process that was forked from this one nothing beats."""

    def __init__(self, beats: Beats, beats_id: str) -> None:
        self._beats, self._beats_id = beats, beats_id
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._pulses: list[Pulse] = []
        self._thread: threading.Thread | None = None
        self._number, self._fails = 0, False

    def add(self, group: str, member_id: str, interval_ms: int) -> Pulse:
        """The member beats from now on, every so many ms. Raises UnknownServerError: there is no thread for it."""
        pulse = Pulse(self, group, member_id, interval_ms)
        with self._changed:
            self._pulses.append(pulse)
            if self._thread is None or not self._thread.is_alive():
                self._thread = started_thread(self._run, "lakemq-heart")
            self._changed.notify()
        return pulse

    def remove(self, pulse: Pulse) -> None:
        if os.getpid() != self._pid:
            return
        with self._changed:
            if pulse in self._pulses:
                self._pulses.remove(pulse)
            self._changed.notify()

    def stop(self) -> None:
        """Nobody beats any more."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._pulses.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                members = [pulse.beating() for pulse in self._pulses]
                if not members:
                    self._thread = None
                    break
                rest_ms = min(pulse.interval_ms for pulse in self._pulses)
                count = len(members)
            self._quietly(lambda: self._beat(members))  # noqa: B023
            with self._changed:
                # who comes beats at once; who goes has no hurry
                self._changed.wait_for(lambda: len(self._pulses) != count, rest_ms / 1000)  # noqa: B023
        self._quietly(lambda: self._beats.forget([self._beats_id]))

    def _beat(self, members: list[Beating]) -> None:
        self._number += 1
        self._beats.put(self._beats_id, self._number, encode_beat(members))

    def _quietly(self, act: Callable[[], None]) -> None:
        """A beat that fails is followed by the next one; the first of several is told."""
        try:
            act()
            self._fails = False
        except Exception as error:  # also what a store of somebody else's raises: the others must not be thought dead
            if not self._fails:
                log.warning("A beat could not be written: %s", error)
            self._fails = True
