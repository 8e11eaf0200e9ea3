"""The lock of a consumer, and whether the consumer is closed."""

from __future__ import annotations

import threading

from ...namespace.processes.process import Lock, OwnLock
from ...protocol.errors import IllegalState


class ConsumerLock:
    """The lock that a consumer holds for every call of its parts. A callback of the consumer may take it again."""

    def __init__(self) -> None:
        self._lock = OwnLock("This consumer", threading.RLock())
        self.is_closed = False

    @property
    def own(self) -> Lock:
        """The lock itself, for `with`. Raises IllegalState in a forked process."""
        return self._lock.own

    def check_open(self) -> None:
        """Raise IllegalState if the consumer is closed."""
        if self.is_closed:
            raise IllegalState("The consumer is closed.")
