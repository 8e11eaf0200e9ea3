"""Dead letters: when the leader looks for where messages are that are dying. What is found is decided in a step.

A look reads tables beside the steps, and writes nothing. From its beginning until what it has found has landed no data
file is removed: one that was merged meanwhile is named by nobody else any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from threading import Lock

from ..maintenance.dying import Dying, Sighting
from ..namespace.clock import Clock
from ..protocol.values.dead_letters import REDRIVE, DyingFound
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")

LOOK_TIMEOUT_MS = 10_000
"""After which what a look has found counts no more: nobody waits for it."""
RETRY_MS = 60_000
"""When to look again for what cannot become a dead letter now, unless a topic is created: it may be the one."""
PATIENCE_MS = 10_000
"""How long what is dying may be in no table yet, before it counts as such."""
_EVERY_MS = 100
_AT_ONCE = 100
"""Partitions that a look looks for."""


@dataclass
class _Look:
    """What is looked for of a partition, since when, and when to look again; looked_until: before this offset it was
    looked for already; parked_at: nothing comes of it now, while this is the id of the next topic.
    """

    wanted: Dying | None
    since_ms: int
    again_ms: int
    looked_until: int = 0
    parked_at: int | None = None


Find = Callable[[Sequence[Dying]], list[Sighting]]
GroupPlace = tuple[str, int, int]
"""Group, topic id, partition."""


class DeadLetters:
    """Of one term of leadership; called by the sequencer's thread, and looks in one of `executor`."""

    def __init__(self, find: Find, executor: Executor, clock: Clock, removing: Lock) -> None:
        """removing: who has it removes data files, or keeps others from it."""
        self._find, self._executor, self._clock, self._removing = find, executor, clock, removing
        self._keeps_files = False
        self._running: Future[list[Sighting]] | None = None
        self._begun_ms = self._next_ms = clock.steady_ms()
        self._wanted: list[Dying] = []
        self._looks: dict[GroupPlace, _Look] = {}

    def is_working(self, state: State) -> bool:
        """Whether something is being looked for, or is to be."""
        return self._is_looking or not all(self._is_parked(state, place) for place in state.dying)

    def _is_parked(self, state: State, place: GroupPlace) -> bool:
        look = self._looks.get(place)
        return look is not None and look.parked_at == state.next_topic_id

    @property
    def _is_looking(self) -> bool:
        return self._running is not None and self._clock.steady_ms() < self._begun_ms + LOOK_TIMEOUT_MS

    def due_in_ms(self, state: State) -> float | None:
        """Until there is something to do; None: nothing is dying."""
        if not state.dying:
            return None
        if self.is_working(state):
            return _EVERY_MS
        again_ms = min(self._looks[place].again_ms for place in state.dying)
        return max(_EVERY_MS, again_ms - self._clock.steady_ms())

    def found(self, state: State) -> list[DyingFound]:
        """What the next step is to decide of; begins the next look when it is time. Called once per step: what was
        found before has landed by then.
        """
        found = self._take(state) if self._running is not None and self._running.done() else []
        now_ms = self._clock.steady_ms()
        if found or self._is_looking:
            return found
        if self._keeps_files:  # who waits to remove files has until the next step
            self._keeps_files = False
            self._removing.release()
            return []
        if now_ms >= self._next_ms and state.dying:
            self._next_ms = now_ms + _EVERY_MS
            self._wanted = self._to_look_for(state, now_ms)
            if self._wanted and self._removing.acquire(blocking=False):
                self._begun_ms, self._keeps_files = now_ms, True
                self._running = self._executor.submit(self._find, self._wanted)
        return []

    def _to_look_for(self, state: State, now_ms: int) -> list[Dying]:
        self._looks = {place: look for place, look in self._looks.items() if place in state.dying}
        wanted: list[Dying] = []
        for place in sorted(state.dying):
            one, look = _dying(state, *place), self._looks.get(place)
            if look is None or look.wanted != one:
                look = self._looks[place] = _Look(one, now_ms, now_ms)
            if one is None:
                look.parked_at, look.again_ms = state.next_topic_id, now_ms + RETRY_MS
            elif len(wanted) < _AT_ONCE and (now_ms >= look.again_ms or not self._is_parked(state, place)):
                wanted.append(one.since(look.looked_until))
        return wanted

    def _take(self, state: State) -> list[DyingFound]:
        running, self._running = self._running, None
        assert running is not None
        now_ms, error = self._clock.steady_ms(), running.exception()
        if error is not None:
            is_known = isinstance(error, OSError)
            log.warning("Dying messages could not be looked for: %s", error, exc_info=None if is_known else error)
            self._next_ms = now_ms + 10 * _EVERY_MS
            return []
        if now_ms >= self._begun_ms + LOOK_TIMEOUT_MS:
            return []
        sightings = running.result()
        for wanted, (found, end) in zip(self._wanted, sightings, strict=False):  # the rest is looked for again
            look = self._looks.get((wanted.group, wanted.topic_id, wanted.partition))
            if look is None:
                continue
            if end < wanted.end:
                look.looked_until = end
                continue
            count = sum(rows.length for rows in found.rows) + sum(length for _, length in found.empty)
            is_whole = count == sum(length for _, length in wanted.ranges)
            look.looked_until = 0
            is_parked = is_whole or now_ms > look.since_ms + PATIENCE_MS
            look.parked_at = state.next_topic_id if is_parked else None
            look.again_ms = now_ms + (RETRY_MS if is_parked else 0)
        told = [found for found, _ in sightings if found.rows or found.empty]
        if told:
            self._next_ms = now_ms  # there may be more than one look tells of
        return told


def _dying(state: State, group: str, topic_id: int, partition: int) -> Dying | None:
    known, whose = state.deliveries_of(group, (topic_id, partition)), state.groups.get(group)
    is_known = group == REDRIVE or whose is not None
    if known is None or not is_known or topic_id not in state.topics or not known.dying_count:
        return None
    log_start = int(state.topics[topic_id].log_starts[partition])
    stretches = (one.cut(max(one.first, log_start), one.end) for one in known.dying() if one.end > log_start)
    ranges = tuple((one.first, one.length) for one in stretches)
    committed = whose is None or whose.setting("isolation.level") == "read_committed"
    return Dying(group, topic_id, partition, ranges, committed) if ranges else None
