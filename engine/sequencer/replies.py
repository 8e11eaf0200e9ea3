"""Replies: what was decided is told to who asked. The journal has the truth; one that cannot be given stops nobody."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from lakemq.tables.storage.mailbox import Mailbox

from ..namespace.clock import Clock
from ..protocol.codec.letter import encode_answer
from ..protocol.values.clients import Answer
from ..protocol.values.kinds import AnyResult
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")

Reply = tuple[str, int, list[AnyResult]]
"""Client id, number of its letter, results."""

PAUSE_MS = 1_000
"""Before a reply is tried again; doubled each time."""

TRIES = 6
"""Of one reply: half a minute, as long as its client waits by default."""

MOST_FAILED = 10_000
"""Replies that are tried again; of more than that, clients learn when they time out."""

MOST_AGAIN = 100
"""Of them in one step, which must not take long."""

SWEEP_MS = 3_600_000
"""Time between two looks for replies that nobody fetches any more."""

OLD_MS = 86_400_000
"""Age by the store's times at which nobody does: the longest request.timeout.ms."""

MOST_SWEPT = 1_000
"""Clients that one sweep looks at."""


@dataclass
class _Failed:
    number: int
    tries: int
    again_at_ms: int


class Replies:
    """Of one sequencer. `give`, `again` and `sweep_if_due` are for its thread; what they leave to `executor` is not."""

    def __init__(self, mailbox: Mailbox, clock: Clock, executor: Executor) -> None:
        self._mailbox, self._clock, self._executor = mailbox, clock, executor
        self._failed: dict[str, _Failed] = {}
        self._sweep_at_ms = clock.steady_ms()

    def give(self, step: int, replies: Iterable[Reply]) -> None:
        """They are there, but those that cannot be written: they are tried again for a while."""
        failed = [(reply, error) for reply in replies if (error := self._write(step, reply))]
        for (client_id, number, _), _ in failed[: MOST_FAILED - len(self._failed)]:
            self._failed[client_id] = _Failed(number, 1, self._clock.steady_ms() + PAUSE_MS)
        if failed:
            (client_id, number, _), error = failed[0]
            text = "Answers that could not be given: %d, such as that to %s/%d (%s). What they say is decided"
            log.error(text, len(failed), client_id, number, error)

    def again(self, state: State) -> None:
        """Try those whose time has come, as far as they are still their clients' last."""
        if not self._failed:
            return
        now_ms = self._clock.steady_ms()
        due = [(client_id, one) for client_id, one in self._failed.items() if now_ms >= one.again_at_ms]
        for client_id, failed in due[:MOST_AGAIN]:
            client = state.clients.get(client_id)
            if client is None or client.number != failed.number or failed.tries >= TRIES:
                del self._failed[client_id]
                continue
            if self._write(state.step, (client_id, failed.number, client.results)) is None:
                del self._failed[client_id]
            failed.tries, failed.again_at_ms = failed.tries + 1, now_ms + (PAUSE_MS << failed.tries)

    def _write(self, step: int, reply: Reply) -> OSError | None:
        client_id, number, results = reply
        try:
            self._mailbox.reply(client_id, number, encode_answer(Answer(client_id, number, step, results)))
        except OSError as error:
            return error
        return None

    # -- in the background ------------------------------------------------------------------------------

    def forget(self, client_ids: Collection[str]) -> None:
        """Nobody reads the last replies to these clients any more."""
        if client_ids:
            self._executor.submit(self._forget, client_ids)

    def sweep_if_due(self, state: State) -> None:
        """Forget the replies to clients nobody knows: they left a gap, or a sequencer died before it forgot them."""
        if self._clock.steady_ms() >= self._sweep_at_ms:
            self._sweep_at_ms = self._clock.steady_ms() + SWEEP_MS
            self._executor.submit(self._sweep, set(state.clients))

    def _sweep(self, known: set[str]) -> None:
        try:
            unknown = [one for one in self._mailbox.answered_clients() if one not in known][:MOST_SWEPT]
            if not unknown:
                return
            now_ms = self._mailbox.store_now_ms()
            self._forget([one for one in unknown if now_ms - (self._mailbox.replied_at_ms(one) or 0) > OLD_MS])
        except OSError as error:
            log.warning("Replies that nobody fetches may be left behind: %s", error)

    def _forget(self, client_ids: Collection[str]) -> None:
        failed: OSError | None = None
        for client_id in client_ids:
            try:
                self._mailbox.forget_client(client_id)
            except OSError as error:
                failed = error
        if failed is not None:
            log.warning("Replies that nobody fetches may be left behind: %s", failed)
