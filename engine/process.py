"""What was made in one process is of no use in a fork of it: threads and locks do not come along."""

from __future__ import annotations

import os

from .protocol.errors import IllegalState


def same_process(pid: int, what: str) -> None:
    """Raises IllegalState unless this is the process `pid`, in which `what` was made."""
    if os.getpid() != pid:
        raise IllegalState(f"{what} was made in another process (fork): make one there.")
