"""SIGINT and SIGTERM: a command that gets one ends in good order, or after a grace period at once.

If there is time, it hands over its lease. Otherwise a standby takes over when the lease expires.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lakemq.engine.namespace.processes.interruptible import interrupt_all

GRACE_S = 1.5
"""How long a command may take to end after a signal."""

_LOOK_S = 0.1

_received: list[int] = []


def install() -> None:
    """Let the two signals end this process. Call it in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


@contextmanager
def handle_signals() -> Iterator[None]:
    """Let the two signals end the work inside the block."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def on_signal(number: int, _: FrameType | None) -> None:
    """Raise KeyboardInterrupt or SystemExit in the main thread, and end the process after a grace period."""
    _received.append(number)
    end = threading.Timer(GRACE_S, _give_up, [number])
    end.daemon = True
    end.start()
    interrupt_all()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def end_with_jvm() -> None:
    """Send this process SIGTERM when the JVM of spark-submit, which started it, is gone."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        threading.Thread(target=_end_with, args=[os.getppid()], name="lakemq-jvm", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def received_signal() -> int | None:
    """Return the first signal that asked this process to end; None if there was none."""
    return _received[0] if _received else None


def _give_up(number: int) -> None:
    # not through sys.stderr: a hung thread may hold its lock
    text = f"{signal.Signals(number).name}: ended without waiting any longer\n"
    os.write(2, text.encode())
    os._exit(128 + number)
