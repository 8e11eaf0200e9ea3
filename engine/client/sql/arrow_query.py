"""Run the queries of `mq.sql`, whose results are Arrow tables; and wait until the tables are new enough."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import Store

from ...namespace.clock import SystemClock
from ...namespace.extras import needs
from ...namespace.load import read_watermark
from ...namespace.namespace import Namespace
from ...namespace.step_reader import (
    Snapshot,
    StepReader,
    drop_last_renewals,
    find_projection_target,
    read_waiting_steps,
    take_snapshot,
)
from ...namespace.store_errors import store_errors
from ...protocol.errors import InvalidRequest, RequestTimedOut
from . import SqlDialect
from .query import NOT_LIVE, LiveReaders, query_table

log = logging.getLogger("lakemq.sql")


_LOOK_S = 0.05

PATIENCE_S = 2.0
"""A sequencer projects every second (project.interval.ms). After this time without one, none is running."""


class Lag(NamedTuple):
    """The steps after `step`, which the tables do not hold yet. age_s: the age of the first of them."""

    step: int
    steps_behind: int
    age_s: float

    def __str__(self) -> str:
        steps = "1 step" if self.steps_behind == 1 else f"{self.steps_behind:,} steps"
        return f"as of step {self.step}, {steps} behind: the first of them was decided {self.age_s:,.1f} s ago"


def find_projection_lag(store: Store, step: int) -> Lag:
    """Compare a watermark's step with the last one that changed more than the lease."""
    try:
        waiting = StepReader(store, step, SystemClock().steady_ms).read()
    except StepsGone:  # the watermark was read more than a minute ago
        waiting = [newer for newer in read_waiting_steps(store) if newer.step > step]
    waiting = drop_last_renewals(waiting)
    if not waiting:
        return Lag(step, 0, 0.0)
    age_s = max(0.0, time.time() - waiting[0].decided_at_ms / 1000)
    return Lag(step, waiting[-1].step - step, age_s)


def wait_for_projection(store: Store, timeout_s: float, serve: Callable[[], object]) -> None:
    """Wait until the tables hold everything that is decided so far.

    If the tables do not move for a while, `serve` is called once: it starts a sequencer, which projects once it leads.

    Raises RequestTimedOut.
    """
    begun_s, target, serves = time.monotonic(), find_projection_target(store), False
    while (step := read_watermark(store).step) < target:
        waited_s = time.monotonic() - begun_s
        if waited_s >= timeout_s:
            raise RequestTimedOut(
                f"The tables were not projected within {timeout_s:g} s. Try again, or start `lakemq serve`.",
                found=f"step {step}",
                expected=f"step {target}",
            )
        if waited_s >= min(PATIENCE_S, timeout_s / 4) and not serves:
            serve()
            serves = True
        time.sleep(min(_LOOK_S, timeout_s - waited_s))


def run_sql(
    namespace: Namespace,
    text: str,
    as_of: int | datetime | None,
    wait_ms: int | None,
    serve: Callable[[], AbstractContextManager[object]],
    live: LiveReaders,
) -> pa.Table:
    """Run a query as of a step, a time or now.

    serve: starts a sequencer, which ends when the tables are projected. live: the live tables, which have no past.

    Raises InvalidRequest, StepTooOld, RequestTimedOut, MissingExtra, StorageError, TableDamaged.
    """
    if wait_ms is not None:
        if as_of is not None:
            raise InvalidRequest("wait_ms contradicts as_of, whose result does not change.", found="both")
        with ExitStack() as serving:
            wait_for_projection(namespace.store, wait_ms / 1000, lambda: serving.enter_context(serve()))
    with store_errors():
        snapshot = take_snapshot(namespace.store, as_of)
    table = _query_or_refuse(namespace, text, snapshot, live if as_of is None else NOT_LIVE)
    if as_of is None and wait_ms is None:
        lag = find_projection_lag(namespace.store, snapshot.watermark.step)
        if lag.age_s > PATIENCE_S:
            log.warning("The tables are %s. Is a sequencer serving? wait_ms waits for these steps.", lag)
    return table


def _query_or_refuse(namespace: Namespace, text: str, snapshot: Snapshot, live: LiveReaders) -> pa.Table:
    with needs("sql"):
        import duckdb

    try:
        return query_table(namespace, text, SqlDialect.spark, snapshot, live)
    except (duckdb.InterruptException, duckdb.OutOfMemoryException):
        raise
    except duckdb.Error as error:
        raise InvalidRequest(f"The query fails: {error}", found=text[:100]) from None
