"""Run a query that a stranger wrote in a process of its own, with little memory, time and temporary space.

DuckDB counts the memory of its buffers, not that of long texts and of the rows that Python gets. It ends a query
between two steps of its plan, and a step may be long. The operating system bounds a process whatever runs in it.
"""

import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ...namespace.extras import needs
from ...namespace.namespace import Namespace, open_namespace
from ...namespace.step_reader import take_snapshot
from ...protocol.errors import InvalidRequest, LakeMQError, Refusal, error_from_refusal
from .query import (
    NOT_LIVE,
    BoundedResult,
    LiveReaders,
    QueryLimits,
    build_timeout_error,
    find_live_names,
    run_bounded_query,
)

log = logging.getLogger("lakemq.sql")

_START_S = 10.0
"""Time for the process to begin and to answer, beside that of its query."""
_ROOM_MB = 256
"""Memory for threads and for the answer, beside that of the query."""
_MOST_ANSWER_BYTES = 16 << 20
_MOST_CELL = 5_000
"""Characters or bytes of a cell that are passed on. A page shows a thousand characters."""


class _Task(msgspec.Struct):
    """What the process gets."""

    path: str
    storage_options: dict[str, str]
    text: str
    limits: QueryLimits
    live: dict[str, bytes]
    """Live tables that the text names, as Arrow's stream format."""


class _QueryAnswer(msgspec.Struct, tag="rows", tag_field="outcome"):
    """What the process returns unless the query is refused. Plain values only: the query may have broken into it."""

    result: BoundedResult


def run_query_in_process(
    namespace: Namespace, text: str, limits: QueryLimits, live: LiveReaders = NOT_LIVE
) -> BoundedResult:
    """Run statements in Spark's SQL over the tables as of now, and return the last result, with long texts cut.

    Values that msgpack lacks, for example decimals, come as texts. live: the live tables that the statements may name.

    Raises:
        InvalidRequest: the query fails, or needs more time or memory than it may have.
        MissingExtra: the extra `sql` is not installed.
        StorageError, TableDamaged: a file of a table cannot be read.
    """
    tables = {name: _to_bytes(live[name]()) for name in find_live_names(text, live)}
    task = msgspec.msgpack.encode(_Task(namespace.path, dict(namespace.storage_options), text, limits, tables))
    with tempfile.TemporaryDirectory(prefix="lakemq-sql-") as folder:
        environment = {**os.environ, "TMPDIR": folder}
        command = [sys.executable, "-m", "lakemq.engine.client.sql.query_process"]
        try:
            done = subprocess.run(
                command,
                input=task,
                capture_output=True,
                env=environment,
                timeout=limits.timeout_s + _START_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise build_timeout_error(limits.timeout_s) from None
    if done.returncode < 0 or b"bad_alloc" in done.stderr:
        raise _build_memory_error(limits)
    if done.returncode:
        log.error("The process of a query failed: %s", done.stderr.decode(errors="replace"))
        raise InvalidRequest("The query's process failed. The log says why.", found=f"exit code {done.returncode}")
    answer = msgspec.msgpack.decode(done.stdout, type=_QueryAnswer | Refusal)
    if isinstance(answer, Refusal):
        raise error_from_refusal(answer)
    return answer.result


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _from_bytes(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()


def _build_memory_error(limits: QueryLimits) -> InvalidRequest:
    return InvalidRequest(
        f"The query needs more than {limits.memory_mb} MB of memory or of temporary space.", expected="a smaller one"
    )


def main() -> None:
    """Run the query of standard input, and write its result or its error to standard output."""
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Task)
    try:
        answer = msgspec.msgpack.encode(_QueryAnswer(_run_limited(task)))
        if len(answer) > _MOST_ANSWER_BYTES:
            raise InvalidRequest(
                "The rows of the result are too large to show.",
                found=f"{len(answer)} bytes",
                expected=f"at most {_MOST_ANSWER_BYTES}: select fewer columns, or a part of each",
            )
    except LakeMQError as error:
        answer = msgspec.msgpack.encode(error.refusal())
    except MemoryError:
        answer = msgspec.msgpack.encode(_build_memory_error(task.limits).refusal())
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
    # DuckDB's threads may still end a query. When the interpreter ends under them, C++ aborts the process.
    os._exit(0)


def _run_limited(task: _Task) -> BoundedResult:
    limits = task.limits
    namespace = open_namespace(task.path, storage_options=task.storage_options)
    snapshot = take_snapshot(namespace.store)
    with needs("sql"):
        import duckdb
    duckdb.connect().close()  # loads what it needs before memory is limited
    limit_bytes = limits.memory_mb << 20
    statm = Path("/proc/self/statm")
    if statm.exists():
        # What can be written. Addresses measure nothing, because allocators set gigabytes of them aside.
        taken_bytes = int(statm.read_text().split()[5]) * resource.getpagesize()
        _limit(resource.RLIMIT_DATA, taken_bytes + limit_bytes + (_ROOM_MB << 20))
    _limit(resource.RLIMIT_FSIZE, 2 * limit_bytes)  # DuckDB says more when it meets its own bound first
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, int(limits.timeout_s + _START_S) * (os.cpu_count() or 1))
    live = {name: partial(_from_bytes, body) for name, body in task.live.items()}
    result = run_bounded_query(namespace, task.text, limits, snapshot, live)
    return result._replace(rows=[tuple(map(_to_plain, row)) for row in result.rows])


def _to_plain(value: Any) -> Any:
    """Return the value, with long texts cut, made of what msgpack has; else its text. A time without zone is in UTC."""
    if isinstance(value, str | bytes):
        return value[:_MOST_CELL]
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return str(value)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
