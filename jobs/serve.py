"""Serve a namespace until stopped: `lakemq serve`, or `spark-submit jobs/serve.py --path ...` (no Spark is started).

SIGTERM or SIGINT: the step is finished, what is decided is projected, the lease is handed over; the exit code is 0.
A second signal ends the process at once. Who leads is told on stderr.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from lakemq.jobs.entry import Counts, arguments_of, connected, parsed, run, started, whole
from lakemq.jobs.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.sequencer.serving import Serving

log = logging.getLogger("lakemq.serve")

_LOOK_S = 0.1


def serve_until_stopped(mq: Connection, for_ms: int | None = None) -> int:
    """Lead, or stand by while another one leads, until a signal comes; the last step that this one knows of.

    for_ms: end after so long in any case. Raises what the storage fails with.
    """
    with stopping_signals() as stop:
        end_s = math.inf if for_ms is None else time.monotonic() + for_ms / 1000
        probe(mq.namespace.files)
        with mq.serving() as serving:
            log.info("%s serves %s", serving.sequencer.name, mq.namespace.path)
            watch = _Watch(serving)
            while not (stop.is_set() or serving.wait(_LOOK_S) or time.monotonic() >= end_s):
                watch.look()
            step = serving.sequencer.state.step  # afterwards it has none
        if serving.error is not None:
            raise serving.error
        log.info("%s has stopped; the lease is handed over", serving.sequencer.name, extra={"step": step})
        return step


@contextmanager
def stopping_signals() -> Iterator[threading.Event]:
    """An event that the first SIGTERM or SIGINT sets; the second one kills."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watch:
    """Tells whom a standby stands by for. Who leads has loaded all there is: no garbage is looked for in that."""

    def __init__(self, serving: Serving) -> None:
        self._serving, self._leader, self._epoch = serving, "", -1

    def look(self) -> None:
        sequencer = self._serving.sequencer
        leads, state = sequencer.leads, sequencer.state
        if leads and state.leader_epoch != self._epoch:
            self._epoch = state.leader_epoch
            gc.freeze()  # else each look through it holds up a step: of 100,000 transactional ids, for 0.4 s
        leader = "" if leads else state.leader
        if leader and leader != self._leader:
            log.info("%s stands by: %s leads with epoch %d", sequencer.name, leader, state.leader_epoch)
        self._leader = leader


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml\n--path data/mq --for-ms 900000"
    parser = arguments_of("serve", "Lead, or stand by, until SIGTERM or SIGINT.", examples)
    parser.add_argument("--for-ms", type=whole, metavar="MS", help="end after so long: for schedules")
    return parser


def main(arguments: list[str] | None = None) -> int:
    given = parsed(parser(), arguments)

    def serve() -> Counts:
        with connected(given) as mq:
            return {"step": serve_until_stopped(mq, given.for_ms)}

    return run("serve", given, serve)


if __name__ == "__main__":
    started(main)
