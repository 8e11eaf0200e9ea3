"""Release delayed messages that are due, and end: `lakemq delayed release`, or `python jobs/release_delayed.py
--path ...`.

Use it from a scheduler: nothing runs between two calls. If several copies run, one is active; the others wait for its
releases and take over if it dies.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from lakemq.jobs.commands.shared.times import from_millis, parse_moment, to_millis
from lakemq.jobs.entry import Counts, connect_namespace, make_job_parser, parse_arguments, run, run_as_script
from lakemq.jobs.process.probe import probe
from lakemq.jobs.serve import catch_stop_signals

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.delayed_rows import Release, Releases

log = logging.getLogger("lakemq.release")

_LOOK_S = 0.1


class ReleaseProgress(NamedTuple):
    """The number of messages released so far, and the time of the next release."""

    released: int
    """Messages."""
    late_ms: int | None
    """The largest delay after the due time; None if nothing was released."""
    next_due: datetime | None
    """When the next messages are due; None if none wait."""


def release(
    mq: Connection, until_ms: int | None, watch: bool, stop: Event, tell: Callable[[ReleaseProgress], None]
) -> int:
    """Release messages due until a time, or until stopped, and return their number.

    Args:
        until_ms: Wait, and release messages due by then; None: now.
        watch: Continue until `stop` is set, and call `tell` for each release.
        tell: Called with the progress.

    Raises:
        StorageError: Some messages are in files that cannot be read.
    """
    from lakemq.errors import StorageError

    probe(mq.namespace.files)
    until_ms = _now_ms() if until_ms is None else until_ms
    total: list[Release] = []
    releases, unreadable = mq.delayed.releases(), 0
    with mq.serving() as serving:
        while not (stop.is_set() or serving.wait(0)):
            if new := releases.read_new():
                total += new
                if watch:
                    tell(_progress(new, releases))
            if not watch and _now_ms() >= until_ms:
                remaining, unreadable, _ = releases.count_unreleased(until_ms)
                if not remaining:
                    break
            stop.wait(_LOOK_S)
        if serving.error is not None:
            raise serving.error
    total += releases.read_new()
    tell(_progress(total, releases))
    if unreadable:
        raise StorageError(
            "Some due messages wait, because their data files cannot be read.", found=f"{unreadable} messages"
        )
    return _count(total)


def _log(progress: ReleaseProgress) -> None:
    log.info(sentence(progress))


def _count(releases: list[Release]) -> int:
    return sum(release.messages for release in releases)


def _progress(done: list[Release], releases: Releases) -> ReleaseProgress:
    late_ms = max((release.late_ms for release in done), default=None)
    return ReleaseProgress(_count(done), late_ms, from_millis(releases.next_due_ms()))


def sentence(progress: ReleaseProgress) -> str:
    """Return the progress as a sentence."""
    text = "nothing released"
    if progress.late_ms is not None:
        late = timedelta(milliseconds=progress.late_ms)
        text = f"{progress.released} messages released, the first of them {late} late"
    return f"{text}; " + ("none wait" if progress.next_due is None else f"next due {progress.next_due}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml\n--path data/mq --until 2030-01-01T00:00:00Z"
    parser = make_job_parser("release_delayed", "Release delayed messages that are due, and end.", examples)
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--until", metavar="TIME", type=_moment, help="wait, and release messages due by then (default: now)"
    )
    end.add_argument("--watch", action="store_true", help="continue until stopped")
    return parser


def _moment(text: str) -> int:
    try:
        return to_millis(parse_moment(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(parser(), arguments)

    def work() -> Counts:
        with connect_namespace(options) as mq, catch_stop_signals() as stop:
            return {"released": release(mq, options.until, options.watch, stop, _log)}

    return run("release_delayed", options, work)


if __name__ == "__main__":
    run_as_script(main)
