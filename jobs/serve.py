"""Serve a namespace until stopped: `lakemq serve`, or `python jobs/serve.py --path ...`.

SIGTERM or SIGINT: the job finishes its step, writes its decisions to the tables and hands over the lease; the exit code
is 0. A second signal ends the process at once. The log on stderr says which sequencer leads.
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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING

from lakemq.jobs import entry
from lakemq.jobs.process.exits import handle_signals
from lakemq.jobs.process.native_memory import MemoryRelease, choose_allocator, collect_rarely
from lakemq.jobs.process.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.sequencer.serving import Serving

log = logging.getLogger("lakemq.serve")

_LOOK_S = 0.1

_COLLECT_AFTER = (10_000, 10, 20)
"""New objects after which garbage is collected, and how many collections of a generation make one of the next. A step
with many requests makes thousands of objects that die with it and are no garbage. By default Python looks at them
every 700 objects, which took a fifth of the processor time of a leader with a thousand producers that commit.
"""


def serve_until_signal(
    mq: Connection,
    for_ms: int | None = None,
    beside: Callable[[Serving], AbstractContextManager[object]] = nullcontext,
) -> int:
    """Lead, or stand by while another sequencer leads, until a signal comes. Returns the last known step.

    Args:
        mq: the connection to serve with.
        for_ms: end after this time in any case.
        beside: returns what runs beside the sequencer, such as a metrics endpoint. It ends before the sequencer does.

    Raises:
        StorageError: the store failed.
    """
    with catch_stop_signals() as stop, collect_rarely(*_COLLECT_AFTER):
        end_s = math.inf if for_ms is None else time.monotonic() + for_ms / 1000
        _look_whether_writable(mq)
        with mq.serving() as serving, beside(serving):
            log.info("%s serves %s", serving.sequencer.name, mq.namespace.path)
            watch, memory = _LeaderWatcher(serving), MemoryRelease()
            with _StandbySign(mq, serving) as sign:
                while not (stop.is_set() or serving.wait(_LOOK_S) or time.monotonic() >= end_s):
                    watch.look()
                    memory.look()
                    sign.look()
            # read before the block ends: afterwards the sequencer has no state and does not lead
            step, led = serving.sequencer.state.step, serving.sequencer.leads
        if serving.error is not None:
            raise serving.error
        log.info("%s has stopped; %s", serving.sequencer.name, _describe_end(serving, led), extra={"step": step})
        return step


def _describe_end(serving: Serving, led: bool) -> str:
    """Say what became of the lease. `led` was read before the end, and a standby may have begun to lead since."""
    if serving.has_handed_over:
        return "the lease is handed over"
    return "the lease is not handed over" if led else "it was a standby without a lease"


def _look_whether_writable(mq: Connection) -> None:
    """Log an error that keeps the namespace from being written, such as a full disk; serving retries until it can.

    Raises PermissionError, which waiting does not cure.
    """
    try:
        probe(mq.namespace.files)
    except PermissionError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        log.error("%s cannot be written (%s). Requests wait; the sequencer keeps trying.", mq.namespace.path, why)


@contextmanager
def catch_stop_signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM, SIGINT or SIGHUP sets. The second signal kills the process."""
    stop = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    with handle_signals(on_signal):
        yield stop


class _LeaderWatcher:
    """Logs which sequencer a standby waits for, and exempts a leader's state from garbage collection."""

    def __init__(self, serving: Serving) -> None:
        self._serving, self._leader, self._epoch = serving, "", -1

    def look(self) -> None:
        sequencer = self._serving.sequencer
        leads, state = sequencer.leads, sequencer.state
        if leads and state.leader_epoch != self._epoch:
            self._epoch = state.leader_epoch
            gc.freeze()  # otherwise each collection delays a step: with 100,000 transactional ids, by 0.4 s
        leader = "" if leads else state.leader
        if leader and leader != self._leader:
            log.info("%s stands by: %s leads with epoch %d", sequencer.name, leader, state.leader_epoch)
        self._leader = leader


class _StandbySign:
    """Shows others that this sequencer stands by, for as long as it does."""

    def __init__(self, mq: Connection, serving: Serving) -> None:
        # They load pyarrow, and its allocator is chosen before that.
        from lakemq.tables.storage.coordination.leader_locks import SIGN_EVERY_MS, StandbySigns
        from lakemq.tables.storage.coordination.step_objects import step_name

        self._files, self._serving = mq.namespace.files, serving
        self._signs, self._every_s, self._step_name = StandbySigns(self._files), SIGN_EVERY_MS / 1000, step_name
        self._number = 0
        self._next_s = 0.0

    def __enter__(self) -> _StandbySign:
        return self

    def __exit__(self, *_: object) -> None:
        if self._number:
            self._forget()

    def look(self) -> None:
        """Write the next sign if it is time, or delete it if this sequencer leads now."""
        sequencer = self._serving.sequencer
        if sequencer.leads:
            if self._number:
                self._forget()
        elif sequencer.state.leader and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._every_s
            self._number += 1
            with suppress(OSError):  # the sequencer itself logs that the store cannot be written
                # The newest step always stays. Without it the namespace is deleted, and a sign would be in the way of
                # a new one at this path.
                if self._files.size(self._step_name(sequencer.state.step)) is not None:
                    self._signs.put(sequencer.name, self._number)

    def _forget(self) -> None:
        self._number = 0
        with suppress(OSError):
            self._signs.forget(self._serving.sequencer.name)


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml\n--path data/mq --for-ms 900000"
    parser = entry.make_job_parser("serve", "Lead, or stand by, until SIGTERM or SIGINT.", examples)
    parser.add_argument("--for-ms", type=entry.whole_number, metavar="MS", help="end after this time, for schedulers")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = entry.parse_arguments(parser(), arguments)

    def serve() -> entry.Counts:
        choose_allocator()
        with entry.connect_namespace(options) as mq:
            return {"step": serve_until_signal(mq, options.for_ms)}

    return entry.run("serve", options, serve)


if __name__ == "__main__":
    entry.run_as_script(main)
