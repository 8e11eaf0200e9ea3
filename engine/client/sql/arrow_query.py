"""Run the queries of `mq.sql`, whose results are Arrow tables."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime

import pyarrow as pa

from ...namespace.loading.snapshot import Snapshot, take_snapshot
from ...namespace.namespace import Namespace
from ...namespace.processes.extras import needs
from ...namespace.store_errors import store_errors
from ...protocol.errors import InvalidRequest
from .dialects import SqlDialect
from .freshness import PATIENCE_S, find_projection_lag, wait_for_projection
from .query import NOT_LIVE, LiveReaders, query_table

log = logging.getLogger("lakemq.sql")


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
