"""Release delayed messages that are due, and end: `lakemq delayed release`, or `spark-submit jobs/release_delayed.py
--path ...` (no Spark is started).

For schedules: nothing runs between two calls. Of any number of copies one is active, as of all that serve a namespace;
the others wait for what it releases, and take over if it dies.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING

from lakemq.jobs.commands.times import of_millis
from lakemq.jobs.probe import probe
from lakemq.jobs.serve import orphaned

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.publish.releases import Release, Releases

_LOOK_S = 0.1


def release(
    mq: Connection, until_ms: int | None, watch: bool, stop: Event, tell: Callable[[str], None] = print
) -> None:
    """Until all that is due by then is released, or, to watch, until it is stopped; tells how much, how late.

    until_ms: left out, now. Raises StorageError: some of it is in files that cannot be read.
    """
    from lakemq.errors import StorageError

    probe(mq.namespace.files)
    until_ms = _now_ms() if until_ms is None else until_ms
    total: list[Release] = []
    releases, unreadable = mq.delayed.releases(), 0
    is_orphaned = orphaned()
    with mq.serving() as serving:
        while not (stop.is_set() or is_orphaned() or serving.wait(0)):
            if found := releases.new():
                total += found
                if watch:
                    tell(f"{_told(found)}; {_next(releases)}")
            if not watch and _now_ms() >= until_ms:
                left, unreadable = releases.left(until_ms)
                if not left:
                    break
            stop.wait(_LOOK_S)
        if serving.error is not None:
            raise serving.error
    total += releases.new()
    tell(f"{_told(total)}; {_next(releases)}")
    if unreadable:
        raise StorageError("Messages are in data files that cannot be read, and wait.", found=f"{unreadable} messages")


def _told(releases: list[Release]) -> str:
    if not releases:
        return "nothing released"
    late = timedelta(milliseconds=max(one.late_ms for one in releases))
    return f"{sum(one.messages for one in releases)} messages released, the first of them {late} late"


def _next(releases: Releases) -> str:
    next_ms = releases.next_due_ms()
    return "none wait" if next_ms is None else f"next due {of_millis(next_ms)}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    from lakemq.jobs.cli import main

    main(["delayed", "release", *sys.argv[1:]])
