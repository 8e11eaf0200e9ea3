"""Decide when the leader lists the mailbox of an object store.

Listing costs a request. While clients send their letters on lines, few come through the mailbox, so the leader lists it
every few seconds. It lists at every step if no client has had a line since the mailbox last held a letter. A client
that is idle gives up its line, and comes back on a line. The leader also lists at every step for a while after it found
a letter, because that client sends its next letters in the same way.
"""

from __future__ import annotations

from ...namespace.processes.clock import Clock

SHORTEST_MS, LONGEST_MS = 1_000, 5_000
"""Time between two listings while clients have lines. It grows while the mailbox is empty."""
BUSY_MS = 2_000
"""Time after a letter in which each step lists the mailbox."""
_GROWTH = 1.5


class ListingPace:
    """The listings of one sequencer. For its thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client_count = 0
        self._has_line_clients = False
        self._interval_ms: float = SHORTEST_MS
        self._due_at_ms: float = clock.steady_ms()
        self._busy_until_ms: float = clock.steady_ms()

    def is_due(self, client_count: int) -> bool:
        """Return whether this step should list the mailbox. client_count: how many clients have lines."""
        # a client whose line has ended may have put its letter into the mailbox
        has_lost_client, self._client_count = client_count < self._client_count, client_count
        self._has_line_clients |= bool(client_count)
        now_ms = self._clock.steady_ms()
        if has_lost_client and not client_count:
            self._busy_until_ms = now_ms + BUSY_MS
        is_used = has_lost_client or not self._has_line_clients
        return is_used or now_ms >= self._due_at_ms or now_ms < self._busy_until_ms

    def request(self) -> None:
        """Let the next step list the mailbox."""
        self._due_at_ms = self._clock.steady_ms()

    def note_listing(self, has_letters: bool) -> None:
        """Note that the mailbox was listed, and whether letters were there."""
        now_ms = self._clock.steady_ms()
        if has_letters:
            self._busy_until_ms, self._interval_ms = now_ms + BUSY_MS, SHORTEST_MS
            self._has_line_clients = bool(self._client_count)
        self._due_at_ms = now_ms + self._interval_ms
        self._interval_ms = min(LONGEST_MS, _GROWTH * self._interval_ms)
