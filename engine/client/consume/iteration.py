"""Iteration over a consumer: messages are polled many at a time, and count as read one by one as the loop gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...namespace.processes.clock import Clock
from ..fetch.fetch_result import Message
from .partition_reader import Batch, PartitionReader
from .poll_loop import ConsumerLock

POLL_RECORDS = 500
"""Messages of a poll, as Kafka's `max.poll.records`."""
_POLL_MS = 20
_KEEP_UP_MS = 1_000
"""After this long without a poll, the consumer looks between two messages whether its partitions have changed."""


def iterate(
    lock: ConsumerLock,
    reader: PartitionReader[Batch],
    poll: Callable[[], Batch],
    clock: Clock,
    timeout_ms: int | None,
    waits_for_others: Callable[[], bool],
) -> Iterator[Message]:
    """Yield messages until the consumer is closed, or until no message has come for `timeout_ms`.

    A consumer that is about to get its first partitions waits for these, and the timeout waits with it. So does a
    consumer that has just started while members of other processes hold unread messages. Between two
    messages the consumer looks from time to time whether its partitions have changed, as a poll does.

    Args:
        lock: of the consumer. It is held for each of the steps, and never while the caller works on a message.
        reader: of the consumer.
        poll: polls without waiting.
        clock: the time that the timeout counts.
        timeout_ms: None: no limit.
        waits_for_others: as in `EndFinder`.
    """
    last_message_ms = clock.steady_ms()
    while True:
        with lock.own:
            if lock.is_closed:
                return
            # The lock is held for both, so that no other thread sees the messages as read.
            unseen = reader.mark_unseen(poll())
        kept_up_ms = clock.steady_ms()
        for message in unseen.messages:
            with lock.own:
                if clock.steady_ms() - kept_up_ms >= _KEEP_UP_MS and not lock.is_closed:
                    reader.begin_poll(newest=True)
                    kept_up_ms = clock.steady_ms()
                if lock.is_closed:
                    return
                is_shown = unseen.show(message)
            if is_shown:
                yield message
        with lock.own:
            unseen.end()
        if unseen.messages or reader.waits_for_partitions() or (timeout_ms is not None and waits_for_others()):
            last_message_ms = clock.steady_ms()
        elif timeout_ms is not None and clock.steady_ms() - last_message_ms >= timeout_ms:
            return
        if not unseen.messages:
            left_ms = _KEEP_UP_MS if timeout_ms is None else last_message_ms + timeout_ms - clock.steady_ms()
            reader.rest(_POLL_MS, max(1, min(_KEEP_UP_MS, left_ms)))
