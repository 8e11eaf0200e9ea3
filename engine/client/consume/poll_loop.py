"""The loop of a poll, which looks for messages until some come or it times out; and what a consumer's parts share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from ...namespace.processes.clock import Clock
from ...namespace.processes.process import OwnLock
from ...protocol.errors import IllegalState
from ..arguments import parse_whole_number
from ..fetch.step_waiter import StepWaiter
from ..offsets import ConsumedOffsets
from ..requests.requester import Requester
from .batch import ExplainTransactions
from .partition_reader import Batch, Moves, PartitionReader
from .range_fetcher import RangeFetcher

_PASSING_MS = 1_000
"""How long a poll reads past offsets without visible messages, even if its timeout is shorter."""
_SHORT_MS = 200
"""A poll with a shorter timeout always looks for new steps. It must find every message that was acknowledged before the
call, but might end before the leader's hint arrives. With a longer timeout the hint has this time to arrive."""
_LATE_LOOK_MS = 20
"""Longest rest of a poll whose time is over, while the messages that it has requested are on their way."""
_MAX_PASSED = 16_384
"""Most offsets without visible messages that one look reads past, unless `max_records` is larger."""


class ConsumerLock(OwnLock):
    """The lock that a consumer holds for every call of its parts. A callback of the consumer may take it again."""

    def __init__(self) -> None:
        super().__init__("This consumer", threading.RLock())
        self.is_closed = False

    def check_open(self) -> None:
        """Raise IllegalState if the consumer is closed."""
        if self.is_closed:
            raise IllegalState("The consumer is closed.")


@dataclass(frozen=True)
class ConsumerParts:
    """What the parts of one consumer share. Nothing here refers to the consumer, which would then never be garbage.

    Attributes:
        group: the group that the consumer reads for.
        requester: sends requests to the sequencer.
        fetcher: fetches the messages.
        clock: the consumer's clock.
        waiter: waits until messages may have come.
        explain_transactions: names the open transactions that hold partitions back.
        iteration_timeout_ms: `for message in consumer` ends when no message has come for so long; None: never.
        lock: is held for every call of the parts, unless they say otherwise.
    """

    group: str
    requester: Requester
    fetcher: RangeFetcher
    clock: Clock
    waiter: StepWaiter
    explain_transactions: ExplainTransactions
    iteration_timeout_ms: int | None = None
    lock: ConsumerLock = field(default_factory=ConsumerLock)


class PollLoop(Generic[Batch]):
    """Polls a reader. Thread-safe: the lock is taken for each look, and not while waiting."""

    def __init__(
        self, parts: ConsumerParts, reader: PartitionReader[Batch], waits_for_others: Callable[[], bool]
    ) -> None:
        """waits_for_others: as in `EndFinder`."""
        self._lock, self._reader, self._clock, self._waiter = parts.lock, reader, parts.clock, parts.waiter
        self._waits_for_others = waits_for_others

    def poll(self, max_records: int, timeout_ms: int, poll_ms: int, is_patient: bool) -> Batch:
        """Return the next messages; if none come before the timeout, an empty batch that says why.

        Args:
            max_records: the most messages of the batch.
            timeout_ms: how long to wait for the first message.
            poll_ms: how long to sleep before looking again.
            is_patient: whether to wait longer for messages that members of other processes hold. A poll without a
                timeout never waits for these.
        """
        max_records, poll_ms = (
            parse_whole_number("max_records", max_records, 1),
            parse_whole_number("poll_ms", poll_ms, 0),
        )
        begun_ms = self._clock.steady_ms()
        deadline_ms = begun_ms + parse_whole_number("timeout_ms", timeout_ms, 0)
        reader, passed, read_ahead = self._reader, None, 0
        moves: Moves = {}
        try:
            while True:
                if newest := self._waiter.needs_look() or timeout_ms < _SHORT_MS:
                    self._waiter.reset()
                with self._lock.own:
                    reader.begin_poll(newest)
                    while (batch := reader.read_next(max_records, moves, read_ahead)) is None:
                        pass  # messages were deleted between looking and reading: look again
                has_moved = bool(batch.offsets)
                # The batch also has the next offset of partitions in which nothing was visible.
                batch.offsets = passed = _follow(passed, batch.offsets)
                if batch:
                    self._waiter.note_arrival()
                    return batch
                read_ahead = min(4 * max(read_ahead, max_records), _MAX_PASSED) if has_moved else 0
                end_ms = max(deadline_ms, begun_ms + _PASSING_MS) if has_moved else deadline_ms
                if self._clock.steady_ms() >= end_ms and not reader.expects_messages(deadline_ms):
                    if not (is_patient and timeout_ms and self._waits_for_others()):
                        with self._lock.own:
                            reader.explain_empty(batch)
                        return batch
                    # not the whole timeout again: it may be far longer than the others are waited for
                    deadline_ms = self._clock.steady_ms() + min(timeout_ms, _PASSING_MS)
                if not has_moved:
                    left_ms = deadline_ms - self._clock.steady_ms()
                    reader.rest(poll_ms, left_ms if left_ms > 0 else _LATE_LOOK_MS)
        except BaseException:  # also an interrupt: the user has not seen these messages
            with self._lock.own:
                reader.undo_moves(moves)
            raise

    def close(self) -> None:
        """Wait for no more messages."""
        self._waiter.close()


def _follow(passed: ConsumedOffsets | None, offsets: ConsumedOffsets) -> ConsumedOffsets:
    return offsets if passed is None else passed.followed_by(offsets)
