"""Searches beside the steps: for the rows of dying messages, which become dead letters; for what retention deletes.

A step decides the findings. A search reads tables in another thread, and writes nothing.

From the beginning of a search for dying messages until a step with its findings has landed, no data file may be
removed: if a file is merged meanwhile, only the findings still name it. `removing` is the lock for that. The search
holds it, and so does the removal of files.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from threading import Lock

from ..maintenance.dying_messages import DyingMessages, Sighting
from ..namespace.clock import Clock
from ..protocol.values.dead_letters import REDRIVE, DyingFound
from ..protocol.values.state import State
from ..protocol.values.topics import LogOutgrown, Topic

log = logging.getLogger("lakemq.serve")

DYING_LOOK_TIMEOUT_MS = 10_000
"""Findings of a search that takes longer are ignored."""
RETRY_MS = 60_000
"""When to look again for messages that cannot become dead letters now. A new topic may be the missing one, so its
creation starts a search at once.
"""
PATIENCE_MS = 10_000
"""How long the rows of dying messages may be in no table yet. After that they count as missing."""
_EVERY_MS = 100
_AT_ONCE = 100
"""Partitions per search."""


@dataclass
class _PartitionSearch:
    """The search for one partition's dying messages of a group.

    Attributes:
        wanted: the messages to find.
        since_ms: since when they are searched.
        again_ms: when to search again.
        looked_until: offsets before this one were searched already.
        parked_at: a search would find nothing new while the next topic has this id. Only a new topic changes that.
    """

    wanted: DyingMessages | None
    since_ms: int
    again_ms: int
    looked_until: int = 0
    parked_at: int | None = None


Find = Callable[[Sequence[DyingMessages]], list[Sighting]]
GroupPartition = tuple[str, int, int]
"""Group, topic id, partition."""


class DyingSearch:
    """The searches of one term. The sequencer's thread calls it; a search runs in `executor`."""

    def __init__(self, find: Find, executor: Executor, clock: Clock, removing: Lock) -> None:
        """removing: held by whoever removes data files, or must keep them from being removed."""
        self._find, self._executor, self._clock, self._removing = find, executor, clock, removing
        self._holds_files = False
        self._running: Future[list[Sighting]] | None = None
        self._begun_ms = self._next_ms = clock.steady_ms()
        self._searched: list[DyingMessages] = []
        self._searches: dict[GroupPartition, _PartitionSearch] = {}

    def is_working(self, state: State) -> bool:
        """Return whether a search runs or is due."""
        return self._is_search_running or not all(self._is_parked(state, tp) for tp in state.dying)

    def _is_parked(self, state: State, tp: GroupPartition) -> bool:
        search = self._searches.get(tp)
        return search is not None and search.parked_at == state.next_topic_id

    @property
    def _is_search_running(self) -> bool:
        return self._running is not None and self._clock.steady_ms() < self._begun_ms + DYING_LOOK_TIMEOUT_MS

    def due_in_ms(self, state: State) -> float | None:
        """Return in how many ms there is work. None: no message is dying."""
        if not state.dying:
            return None
        if self.is_working(state):
            return _EVERY_MS
        again_ms = min(self._searches[tp].again_ms for tp in state.dying)
        return max(_EVERY_MS, again_ms - self._clock.steady_ms())

    def take_findings(self, state: State) -> list[DyingFound]:
        """Return what the next step must decide, and begin a search when one is due.

        Call it once per step. What the call before returned has landed by then.
        """
        findings = self._take_result(state) if self._running is not None and self._running.done() else []
        now_ms = self._clock.steady_ms()
        if findings or self._is_search_running:
            return findings
        if self._holds_files:  # let a waiting removal of files run until the next step
            self._holds_files = False
            self._removing.release()
            return []
        if now_ms >= self._next_ms and state.dying:
            self._next_ms = now_ms + _EVERY_MS
            self._searched = self._choose_due(state, now_ms)
            if self._searched and self._removing.acquire(blocking=False):
                self._begun_ms, self._holds_files = now_ms, True
                self._running = self._executor.submit(self._find, self._searched)
        return []

    def _choose_due(self, state: State, now_ms: int) -> list[DyingMessages]:
        self._searches = {tp: search for tp, search in self._searches.items() if tp in state.dying}
        chosen: list[DyingMessages] = []
        for tp in sorted(state.dying):
            messages, search = _list_dying_stretches(state, *tp), self._searches.get(tp)
            if search is None or search.wanted != messages:
                search = self._searches[tp] = _PartitionSearch(messages, now_ms, now_ms)
            if messages is None:
                search.parked_at, search.again_ms = state.next_topic_id, now_ms + RETRY_MS
            elif len(chosen) < _AT_ONCE and (now_ms >= search.again_ms or not self._is_parked(state, tp)):
                chosen.append(messages.cut_before(search.looked_until))
        return chosen

    def _take_result(self, state: State) -> list[DyingFound]:
        running, self._running = self._running, None
        assert running is not None
        now_ms, error = self._clock.steady_ms(), running.exception()
        if error is not None:
            is_known = isinstance(error, OSError)
            log.warning("Dying messages could not be looked for: %s", error, exc_info=None if is_known else error)
            self._next_ms = now_ms + 10 * _EVERY_MS
            return []
        if now_ms >= self._begun_ms + DYING_LOOK_TIMEOUT_MS:
            return []
        sightings = running.result()
        for messages, (finding, end) in zip(self._searched, sightings, strict=False):  # the rest is looked for again
            search = self._searches.get((messages.group, messages.topic_id, messages.partition))
            if search is None:
                continue
            if end < messages.end:
                search.looked_until = end
                continue
            count = sum(rows.length for rows in finding.rows) + sum(length for _, length in finding.empty)
            is_whole = count == sum(length for _, length in messages.ranges)
            search.looked_until = 0
            is_parked = is_whole or now_ms > search.since_ms + PATIENCE_MS
            search.parked_at = state.next_topic_id if is_parked else None
            search.again_ms = now_ms + (RETRY_MS if is_parked else 0)
        findings = [finding for finding, _ in sightings if finding.rows or finding.empty]
        if findings:
            self._next_ms = now_ms  # one search may not find everything
        return findings


