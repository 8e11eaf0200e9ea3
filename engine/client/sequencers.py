"""Which sequencer leads, and when it last decided a step: for `lakemq doctor`, `lakemq status` and the metrics."""

import time
from dataclasses import dataclass

from lakemq.tables.storage.coordination.leader_locks import LeaderLocks, StandbySigns
from lakemq.tables.storage.coordination.sockets import line_name
from lakemq.tables.storage.coordination.step_objects import step_name
from lakemq.tables.storage.object_stores.files import Files

from ..namespace.line_frames import decode_address
from ..protocol.values.state import State

_SLACK_MS = 2_000
"""A leader renews its lease in time; more than this beyond the lease is no slow store and no coarse clock."""


@dataclass(frozen=True)
class Leadership:
    """The sequencer that leads.

    Attributes:
        leader: its name; empty if none leads.
        has_died: it ended without handing over its lease.
        step, put_ms: the last step, and when it was put by the store's clock.
        silent_ms: the age of the last step.
        standbys: the other sequencers that `lakemq serve` has standing by. A leader that cannot write, for example to
            a full disk, stands by itself: it would not help, so it is not named.
        lines: where clients connect to it directly.
        missing_lines: where they cannot although they should, and why. The leader tries it again every few seconds.
    """

    leader: str
    epoch: int
    lease_ms: int
    has_died: bool
    step: int
    put_ms: int
    silent_ms: int
    standbys: tuple[str, ...]
    lines: tuple[str, ...]
    missing_lines: tuple[str, ...]

    @property
    def is_silent(self) -> bool:
        """Whether a leader has decided nothing for so long that it must be stopped, dead or without its store."""
        return bool(self.leader) and self.silent_ms > self.lease_ms + _SLACK_MS


def read_leadership(files: Files, state: State) -> Leadership:
    """Return who leads as of a state, and who stands by now."""
    now_ms = find_store_now_ms(files)
    lines, missing_lines = _read_lines(files, state.leader_epoch)
    put_ms = files.modified_ms(step_name(state.step)) or state.now_ms
    return Leadership(
        leader=state.leader,
        epoch=state.leader_epoch,
        lease_ms=state.lease_ms,
        has_died=bool(state.leader) and LeaderLocks(files).is_dead(state.leader),
        step=state.step,
        put_ms=put_ms,
        silent_ms=max(0, now_ms - put_ms),
        standbys=tuple(name for name in StandbySigns(files).list_present(now_ms) if name != state.leader),
        lines=lines,
        missing_lines=missing_lines,
    )


def _read_lines(files: Files, epoch: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return where the leader of this epoch listens, and where it cannot although it should."""
    try:
        address = decode_address(files.get(line_name(epoch)))
    except (OSError, ValueError):  # it has no line, or this user may not read where it is
        return (), ()
    sockets = [address.socket] if address.socket else []
    if address.port:
        sockets.append(f"{address.host}:{address.port}")
    return tuple(sockets), address.missing


def describe_silence(leadership: Leadership) -> str:
    """Return a sentence if the leader has ended or is silent, so that figures are as old as its last step; else ""."""
    if leadership.has_died:
        trouble = f"No sequencer leads: {leadership.leader} has ended without handing over its lease."
    elif leadership.is_silent:
        trouble = f"The leader {leadership.leader} is silent: its lease is {leadership.lease_ms / 1000:g} s."
    else:
        return ""
    return (
        f"{trouble} Its last step, {leadership.step:,}, was put {leadership.silent_ms / 1000:.0f} s ago. Groups,"
        " transactions and offsets are as of then, and requests wait."
    )


def find_store_now_ms(files: Files) -> int:
    """Return the store's time, which its objects' ages refer to; this machine's if this user may not write there."""
    try:
        return files.time_ms()
    except OSError:
        return time.time_ns() // 1_000_000
