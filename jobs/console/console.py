"""The objects that all pages of a console read from: one connection, one observer, one collector of metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakemq.engine.client.leadership import describe_silence, read_leadership
from lakemq.engine.client.live_tables import make_live_readers
from lakemq.engine.client.sql.query import BoundedResult, QueryLimits, run_bounded_query
from lakemq.engine.client.sql.query_process import run_query_in_process
from lakemq.engine.namespace.loading.snapshot import take_snapshot
from lakemq.errors import LakeMQError
from lakemq.jobs.console.settings import ConsoleSettings
from lakemq.tables.storage.coordination.leader_locks import LeaderLocks

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.observer import Observer
    from lakemq.jobs.doctor.finding import Finding
    from lakemq.jobs.metrics.collector import NamespaceCollector

QUERY_LIMITS = QueryLimits(timeout_s=20.0, max_rows=1_000, memory_mb=1_024)
"""Bounds of a query, unless its console has others. It must not take the memory of a sequencer in the same process."""


class NotPossible(Exception):
    """The namespace does not allow this now. The message says why, and what to do."""


@dataclass(frozen=True)
class Console:
    """The namespace as pages see it.

    Attributes:
        mq: the connection.
        observer: groups, transactions and delayed messages as of one step.
        collector: the metrics.
        settings: what the console allows.
        examine: runs the doctor's checks.
        query_limits: bounds of a query.
    """

    mq: Connection
    observer: Observer
    collector: NamespaceCollector
    settings: ConsoleSettings
    examine: Callable[[], Sequence[Finding]]
    query_limits: QueryLimits = QUERY_LIMITS
    _query_lock: threading.Lock = field(default_factory=threading.Lock)

    def run_sql(self, text: str) -> BoundedResult:
        """Run a visitor's query over the tables as of the last projection, in a process within `query_limits`.

        Raises:
            NotPossible: another query runs.
            InvalidRequest: the query fails, or takes too long.
            MissingExtra: the extra `sql` is not installed.
        """
        with self._lock_queries():
            live = make_live_readers(self.mq.namespace, lambda: self.observer)
            return run_query_in_process(self.mq.namespace, text, self.query_limits, live)

    def read_rows(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of a page. Raises as `run_sql`."""
        with self._lock_queries():
            namespace = self.mq.namespace
            return run_bounded_query(namespace, text, self.query_limits, take_snapshot(namespace.store)).rows

    @contextmanager
    def _lock_queries(self) -> Iterator[None]:
        if not self._query_lock.acquire(timeout=self.query_limits.timeout_s):
            raise NotPossible("Another query runs. Try again when it has ended.")
        try:
            yield
        finally:
            self._query_lock.release()

    def describe_silence(self) -> str:
        """Return a sentence if the leader does not work, so that pages show the past; "" too if that cannot be read."""
        try:
            with self.observer.look() as observation:
                return describe_silence(read_leadership(self.mq.namespace.files, observation.state))
        except (LakeMQError, OSError):  # the page itself says what cannot be read
            return ""

    def check_leader(self) -> None:
        """Raise NotPossible if no sequencer would decide a request now."""
        leader = self.mq.state().leader
        if not leader or LeaderLocks(self.mq.namespace.files).is_dead(leader):
            raise NotPossible(
                "No sequencer leads, so nothing can be changed. Start one with `lakemq serve`, then try again."
            )


def quote_sql(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