def _list_dying_stretches(state: State, group: str, topic_id: int, partition: int) -> DyingMessages | None:
    deliveries, group_state = state.find_deliveries(group, (topic_id, partition)), state.groups.get(group)
    has_owner = group == REDRIVE or group_state is not None
    if deliveries is None or not has_owner or topic_id not in state.topics or not deliveries.dying_count:
        return None
    log_start = int(state.topics[topic_id].log_starts[partition])
    stretches = (
        stretch.cut(max(stretch.first, log_start), stretch.end)
        for stretch in deliveries.list_dying_stretches()
        if stretch.end > log_start
    )
    ranges = tuple((stretch.first, stretch.length) for stretch in stretches)
    committed = group_state is None or group_state.setting("isolation.level") == "read_committed"
    return DyingMessages(group, topic_id, partition, ranges, committed) if ranges else None


# Schedule the leader's search for messages that retention deletes. A step decides what the search has found.
#
# A search reads tables in another thread, and writes nothing. It works with the topics as they were when it began. The
# step that decides checks what has changed since.


MAX_TOPICS_PER_STEP = 50
"""Topics that one step decides. With a thousand groups that each have committed offsets of forty partitions, it takes
about 0.1 s to count what they lose.
"""
RETENTION_LOOK_TIMEOUT_MS = 60_000
"""Time after which `is_working` ignores a search that has not ended."""
_SOON_MS = 5

FindOutgrown = Callable[[Mapping[int, Topic], int], list[LogOutgrown]]
"""Topics and the present time -> what retention deletes."""


class RetentionSearch:
    """The searches of one term. The sequencer's thread calls it; a search runs in `executor`."""

    def __init__(self, look: FindOutgrown, executor: Executor, clock: Clock, interval_ms: int) -> None:
        """The first search begins after one interval: a new leader has more urgent work."""
        self._find, self._executor, self._clock, self._interval_ms = look, executor, clock, interval_ms
        self._due_ms = clock.steady_ms() + interval_ms
        self._given_up_ms = 0
        self._running: Future[list[LogOutgrown]] | None = None
        self._found: deque[LogOutgrown] = deque()

    def make_due(self) -> None:
        """Begin a search with the next step. A run of a few steps would otherwise never reach one."""
        self._due_ms = self._clock.steady_ms()

    @property
    def is_working(self) -> bool:
        """Whether a search runs, or its findings are not decided yet."""
        is_looking = self._running is not None and self._clock.steady_ms() < self._given_up_ms
        return is_looking or bool(self._found)

    def due_in_ms(self) -> float:
        """Return in how many ms there is work."""
        if self.is_working:
            return _SOON_MS
        return max(_SOON_MS, self._due_ms - self._clock.steady_ms())

    def take_outgrown(self, state: State, now_ms: int) -> list[LogOutgrown]:
        """Return what the next step must decide, and begin a search when one is due.

        now_ms: no later than the time of any coming step, and no later than the store's.
        """
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            self._take_result(running)
        steady_ms = self._clock.steady_ms()
        if self._running is None and not self._found and steady_ms >= self._due_ms:
            self._due_ms, self._given_up_ms = steady_ms + self._interval_ms, steady_ms + RETENTION_LOOK_TIMEOUT_MS
            self._running = self._executor.submit(self._find, state.snapshot().topics, now_ms)
        return [self._found.popleft() for _ in range(min(MAX_TOPICS_PER_STEP, len(self._found)))]

    def _take_result(self, running: Future[list[LogOutgrown]]) -> None:
        error = running.exception()
        if error is None:
            self._found.extend(running.result())
        else:  # whatever the store raises: an unreadable table deletes nothing
            is_known = isinstance(error, OSError)
            log.warning("Old messages could not be looked for: %s", error, exc_info=None if is_known else error)
