"""Serve a namespace until stopped: `lakemq serve`, or `spark-submit jobs/serve.py --path ...` (no Spark is started).

SIGTERM or SIGINT: the step is finished, what is decided is projected, the lease is handed over; the exit code is 0.
A second signal ends the process at once. Who leads is told on stderr.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from lakemq.jobs.entry import Counts, arguments_of, connected, parsed, run, started
from lakemq.jobs.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.sequencer.serving import Serving

log = logging.getLogger("lakemq.serve")

_LOOK_S = 0.1


def serve_until_stopped(mq: Connection) -> int:
    """Lead, or stand by while another one leads, until a signal comes; the last step that this one knows of.

    Raises what the storage fails with.
    """
    with stopping_signals() as stop:
        probe(mq.namespace.files)
        with mq.serving() as serving:
            log.info("%s serves %s", serving.sequencer.name, mq.namespace.path)
            watch = _Watch(serving)
            while not (stop.is_set() or serving.wait(_LOOK_S)):
                watch.look()
        if serving.error is not None:
            raise serving.error
        step = serving.sequencer.state.step
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
    """Tells whom a standby stands by for."""

    def __init__(self, serving: Serving) -> None:
        self._serving, self._leader = serving, ""

    def look(self) -> None:
        sequencer = self._serving.sequencer
        state = sequencer.state
        leader = "" if sequencer.leads else state.leader
        if leader and leader != self._leader:
            log.info("%s stands by: %s leads with epoch %d", sequencer.name, leader, state.leader_epoch)
        self._leader = leader


def parser() -> argparse.ArgumentParser:
    return arguments_of(
        "serve", "Lead, or stand by, until SIGTERM or SIGINT.", "--path data/mq --conf conf/lakemq.yaml"
    )


def main(arguments: list[str] | None = None) -> int:
    given = parsed(parser(), arguments)

    def serve() -> Counts:
        with connected(given) as mq:
            return {"step": serve_until_stopped(mq)}

    return run("serve", given, serve)


if __name__ == "__main__":
    started(main)
