"""SIGINT and SIGTERM: a command that gets one ends by itself, and if that takes long, without waiting any longer.

A lease that it holds is handed over if there is time; else a standby takes over when it has run out.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Protocol
from weakref import WeakSet

GRACE_S = 1.5
"""How long a command may take to end after a signal."""

_received: list[int] = []
_interruptible: WeakSet[Interruptible] = WeakSet()


class Interruptible(Protocol):
    """Something that may be at work in native code, which a Python exception does not reach."""

    def interrupt(self) -> None: ...


def interrupts(one: Interruptible) -> None:
    """A signal interrupts this, too, for as long as it is there."""
    _interruptible.add(one)


def install() -> None:
    """From here on the two signals end this process; to be called in its main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def on_signal(number: int, _: FrameType | None) -> None:
    """Raises KeyboardInterrupt or SystemExit where the process is; whatever that meets, the end comes."""
    _received.append(number)
    end = threading.Timer(GRACE_S, _give_up, [number])
    end.daemon = True
    end.start()
    for one in list(_interruptible):
        one.interrupt()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def received() -> int | None:
    """The signal that told this process to end; None: none did."""
    return _received[0] if _received else None


def _give_up(number: int) -> None:
    # not through sys.stderr: somebody may hold its lock for ever
    text = f"{signal.Signals(number).name}: ended without waiting any longer\n"
    os.write(2, text.encode())
    os._exit(128 + number)
