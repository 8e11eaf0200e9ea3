"""The fetcher of a connection: its reader, which one thread at a time moves on, the plans made with it, and waits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.coordination.step_objects import STEPS_FOLDER, StepsGone
from lakemq.tables.storage.object_stores.inotify import Watch

from ...namespace.clock import LOOK_MS, Clock, FolderWaiter
from ...namespace.namespace import Namespace
from ...namespace.process import OwnLock, new_id
from ...namespace.step_reader import follow_from_watermark
from ...protocol.errors import LakeMQError, MissingTopic, OffsetOutOfRange, UnknownTopicOrPartition
from ...protocol.projection import MEMBERS, READERS
from ...protocol.values.state import State
from ...protocol.values.topics import Bounds, TopicDeleted
from ..arguments import format_time
from ..offsets import TopicPartition
from ..requests.direct_line import DirectLine, FollowLine
from ..schemas import SchemaRule
from ..schemas.topic_schema import find_reading_rule
from .fetch_result import FetchResult
from .log_reader import WHOLE, Reader
from .plan import (
    FetchPlan,
    FetchPosition,
    Isolation,
    offsets_for_times,
    plan_fetch,
    plan_positions,
    plan_tail,
    replan,
)
from .rows import RowGroupCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class Fetcher:
    """Reads the state and messages of a namespace. Thread-safe. Its arguments were checked by the caller."""

    def __init__(
        self,
        namespace: Namespace,
        clock: Clock,
        spark: SparkSession | None,
        tables: Sequence[str] = READERS,
    ) -> None:
        """tables: from which the state is loaded."""
        self._namespace, self._clock, self._spark = namespace, clock, spark
        self._lock = OwnLock("This connection", threading.RLock())
        self._reader, self._tables = self._new_reader(tables), tables
        self._deletions: tuple[int, Mapping[str, str]] = 0, {}
        """Of how many deleted topics these are the sentences, by topic."""

    def _new_reader(self, tables: Sequence[str] = READERS) -> Reader:
        """Return a reader of this namespace, and of none that was created again at its path."""
        return Reader(self._namespace.store, self._clock, tables, self._namespace.namespace_id)

    def read_state(self) -> State:
        """Return a snapshot of topics and partitions as of the newest step, which no later call changes."""
        return self.query(State.snapshot)

    def query(self, read: Callable[[State], T]) -> T:
        """Return what `read` makes of topics and partitions as of the newest step.

        `read` must not keep any part of the state, because later steps change it.
        """
        try:
            with self._lock.own:
                return read(self._reader.refresh())
        except UnknownTopicOrPartition as error:
            raise self.explain_missing(error) from None

    def query_groups(self, read: Callable[[State], T], newest: bool = True) -> T:
        """Return what `read` makes of the state as of the newest step, with groups, members and offsets.

        The first call loads these; from then on they are followed. `read` must not keep any part of the state.

        newest: whether to read newer steps first. False: as of the step that was read last.
        """
        with self._lock.own:
            if self._tables is READERS:
                self._reader, self._tables = self._new_reader(MEMBERS), MEMBERS
            return read(self._find_state(newest))

    def _find_state(self, newest: bool) -> State:
        """Return the state as of the newest step, or of the one that was read last. The lock is held."""
        # Step 0: nothing was read yet, or the last look was interrupted, so that the state is not whole.
        return self._reader.refresh() if newest or self._reader.step == 0 else self._reader.state

    def make_whole_reader(self) -> Reader:
        """Return a reader of the state with producers, transactions and groups.

        Each refresh changes the state that the one before returned. So keep no part of it, and share it with no thread.
        """
        return self._new_reader(WHOLE)

    def make_whole_fetcher(self) -> Fetcher:
        """Return another fetcher of this namespace, whose state has producers, transactions and groups."""
        return Fetcher(self._namespace, self._clock, self._spark, WHOLE)

    @contextmanager
    def look(self) -> Iterator[Reader]:
        """Yield the reader, which stands on the newest step. Other threads wait until the block ends."""
        with self._lock.own:
            self._reader.refresh()
            yield self._reader

    def read_dead_letter_topic_ids(self) -> list[int]:
        """Return the ids of topics that have dead letters in the tables. Some may be deleted."""
        is_dead_letter = (pc.field("kind") == "data") & pc.field("dead_letter").is_valid()
        rows = self._namespace.store.open(SEGMENTS).read(["topic_id"], is_dead_letter)
        topic_ids: list[int] = rows.column("topic_id").unique().to_pylist()
        return topic_ids

    def find_bounds(
        self, topics: Iterable[str], isolation: Isolation, newest: bool = True
    ) -> dict[tuple[str, int], Bounds]:
        """Return (topic, partition) -> its bounds, as of one step. Raises UnknownTopicOrPartition, InvalidRequest.

        newest: whether to read newer steps first. False: as of the step that was read last.
        """

        def find(state: State) -> dict[tuple[str, int], Bounds]:
            return {
                (name, partition): bounds
                for name in topics
                for partition, bounds in enumerate(state.topic(name).read_bounds(isolation))
            }

        try:
            with self._lock.own:
                return find(self._find_state(newest))
        except UnknownTopicOrPartition as error:
            raise self.explain_missing(error) from None

    def plan(
        self,
        topic: str,
        isolation: Isolation,
        start: FetchPosition,
        end: FetchPosition,
        partitions: list[int] | None = None,
        include_expired: bool = False,
    ) -> FetchPlan:
        """Return the plan of a fetch as of the newest step; see `plan_positions`."""

        def plan_with(reader: Reader) -> FetchPlan:
            reader.refresh(checks_end=True)
            return plan_positions(
                reader, self._namespace.files, topic, isolation, start, end, partitions, include_expired
            )

        try:
            if isinstance(start, datetime) or isinstance(end, datetime):
                # Times need data files. A reader of its own reads them, so that no other thread waits for the lock.
                return plan_with(self._new_reader())
            with self._lock.own:
                return plan_with(self._reader)
        except UnknownTopicOrPartition as error:
            raise self.explain_missing(error) from None

    def explain_missing(self, error: MissingTopic) -> MissingTopic:
        """Return the error, which says when and by whom the topic was deleted, if it was."""
        reason = ""
        if isinstance(error.found, str):
            topic, _, _ = error.found.partition(" with id ")
            with suppress(LakeMQError):
                reason = self.describe_deletion(topic, self.query(lambda state: state.deleted_topic_count))
        return type(error)(f"{error.detail} {reason}".lstrip(), found=error.found) if reason else error

    def describe_deletion(self, topic: str, deleted_topic_count: int) -> str:
        """Return a sentence that says when and by whom a topic was deleted; empty if that is not known.

        deleted_topic_count: of the state that lacks the topic. The journal is read again only if it has grown.
        """
        if self._deletions[0] != deleted_topic_count:
            with suppress(LakeMQError, StepsGone, OSError):  # the error or wait that this explains comes first
                self._deletions = deleted_topic_count, _read_deletions(self._namespace, self._clock)
        return self._deletions[1].get(topic, "")

    def fetch_ranges(
        self,
        cache: RowGroupCache,
        topic: str,
        topic_id: int,
        isolation: Isolation,
        start: Mapping[int, int],
        end: Mapping[int, int],
    ) -> FetchResult:
        """Fetch offsets that the caller has just found in the state. This looks for no newer step.

        Args:
            cache: row groups of a consumer, which reads on in them.
            topic: name of the topic.
            topic_id: of the topic that is meant.
            isolation: which messages are visible.
            start, end: partition -> first offset, and end offset (exclusive).

        Raises:
            OffsetOutOfRange, UnknownTopicOrPartition: the offsets or the topic were deleted since.
        """
        with self._lock.own:
            current = self._find_state(newest=False).topics.get(topic_id)
            if current is None:
                raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=topic)
            plan = plan_fetch(self._reader, current, isolation, start, end)
        return self.open_plan(plan, cache)

    def open_plan(
        self, plan: FetchPlan, cache: RowGroupCache | None = None, schema: SchemaRule | None = None
    ) -> FetchResult:
        """Return the result of a plan.

        Args:
            plan: what to read.
            cache: row groups of a consumer, which reads on in them.
            schema: the schema that parses values.
        """
        return FetchResult(self._namespace, plan, self._spark, self._replan, cache, schema, self.find_schema)

    def find_schema(self, *topics: str) -> SchemaRule:
        """Return the newest schema of the topics.

        Raises UnknownTopicOrPartition, InvalidRequest (a topic lacks a schema, or they differ).
        """
        return self.query(lambda state: find_reading_rule(map(state.topic, topics)))

    def _replan(self, plan: FetchPlan) -> FetchPlan | None:
        reader = self._new_reader()
        reader.refresh()
        return replan(reader, plan)

    def follow_log(
        self, first: FetchPlan, isolation: Isolation, poll_ms: int, check_open: Callable[[], object]
    ) -> Iterator[pa.Table]:
        """Yield tables of what comes from the starts of a plan on, without end. Wait while nothing comes."""
        tables = self.read_tables_after(first, isolation)
        waiter = self.new_waiter(threading.Event())
        try:
            while True:
                check_open()
                if waiter.needs_look():
                    waiter.reset()
                    if (table := next(tables)) is not None:
                        waiter.note_arrival()
                        yield table
                        continue
                waiter.wait(poll_ms, LOOK_MS)
        finally:
            waiter.close()

    def read_tables_after(self, first: FetchPlan, isolation: Isolation) -> Iterator[pa.Table | None]:
        """Yield tables of what comes from the starts of a plan on, without end; None each time nothing has come."""
        position, planned_step = {range_.partition: range_.start for range_ in first.ranges}, -1
        while True:
            plan = None
            with self._lock.own:
                step = self._reader.refresh().step
                if step != planned_step:
                    plan = plan_tail(self._reader, first.topic, first.topic_id, isolation, position)
            planned_step = step
            if plan is None:
                yield None
                continue
            position.update({range_.partition: range_.end for range_ in plan.ranges})
            if not plan.ranges:
                yield None
                continue
            table = self.open_plan(plan).to_arrow()
            if table.num_rows:  # else there were only markers, aborted or expired messages
                yield table

    def new_waiter(self, news: threading.Event, longest_ms: int | None = None) -> StepWaiter:
        """Return a waiter for steps that this fetcher has not read. The arguments are those of StepWaiter."""
        dialer = DirectLine(self._namespace.files, self._namespace.namespace_id, self._clock)
        return StepWaiter(
            self.watch_steps,
            self._clock,
            FollowLine(dialer, new_id, self._clock),
            read_step=lambda: self._reader.step,
            read_lease_ms=lambda: self._reader.state.lease_ms,
            news=news,
            longest_ms=longest_ms,
        )

    def watch_steps(self) -> Watch | None:
        """Return a watch that tells of new steps; None if the store cannot tell."""
        return self._namespace.files.watch(STEPS_FOLDER)

    def offsets_for_times(self, topic: str, times: Mapping[int, int | datetime]) -> dict[int, tuple[int, int] | None]:
        """Return partition -> (offset, timestamp in ms) of its first message not before the time; None: there is none.

        It reads data files with a reader of its own, so that no other thread waits.
        """
        return offsets_for_times(self._new_reader(), self._namespace.files, topic, times)


class RangeFetcher:
    """Fetches for one consumer.

    Attributes:
        fetch: fetches ranges of a topic.
        isolation: which messages are visible. A queue group has its own setting, which may change.
    """

    def __init__(self, fetch: Callable[..., FetchResult], isolation: Isolation) -> None:
        self.fetch, self.isolation = fetch, isolation

    def fetch_topics(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, int],
        all_partitions: Collection[TopicPartition],
    ) -> list[FetchResult] | None:
        """Fetch the offsets from `starts` to `ends`, topic by topic; return None if any of them were deleted meanwhile.

        Args:
            starts: (topic, partition) -> first offset, at least for the partitions in `ends`.
            ends: (topic, partition) -> end offset (exclusive).
            topic_ids: of these topics.
            all_partitions: partitions of the consumer. If there is nothing to fetch, one of their topics is fetched
                without offsets, so that a batch without messages is a table and a DataFrame as well.
        """
        parts = []
        for topic in sorted({topic for topic, _ in ends} or {topic for topic, _ in list(all_partitions)[:1]}):
            topic_ends = {partition: end for (name, partition), end in ends.items() if name == topic}
            topic_starts = {partition: starts[topic, partition] for partition in topic_ends}
            part = self.try_to_fetch(topic, topic_ids[topic], topic_starts, topic_ends)
            if part is None:
                return None
            parts.append(part)
        return parts

    def try_to_fetch(
        self, topic: str, topic_id: int, start: Mapping[int, int], end: Mapping[int, int]
    ) -> FetchResult | None:
        """Fetch ranges of a topic; None: some of them, or all of the topic, were deleted meanwhile."""
        try:
            return self.fetch(topic, topic_id, self.isolation, start, end)
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            return None


def _read_deletions(namespace: Namespace, clock: Clock) -> dict[str, str]:
    """Return a sentence for each deleted topic that the journal knows, or a step after the tables."""
    _, steps = follow_from_watermark(namespace.store, clock.steady_ms, namespace.namespace_id)
    columns, is_deletion = ["subject", "request_id", "decided_at_ms", "step"], pc.field("kind") == "topic_deleted"
    rows = namespace.store.open(JOURNAL).read(columns, is_deletion).sort_by("step").to_pylist()
    deletions = [(row["subject"], row["request_id"], row["decided_at_ms"]) for row in rows] + [
        (entry.record.topic, entry.request_id, step.decided_at_ms)
        for step in steps.read()
        for entry in step.entries
        if isinstance(entry.record, TopicDeleted)
    ]
    return {
        topic: f"The topic was deleted at {format_time(ms)} by {(request_id or '').rpartition('/')[0] or 'no client'}."
        for topic, request_id, ms in deletions
    }


# Wait for the next step: until the file system or the leader reports one, or else by polling.
#
# Both only shorten the wait. What the waiter's owner then reads, it reads from the store, by the rules of
# `StepFollower`. So a wrong, late or missing hint cannot show a step that was not decided, nor hide one for longer than
# the time that `find_line_look_ms` returns.
#
# The file system comes first, where it tells of new files: it takes nothing from the leader. The line is for stores and
# systems that tell nothing. There each look costs a request, or a wake-up.


LEAST_LINE_LOOK_MS, MOST_LINE_LOOK_MS = 5_000, 12_000
"""Bounds of the time between two looks while a line is open. A reader that has not looked for 15 s loads its tables
again (`fetch.log_reader`), which takes many requests; so it looks before that."""

WATCHED_LOOK_MS = 1_000
"""Longest wait where the system tells of new steps. More looks would cost an idle reader more than all else."""

_SLICE_MS = 20.0
"""How often a wait on a line looks whether its owner has another reason to look."""

_CLOSE_S = 1.0


def find_line_look_ms(lease_ms: int) -> int:
    """Return the time between two looks while a line is open: the lease, within bounds.

    A leader that ends closes its lines. One that is stopped cannot do this, nor tell that another sequencer decides,
    but no other one leads before the lease has passed. If a look finds a step that nobody told of, the line is dropped.
    """
    return min(max(lease_ms, LEAST_LINE_LOOK_MS), MOST_LINE_LOOK_MS)


class StepWaiter:
    """Waits for steps. Its owner calls `reset`, looks, and calls `wait` only if it found nothing.

    It serves one thread at a time. Another one that comes meanwhile sleeps instead of waiting.
    """

    def __init__(
        self,
        watch: Callable[[], Watch | None],
        clock: Clock,
        line: FollowLine,
        read_step: Callable[[], int],
        read_lease_ms: Callable[[], int],
        news: threading.Event,
        longest_ms: int | None = None,
    ) -> None:
        """Create a waiter.

        Args:
            watch: returns a new watch of the folder of steps; None: the system cannot watch it.
            line: to the leader, for this waiter alone.
            read_step: returns the last step that was read, without looking for newer ones.
            read_lease_ms: returns the time for which a leader leads, as of the step.
            news: set by others when there is another reason to look, such as an answer. The waiter clears it.
            longest_ms: how long to wait at most while the line is open. None: until it is time to look again.
        """
        self._folder, self._clock, self._line = FolderWaiter(watch, clock, news), clock, line
        self._read_step, self._read_lease_ms, self._news = read_step, read_lease_ms, news
        self._longest_ms = longest_ms
        self._busy = threading.Lock()
        self._thread_id = 0
        """The thread that has called `reset` last. What it has noted is of no use to another one."""
        self._step = 0
        self._looked_ms = clock.steady_ms()
        self._waited_long = False
        weakref.finalize(self, _close_all, self._folder, line)

    def reset(self) -> None:
        """Prepare for a look: a step that is decided from now on ends the next wait."""
        if self._busy.acquire(blocking=False):
            try:
                self._thread_id = threading.get_ident()
                self._folder.reset()
                if self._folder.watch is None:  # the line tells of steps
                    # The number may be older than what the look then finds. Then the leader's hint comes at once.
                    self._step, self._looked_ms = self._read_step(), self._clock.steady_ms()
            finally:
                self._busy.release()

    def needs_look(self) -> bool:
        """Return whether a step or other news may have come since the last `reset`.

        It is False for at most the time of `find_line_look_ms`, and only while the leader owes a hint: this waiter has
        asked for one on its line, and none has come. On a disk that tells of new files it is always True: a look costs
        little there.
        """
        if self._thread_id != threading.get_ident() or not self._busy.acquire(blocking=False):
            return True
        try:
            if self._folder.watch is not None:
                return True
            if self._news.is_set() or not self._line.owes_hint():
                self._waited_long = False
                return True
            self._waited_long = self._clock.steady_ms() - self._looked_ms >= self._find_look_ms()
            return self._waited_long
        finally:
            self._busy.release()

    def note_arrival(self) -> None:
        """Note that the look found something."""
        self._folder.note_arrival()
        if self._waited_long and self._busy.acquire(blocking=False):
            try:
                self._line.close()
            finally:
                self._busy.release()
        self._waited_long = False

    def wait(self, poll_ms: float, most_ms: float | None = None) -> None:
        """Wait for the next step, or for other news.

        Args:
            poll_ms: how long to wait if nothing tells of steps.
            most_ms: how long to wait at most. Without it, the owner waits for steps alone, and looks less often.
        """
        if self._thread_id != threading.get_ident() or not self._busy.acquire(blocking=False):
            self._clock.sleep(poll_ms if most_ms is None else min(poll_ms, most_ms))
            return
        try:
            if self._folder.watch is not None or not self._line.await_step(self._step, most_ms):
                self._folder.wait(poll_ms, WATCHED_LOOK_MS if most_ms is None else min(most_ms, WATCHED_LOOK_MS))
            else:
                self._wait_on_line(most_ms)
        finally:
            self._busy.release()

    def _wait_on_line(self, most_ms: float | None) -> None:
        self._waited_long = False
        longest_ms = self._find_look_ms() if self._longest_ms is None else self._longest_ms
        wait_ms = longest_ms if most_ms is None else min(most_ms, longest_ms)
        deadline_ms = self._clock.steady_ms() + wait_ms
        while (left_ms := deadline_ms - self._clock.steady_ms()) > 0:
            if self._line.wait_for_hint(min(_SLICE_MS, left_ms)) or self._news.is_set():
                return
        self._waited_long = wait_ms >= longest_ms

    def _find_look_ms(self) -> int:
        return find_line_look_ms(self._read_lease_ms())

    def close(self) -> None:
        """Stop watching. A wait in another thread ends first."""
        self._news.set()
        # In a forked child a thread that does not exist there may hold the lock.
        if self._busy.acquire(timeout=_CLOSE_S):
            try:
                _close_all(self._folder, self._line)
            finally:
                self._busy.release()


def _close_all(folder: FolderWaiter, line: FollowLine) -> None:
    folder.close()
    line.close()
