"""SIGINT and SIGTERM: a command that gets one ends by itself, and if that takes long, without waiting any longer.

A lease that it holds is handed over if there is time; else a standby takes over when it has run out.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol
from weakref import WeakSet

GRACE_S = 1.5
"""How long a command may take to end after a signal."""

_LOOK_S = 0.1

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


@contextmanager
def installed() -> Iterator[None]:
    """Within this, the two signals end what is at work."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def follow_jvm() -> None:
    """From here on this process is told to end, by SIGTERM, when the JVM of spark-submit that started it is gone."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        threading.Thread(target=_end_with, args=[os.getppid()], name="lakemq-jvm", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def received() -> int | None:
    """The signal that told this process to end; None: none did."""
    return _received[0] if _received else None


def _give_up(number: int) -> None:
    # not through sys.stderr: somebody may hold its lock for ever
    text = f"{signal.Signals(number).name}: ended without waiting any longer\n"
    os.write(2, text.encode())
    os._exit(128 + number)
