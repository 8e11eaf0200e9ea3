"""What all commands share: the global options, the connection they make, and a sequencer while one is needed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from lakemq.jobs.output import Output
from lakemq.jobs.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.connection import Connection

log = logging.getLogger("lakemq.command")

# How often a command looks whether somebody still leads, while it waits for its answer.
_LOOK_S = 1.0

PATH_VARIABLE = "LAKEMQ_PATH"

NEEDS_ANSWER = (
    "Needs a sequencer: where none leads, this command runs one itself while it works, and hands over the lease"
    " when it ends; where one leads (lakemq serve), that one answers."
)


@dataclass(frozen=True)
class Session:
    """The global options of one call of the command."""

    path: str | None = None
    conf: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    output: Output = Output.table

    def required_path(self) -> str:
        """The namespace's path; a usage error where none was given."""
        if not self.path:
            raise typer.BadParameter(f"give --path, or set {PATH_VARIABLE}", param_hint="--path")
        return self.path

    def connect(self, create: bool = False) -> Connection:
        """The namespace. Raises NamespaceError, NewerFormat, InvalidConfig."""
        import lakemq

        return lakemq.connect(self.required_path(), create=create, conf=self.conf, storage_options=self.storage_options)


def session_of(ctx: typer.Context) -> Session:
    """The global options of this call."""
    found = ctx.find_object(Session)
    assert found is not None
    return found


@contextmanager
def answered(mq: Connection) -> Iterator[None]:
    """Requests are answered while this runs: by the sequencer that leads, else by one in this process.

    One that seems to have died without handing over its lease is replaced when the lease has run out; ours stands by
    until then, and harmlessly if the other is alive after all.
    """
    probe(mq.namespace.files)
    state = mq.state()
    silent_ms = time.time() * 1000 - state.now_ms
    if not state.leader or silent_ms > state.lease_ms:
        mq.serving()
        yield
        return
    watch = _Watch(mq, state.lease_ms / 1000)
    try:
        yield
    finally:
        watch.stop()


class _Watch:
    """Starts a sequencer when nobody leads any more, or the journal has not moved for a lease."""

    def __init__(self, mq: Connection, lease_s: float) -> None:
        self._mq, self._lease_s = mq, lease_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakemq-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        step, since_s = -1, time.monotonic()
        try:
            while not self._stopped.wait(min(self._lease_s, _LOOK_S)):
                state = self._mq.state()
                if state.step != step:
                    step, since_s = state.step, time.monotonic()
                if not state.leader or time.monotonic() - since_s > self._lease_s:
                    self._mq.serving()
                    return
        except Exception as error:  # the command itself will meet it too, or does not need us
            log.warning("No standby was started: %s", error)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
