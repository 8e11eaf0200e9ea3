"""Release delayed messages that are due, and end: `lakemq delayed release`, or `spark-submit jobs/release_delayed.py
--path ...` (no Spark is started).

For schedules: nothing runs between two calls. Of any number of copies one is active, as of all that serve a namespace;
the others wait for what it releases, and take over if it dies.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING

from lakemq.jobs.commands.times import millis_of, of_millis, parse_moment
from lakemq.jobs.entry import Counts, arguments_of, connected, parsed, run, started
from lakemq.jobs.probe import probe
from lakemq.jobs.serve import stopping_signals

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.publish.releases import Release, Releases

log = logging.getLogger("lakemq.release")

_LOOK_S = 0.1


def release(mq: Connection, until_ms: int | None, watch: bool, stop: Event, tell: Callable[[str], None]) -> int:
    """Until all that is due by then is released, or, to watch, until it is stopped; returns how many messages were.

    until_ms: left out, now; tell: is told how much, and how late. Raises StorageError: some of it is in
    files that cannot be read.
    """
    from lakemq.errors import StorageError

    probe(mq.namespace.files)
    until_ms = _now_ms() if until_ms is None else until_ms
    total: list[Release] = []
    releases, unreadable = mq.delayed.releases(), 0
    with mq.serving() as serving:
        while not (stop.is_set() or serving.wait(0)):
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
    return _count(total)


def _count(releases: list[Release]) -> int:
    return sum(one.messages for one in releases)


def _told(releases: list[Release]) -> str:
    if not releases:
        return "nothing released"
    late = timedelta(milliseconds=max(one.late_ms for one in releases))
    return f"{_count(releases)} messages released, the first of them {late} late"


def _next(releases: Releases) -> str:
    next_ms = releases.next_due_ms()
    return "none wait" if next_ms is None else f"next due {of_millis(next_ms)}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml\n--path data/mq --until 2030-01-01T00:00:00Z"
    parser = arguments_of("release_delayed", "Release delayed messages that are due, and end.", examples)
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--until", metavar="TIME", type=_moment, help="wait, and release what is due by then (now)")
    end.add_argument("--watch", action="store_true", help="go on until stopped")
    return parser


def _moment(text: str) -> int:
    try:
        return millis_of(parse_moment(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: list[str] | None = None) -> int:
    given = parsed(parser(), arguments)

    def work() -> Counts:
        with connected(given) as mq, stopping_signals() as stop:
            return {"released": release(mq, given.until, given.watch, stop, log.info)}

    return run("release_delayed", given, work)


if __name__ == "__main__":
    started(main)
