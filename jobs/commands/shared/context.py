"""Shared by all commands: the global options, the connection, and a sequencer where a request needs one."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.entry import PATH_VARIABLE
from lakemq.jobs.output import Output, Record, note, one_line, print_records
from lakemq.jobs.process.exits import Exit
from lakemq.jobs.process.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection


log = logging.getLogger("lakemq.command")

# How often a command checks how long it has waited for its answer.
_LOOK_S = 0.5

PATIENCE_MS = 2_000
"""How long an answer may take before a line on stderr says which sequencer is silent."""

NEEDS_SEQUENCER = (
    "Needs a sequencer. Where one leads (lakemq serve), it answers. Otherwise this command runs one while it works and"
    " hands over the lease when it ends."
)


@dataclass(frozen=True)
class Session:
    """The global options of one call of the command."""

    path: str | None = None
    conf: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    output: Output = Output.table

    def required_path(self) -> str:
        """Return the namespace's path; raise a usage error if there is none."""
        if not self.path:
            raise typer.BadParameter(f"give --path, or set {PATH_VARIABLE}", param_hint="--path")
        return self.path

    def connect(
        self, create: bool = False, shared_with_group: bool = False, runs_user_code: bool = False
    ) -> Connection:
        """Connect to the namespace. Raises NamespaceError, NewerFormat, InvalidConfig.

        runs_user_code: code of users runs in this process, and may give pyarrow values of pandas.
        """
        from lakemq.engine.namespace.extras import hide_pandas

        with nullcontext() if runs_user_code else hide_pandas():
            import lakemq

            return lakemq.connect(
                self.required_path(),
                create=create,
                shared_with_group=shared_with_group,
                conf=self.conf,
                storage_options=self.storage_options,
            )


_SESSION: ContextVar[Session] = ContextVar("session")


def set_session(session: Session) -> None:
    """Keep the global options of this call."""
    _SESSION.set(session)


def get_session() -> Session:
    """Return the global options of this call."""
    return _SESSION.get()


def connect(**options: bool) -> Connection:
    """Connect to the namespace of this call. options: those of `Session.connect`."""
    return get_session().connect(**options)


def show(records: Iterable[Record], columns: str | Sequence[str]) -> None:
    """Print records in the format of this call.

    columns: the fields of a table or a CSV, also as a text with commas, as in the console. JSON has all fields.
    """
    names = columns.split(", ") if isinstance(columns, str) else columns
    print_records(records, get_session().output, names)


@contextmanager
def ensure_sequencer(mq: Connection) -> Iterator[None]:
    """Make sure that a sequencer answers requests inside the block: the one that leads, or one in this process.

    If an answer takes long, a line on stderr says so, and this process starts a standby. The standby takes over if the
    leader died without handing over its lease. If the leader is alive after all, the standby does no harm.
    """
    # It loads pyarrow, which `--help` does without.
    from lakemq.tables.storage.coordination.leader_locks import LeaderLocks

    leader = mq.state().leader
    leads = bool(leader) and not LeaderLocks(mq.namespace.files).is_dead(leader)
    if not leads:
        probe(mq.namespace.files)  # a sequencer writes everywhere; a client needs fewer permissions
        mq.serving()
    watch = _AnswerWatcher(mq, serves=not leads)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if mq.requester.waited_ms() is not None:
            note("Interrupted while waiting for an answer. The outcome is unknown: the request may still take effect.")
        raise
    finally:
        watch.stop()


class _AnswerWatcher:
    """Reports a slow answer on stderr, and starts a sequencer when none leads or the leader is silent."""

    def __init__(self, mq: Connection, serves: bool) -> None:
        self._mq, self._serves, self._told = mq, serves, False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakemq-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                self._look(self._mq.requester.waited_ms())
            except Exception as error:  # the command itself meets the same error, or does not need this thread
                log.warning("Cannot find out which sequencer leads: %s", error)
                return

    def _look(self, waited_ms: float | None) -> None:
        if waited_ms is None or waited_ms < _LOOK_S * 1000:
            self._told = False
            return
        state = self._mq.state()
        if waited_ms >= PATIENCE_MS and not self._told:
            self._told = True
            leader = _who(state.leader, state.leader_epoch, state.lease_ms)
            path = self._mq.namespace.path
            note(f"no answer for {waited_ms / 1000:.0f} s: {leader}. To find out more: lakemq --path {path} doctor")
        if not self._serves and (not state.leader or waited_ms >= min(PATIENCE_MS, state.lease_ms)):
            self._serves = True
            self._mq.serving()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _who(leader: str, epoch: int, lease_ms: int) -> str:
    """Describe which sequencer should answer, and what this command does if it stays silent."""
    if not leader:
        return "no sequencer leads (lakemq serve); this command tries to lead"
    if leader.startswith(f"{socket.gethostname()}-{os.getpid()}-"):
        return "this command's own sequencer is slow"
    takeover = f"this command takes over if it stays silent for its lease of {lease_ms / 1000:g} s"
    return f"{leader} leads (epoch {epoch}) and is silent; {takeover}"


# Options of commands that join a group.


Begin = Annotated[
    str,
    typer.Option("--from", metavar="earliest|latest", help="Where to start while the group has no committed offset."),
]
InstanceId = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Instance id of a static member, whose partitions wait for its return."),
]


# Confirmation of commands that delete something for good.


Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required where stdin is not a terminal.")
]

ASKS = "Asks for confirmation first, unless --yes is given."


def confirm(question: str, yes: bool) -> None:
    """Ask on stderr whether to go on, unless `yes` is given.

    Ask before a sequencer starts: nobody should hold a lease while a person thinks.

    Raises:
        typer.Exit: Nothing was changed. Code 2: stdin is not a terminal, so nobody can be asked. Code 1: the
            answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        note(
            f"CONFIRMATION_REQUIRED: {question} This cannot be undone, and stdin is not a terminal, so nobody can be"
            " asked. Nothing was changed. Give --yes to do it."
        )
        raise typer.Exit(Exit.USAGE)
    # not typer.confirm: it prints a blank to stdout, among the data
    print(f"{one_line(question)} This cannot be undone. [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("Nothing was changed.")
        raise typer.Exit(Exit.FAILED)
