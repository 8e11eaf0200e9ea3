"""Objects that run native code, which a Python exception does not reach. A signal handler can interrupt them."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet


class Interruptible(Protocol):
    """An object that may run native code."""

    def interrupt(self) -> None: ...


_interruptible: WeakSet[Interruptible] = WeakSet()


def add_interruptible(target: Interruptible) -> None:
    """Let `interrupt_all` interrupt this object, as long as it exists."""
    _interruptible.add(target)


def interrupt_all() -> None:
    """Interrupt what the objects run now."""
    for target in list(_interruptible):
        target.interrupt()
