"""A requester whose letters are answered when they are put, over a store that fails where a test says so."""

import itertools
from pathlib import Path
from typing import Any

from clocks import ManualClock
from faulty_files import FaultyFiles

from lakemq.engine.client.requests.requester import Requester
from lakemq.engine.protocol.codec.letter import decode_letter, encode_answer
from lakemq.engine.protocol.values.clients import Answer
from lakemq.engine.protocol.values.kinds import AnyResult
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone
from lakemq.tables.storage.coordination.mailbox import LetterName, Mailbox


class Desk:
    """A requester, its store, and a sequencer that answers each letter when it is put. Waiting takes no time.

    letters: the client id, number and count of requests of each letter. silent: how many of the next letters get no
    answer. result: the result of every request in the other letters.
    """

    def __init__(self, folder: Path, limit: int = 100, **faults: Any) -> None:
        self.files = FaultyFiles(str(folder), **faults)
        self.files.after_put = self._answer
        self.clock, ids = ManualClock(), itertools.count(1)
        self.mailbox = Mailbox(self.files, limit=limit, monotonic_s=lambda: self.clock.steady_ms() / 1_000)
        self.letters: list[tuple[str, int, int]] = []
        self.silent = 0
        self.result: AnyResult = ProducerDone(7, 0)
        self.requester = Requester(self.mailbox, self.clock, lambda: f"c{next(ids)}", 1_000)

    def _answer(self, path: str) -> None:
        name = LetterName.parse(path.removeprefix("mailbox/"))
        if name is None:
            return
        letter, _ = decode_letter(self.files.get(path))
        self.letters.append((name.client_id, name.number, len(letter.requests)))
        if self.silent:
            self.silent -= 1
            return
        results: Any = [self.result] * len(letter.requests)
        self.mailbox.put_answer(
            name.client_id, name.number, encode_answer(Answer(name.client_id, name.number, 1, results))
        )
        self.mailbox.discard([name])

    def ask(self) -> Any:
        return self.requester.ask(InitProducer())
