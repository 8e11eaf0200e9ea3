"""Accept lines, as many as a process can have, and few at a time from clients that are not known yet."""

from __future__ import annotations

import logging
import resource
import selectors
from collections.abc import Sequence
from contextlib import suppress

from ...namespace.processes.clock import Clock
from .line_connections import LineListener
from .line_table import Line, LineTable

log = logging.getLogger("lakemq.serve")

MAX_STRANGERS, MAX_STRANGERS_OF_HOST = 256, 64
"""Connections over TCP, in total and from one host, whose clients have not been welcomed yet."""

_MAX_LINES = 4096
_PAUSE_MS = 1_000
"""Pause after a connection could not be accepted, such as for lack of descriptors."""


def max_lines() -> int:
    """Return how many lines a process may have. They take at most half of its descriptors: steps need some, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_LINES if soft == resource.RLIM_INFINITY else min(_MAX_LINES, soft // 2)


class LineAcceptor:
    """The listening sockets of one term. For the thread that reads lines."""

    def __init__(
        self, listeners: Sequence[LineListener], selector: selectors.BaseSelector, table: LineTable, clock: Clock
    ) -> None:
        self.listeners: list[LineListener] = []
        self._selector, self._table, self._clock = selector, table, clock
        self._max_lines, self._was_full = max_lines(), False
        self._paused: dict[LineListener, int] = {}
        """Until when each listener is left alone, by the steady clock."""
        for listener in listeners:
            self.add(listener)

    def add(self, listener: LineListener) -> None:
        """Accept lines on one more socket."""
        self.listeners.append(listener)
        listener.listening_socket.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def accept(self, listener: LineListener) -> Line | None:
        """Return a new line, which is in the table; None if there is none, or no room for it."""
        try:
            connection, host = listener.accept()
        except OSError as error:
            if isinstance(error, BlockingIOError | ConnectionError):
                return None
            log.warning("A direct connection could not be accepted: %s", error)
            self._selector.unregister(listener)
            self._paused[listener] = self._clock.steady_ms() + _PAUSE_MS
            return None
        if self._is_full() or (listener.is_tcp and self._has_too_many_strangers(host)):
            connection.close()
            return None
        line = Line(connection, self._clock.steady_ms(), host=host, is_tcp=listener.is_tcp)
        self._table.add(line)
        return line

    def _is_full(self) -> bool:
        """Return whether there is no room for one more line, and log when the room ends."""
        was_full, self._was_full = self._was_full, len(self._table) >= self._max_lines
        if self._was_full and not was_full:
            text = "All %d direct connections are in use. Further clients go on with the mailbox. See ulimit -n."
            log.warning(text, self._max_lines)
        return self._was_full

    def _has_too_many_strangers(self, host: str) -> bool:
        hosts = [line.host for line in self._table.lines() if line.is_tcp and not line.client_id]
        return len(hosts) >= MAX_STRANGERS or hosts.count(host) >= MAX_STRANGERS_OF_HOST

    def resume_if_due(self, now_ms: int) -> None:
        """Accept again on listeners whose pause is over."""
        for listener in [listener for listener, until_ms in self._paused.items() if now_ms >= until_ms]:
            del self._paused[listener]
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def close(self) -> None:
        """Accept nothing more."""
        for listener in self.listeners:
            with suppress(KeyError, ValueError):
                self._selector.unregister(listener)
            listener.listening_socket.close()
