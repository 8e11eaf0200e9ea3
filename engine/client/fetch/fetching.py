"""Fetching for a connection: its reader, which one thread at a time moves on, and what is planned with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.storage.delta_log import log_folder
from lakemq.tables.storage.inotify import Watch

from ...namespace.clock import Clock
from ...namespace.namespace import Namespace
from ...namespace.process import OwnLock
from ...protocol.projection import MEMBERS
from ...protocol.values.state import State
from .fetched import Fetched
from .kept import KeptRows
from .plan import Bounds, FetchPlan, Isolation, Position, bounds_of, plan_again
from .positions import offsets_for_times, plan_positions, plan_tail
from .reader import WHOLE, Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class Fetching:
    """Thread-safe. Arguments are those that were checked."""

    def __init__(self, namespace: Namespace, clock: Clock, spark: SparkSession | None) -> None:
        self._namespace, self._clock, self._spark = namespace, clock, spark
        self._lock = OwnLock("This connection")
        self._reader = Reader(namespace.store, clock)
        self._knows_groups = False

    def state(self) -> State:
        """Topics and partitions as of the newest step; others that look for a newer one do not change them."""
        return self.look(State.snapshot)

    def look(self, what: Callable[[State], T]) -> T:
        """What it makes of topics and partitions as of the newest step. It keeps none of them: they change."""
        with self._lock.own:
            return what(self._reader.refresh())

    def of_groups(self, look: Callable[[State], T]) -> T:
        """What `look` takes from the state as of the newest step, groups, members and offsets included.

        From the first call on these are loaded, too. look: keeps nothing of the state, which goes on.
        """
        with self._lock.own:
            if not self._knows_groups:
                self._reader, self._knows_groups = Reader(self._namespace.store, self._clock, MEMBERS), True
            return look(self._reader.refresh())

    def whole_state(self) -> State:
        """With producers, transactions and groups, read for this call alone."""
        return self.follow_all()()

    def follow_all(self) -> Callable[[], State]:
        """The same, to be called again and again. The state goes on: nothing of it is kept, or shared with threads."""
        return Reader(self._namespace.store, self._clock, WHOLE).refresh

    def stored_dead_letter_topics(self) -> list[str]:
        """Those that have dead letters, by name, as far as the tables tell."""
        is_one = (pc.field("kind") == "data") & pc.field("dead_letter").is_valid()
        ids = self._namespace.store.open(SEGMENTS).read(["topic_id"], is_one).column("topic_id").unique().to_pylist()
        return self.look(lambda state: sorted(state.topics[i].topic for i in ids if i in state.topics))

    def bounds(self, topics: Iterable[str], isolation: Isolation) -> dict[tuple[str, int], Bounds]:
        """(topic, partition) -> its bounds, as of one step. Raises UnknownTopicOrPartition, InvalidRequest."""

        def found(state: State) -> dict[tuple[str, int], Bounds]:
            return {(name, p): one for name in topics for p, one in enumerate(bounds_of(state.topic(name), isolation))}

        return self.look(found)

    def plan(
        self,
        topic: str,
        isolation: Isolation,
        start: Position,
        end: Position,
        partitions: list[int] | None = None,
        include_expired: bool = False,
    ) -> FetchPlan:
        """As of the newest step. For times data files are read: with a reader of its own, nobody waits for that."""
        given = self._namespace.files, topic, isolation, start, end, partitions, include_expired
        if isinstance(start, datetime) or isinstance(end, datetime):
            own = Reader(self._namespace.store, self._clock)
            own.refresh()
            return plan_positions(own, *given)
        with self._lock.own:
            self._reader.refresh()
            return plan_positions(self._reader, *given)

    def fetched(self, plan: FetchPlan, kept: KeptRows | None = None) -> Fetched:
        return Fetched(self._namespace, plan, self._spark, self._plan_again, kept)

    def _plan_again(self, plan: FetchPlan) -> FetchPlan | None:
        reader = Reader(self._namespace.store, self._clock)
        reader.refresh()
        return plan_again(reader, plan)

    def tables_after(self, first: FetchPlan, isolation: Isolation) -> Iterator[pa.Table | None]:
        """What comes from the plan's starts on, without an end; None each time there is nothing."""
        position, planned_step = {r.partition: r.start for r in first.ranges}, -1
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
            position.update({r.partition: r.end for r in plan.ranges})
            if not plan.ranges:
                yield None
            elif (found := self.fetched(plan).to_arrow()).num_rows:  # else it was markers, or aborted, or has expired
                yield found

    def watch_steps(self) -> Watch | None:
        """Tells of steps that come; None: they are not told of."""
        return self._namespace.files.watch(log_folder(JOURNAL.name))

    def offsets_for_times(self, topic: str, times: Mapping[int, int | datetime]) -> dict[int, tuple[int, int] | None]:
        """It reads data files: with a reader of its own, nobody waits for that."""
        return offsets_for_times(Reader(self._namespace.store, self._clock), self._namespace.files, topic, times)
