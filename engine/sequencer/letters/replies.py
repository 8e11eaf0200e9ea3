"""Write replies into the mailbox. The steps have the truth, so a reply that cannot be written stops no step."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from lakemq.tables.storage.coordination.mailbox import Mailbox

from ...namespace.processes.clock import Clock
from ...protocol.codec.letter import encode_answer
from ...protocol.values.clients import Answer
from ...protocol.values.kinds import AnyResult
from ...protocol.values.state import State

log = logging.getLogger("lakemq.serve")

Reply = tuple[str, int, list[AnyResult]]
"""Client id, number of its letter, results."""

PAUSE_MS = 1_000
"""Pause before a reply is tried again. It doubles each time."""

MAX_TRIES = 6
"""Tries per reply: half a minute in all, as long as a client waits by default."""

MAX_RETRIED = 10_000
"""Replies that are tried again. Clients of further ones time out, send again and get their replies then."""

MAX_RETRIES_PER_STEP = 100
"""Replies that one step tries again, because a step must be short."""

SWEEP_MS = 3_600_000
"""Time between two searches for replies that will not be fetched."""

UNFETCHED_MS = 86_400_000
"""Age by the store's times after which no client fetches a reply: the longest request.timeout.ms."""

MAX_SWEPT = 1_000
"""Clients that one sweep looks at."""


@dataclass
class _FailedReply:
    number: int
    tries: int
    retry_at_ms: int


class Replies:
    """Write replies, and retry those that failed.

    Only the sequencer's thread calls `send`, `retry_replies`, `forget` and `sweep_if_due`. Deleting runs in `executor`.
    """

    def __init__(self, mailbox: Mailbox, clock: Clock, executor: Executor) -> None:
        self._mailbox, self._clock, self._executor = mailbox, clock, executor
        self._failed: dict[str, _FailedReply] = {}
        self._sweep_at_ms = clock.steady_ms()

    def send(self, step: int, replies: Iterable[Reply]) -> None:
        """Write the replies of a step. Those that cannot be written are tried again for a while."""
        failed = [(reply, error) for reply in replies if (error := self._write(step, reply))]
        for (client_id, number, _), _ in failed[: MAX_RETRIED - len(self._failed)]:
            self._failed[client_id] = _FailedReply(number, 1, self._clock.steady_ms() + PAUSE_MS)
        if failed:
            (client_id, number, _), error = failed[0]
            text = "%d replies could not be written, such as that to %s/%d (%s). Their requests are decided."
            log.error(text, len(failed), client_id, number, error)

    def retry_replies(self, state: State) -> None:
        """Try failed replies again that are due and still the last ones of their clients."""
        if not self._failed:
            return
        now_ms = self._clock.steady_ms()
        due = [(client_id, failed) for client_id, failed in self._failed.items() if now_ms >= failed.retry_at_ms]
        for client_id, failed in due[:MAX_RETRIES_PER_STEP]:
            client = state.clients.get(client_id)
            if client is None or client.number != failed.number or failed.tries >= MAX_TRIES:
                del self._failed[client_id]
                continue
            if self._write(state.step, (client_id, failed.number, client.results)) is None:
                del self._failed[client_id]
            failed.tries, failed.retry_at_ms = failed.tries + 1, now_ms + (PAUSE_MS << failed.tries)

    def _write(self, step: int, reply: Reply) -> OSError | None:
        client_id, number, results = reply
        try:
            self._mailbox.reply(client_id, number, encode_answer(Answer(client_id, number, step, results)))
        except OSError as error:
            return error
        return None

    # -- in the background ------------------------------------------------------------------------------

    def forget(self, client_ids: Collection[str]) -> None:
        """Delete the last replies to these clients, in the background."""
        if client_ids:
            self._executor.submit(self._forget, client_ids)

    def sweep_if_due(self, state: State) -> None:
        """Delete replies to unknown clients: they left a gap, or a sequencer died before it deleted them."""
        if self._clock.steady_ms() >= self._sweep_at_ms:
            self._sweep_at_ms = self._clock.steady_ms() + SWEEP_MS
            self._executor.submit(self._sweep, set(state.clients))

    def _sweep(self, known_clients: set[str]) -> None:
        try:
            unknown = [
                client_id for client_id in self._mailbox.list_answered_clients() if client_id not in known_clients
            ][:MAX_SWEPT]
            if not unknown:
                return
            now_ms = self._mailbox.store_time_ms()
            self._forget(
                [
                    client_id
                    for client_id in unknown
                    if now_ms - (self._mailbox.last_reply_ms(client_id) or 0) > UNFETCHED_MS
                ]
            )
        except OSError as error:
            log.warning("Replies that no client fetches may be left behind: %s", error)

    def _forget(self, client_ids: Collection[str]) -> None:
        failed: OSError | None = None
        for client_id in client_ids:
            try:
                self._mailbox.forget_client(client_id)
            except OSError as error:
                failed = error
        if failed is not None:
            log.warning("Replies that no client fetches may be left behind: %s", failed)
