"""The heart of a connection: one thread that beats for all members that live in it, so that nobody thinks them lost."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

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

    def __init__(self, beats: Beats, new_id: Callable[[], str]) -> None:
        self._beats, self._new_id = beats, new_id
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._pulses: list[Pulse] = []
        self._has_news = False
        self._thread: threading.Thread | None = None
        self._fails = False

    def add(self, group: str, member_id: str, interval_ms: int) -> Pulse:
        """The member beats from now on, every so many ms. Raises UnknownServerError: there is no thread for it."""
        pulse = Pulse(self, group, member_id, interval_ms)
        with self._changed:
            self._pulses.append(pulse)
            self._has_news = True
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
        beats_id = self._new_id()  # of this thread alone: what it deletes at its end is nobody else's
        for number in itertools.count(1):
            with self._changed:
                members, self._has_news = [pulse.beating() for pulse in self._pulses], False
                if not members:
                    self._thread = None
                    break
                rest_s = min(pulse.interval_ms for pulse in self._pulses) / 1000
            self._quietly(self._beats.put, beats_id, number, encode_beat(members))
            with self._changed:
                # who comes beats at once; who goes has no hurry, but for the last one
                self._changed.wait_for(lambda: self._has_news or not self._pulses, rest_s)
        self._quietly(self._beats.forget, [beats_id])

    def _quietly(self, act: Callable[..., None], *given: Any) -> None:
        """A beat that fails is followed by the next one; the first of several is told."""
        try:
            act(*given)
            self._fails = False
        except Exception as error:  # also what a store of somebody else's raises: the others must not be thought dead
            if not self._fails:
                log.warning("A beat could not be written: %s", error)
            self._fails = True
