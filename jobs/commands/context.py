"""What all commands share: the global options, the connection they make, and a sequencer while one is needed."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from lakemq.jobs.entry import PATH_VARIABLE
from lakemq.jobs.output import Output, note
from lakemq.jobs.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection

log = logging.getLogger("lakemq.command")

# How often a command looks how long it has waited for its answer.
_LOOK_S = 0.5

PATIENCE_MS = 2_000
"""How long an answer may take before it is said who does not give it."""

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

    def connect(self, create: bool = False, shared_with_group: bool = False) -> Connection:
        """The namespace. Raises NamespaceError, NewerFormat, InvalidConfig."""
        from lakemq.engine.namespace.extras import without_pandas

        with without_pandas():
            import lakemq

            return lakemq.connect(
                self.required_path(),
                create=create,
                shared_with_group=shared_with_group,
                conf=self.conf,
                storage_options=self.storage_options,
            )


def session_of(ctx: typer.Context) -> Session:
    """The global options of this call."""
    found = ctx.find_object(Session)
    assert found is not None
    return found


@contextmanager
def answered(mq: Connection) -> Iterator[None]:
    """Requests are answered while this runs: by the sequencer that leads, else by one in this process.

    Where an answer takes long, that is said on stderr, and a sequencer of ours stands by: it takes over from one that
    seems to have died without handing over its lease, and harmlessly stands by if the other is alive after all.
    """
    probe(mq.namespace.files)
    leads = bool(mq.state().leader)
    if not leads:
        mq.serving()
    watch = _Watch(mq, serves=not leads)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if mq.requester.waited_ms() is not None:
            note("interrupted while waiting for an answer: the outcome is unknown, it may still be decided")
        raise
    finally:
        watch.stop()


class _Watch:
    """Says for whom a request waits, and starts a sequencer when nobody leads or the one who does is silent."""

    def __init__(self, mq: Connection, serves: bool) -> None:
        self._mq, self._serves, self._told = mq, serves, False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakemq-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                self._look(self._mq.requester.waited_ms())
            except Exception as error:  # the command itself will meet it too, or does not need us
                log.warning("Who leads cannot be seen: %s", error)
                return

    def _look(self, waited_ms: float | None) -> None:
        if waited_ms is None or waited_ms < _LOOK_S * 1000:
            self._told = False
            return
        state = self._mq.state()
        if waited_ms >= PATIENCE_MS and not self._told:
            self._told = True
            who = _who(state.leader, state.leader_epoch, state.lease_ms)
            path = self._mq.namespace.path
            note(f"no answer for {waited_ms / 1000:.0f} s: {who}. To look: lakemq --path {path} doctor")
        if not self._serves and (not state.leader or waited_ms >= min(PATIENCE_MS, state.lease_ms)):
            self._serves = True
            self._mq.serving()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _who(leader: str, epoch: int, lease_ms: int) -> str:
    """Who should answer, and what comes of it if nobody does."""
    if not leader:
        return "no sequencer leads (lakemq serve); this command tries to"
    if leader.startswith(f"{socket.gethostname()}-{os.getpid()}-"):
        return "this command's own sequencer is at work, and slow"
    takeover = f"if it stays so for its lease of {lease_ms / 1000:g} s, this command takes over"
    return f"{leader} leads (epoch {epoch}) and is silent; {takeover}"
