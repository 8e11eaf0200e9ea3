"""The model: what a namespace should hold and answer, in plain Python, to be read against docs/semantics.md.

It shares with the engine the shapes of requests and results, and nothing else. A subject is a module, as in the core: a
request kind is a line in `DECIDE` below and a function there; what it is about is in `namespace`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateful.model import log, offsets, topics, transactions
from stateful.model.namespace import Namespace, Refused

from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import Produce
from lakemq.engine.protocol.values.offsets import CommitOffsets, FetchOffsets
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic
from lakemq.engine.protocol.values.transactions import AbortTransaction, EndTransaction

DECIDE: dict[type, Callable[..., Any]] = {
    CreateTopic: topics.create,
    AlterTopic: topics.alter,
    DeleteTopic: topics.delete,
    DeleteRecords: topics.delete_records,
    InitProducer: transactions.init,
    EndTransaction: transactions.end,
    AbortTransaction: transactions.operator_aborts,
    CommitOffsets: offsets.commit,
    FetchOffsets: offsets.fetch,
}
"""All but publishes, which need their rows."""


class Model(Namespace):
    def decide(self, request: AnyRequest, rows: list[list[str]], now_ms: int) -> Any:
        """The result of a request; of a refusal the error's name. rows: the messages of each file, or of the letter."""
        self.now_ms = now_ms
        try:
            if isinstance(request, Produce):
                return log.produce(self, request, rows)
            return DECIDE[type(request)](self, request)
        except Refused as refused:
            transactions.hear_of_refusal(self, request, str(refused))
            return str(refused)

    def pass_time(self, now_ms: int, transactional_id_ms: int) -> None:
        """What time alone brings about, but for clients and producers: whoever follows a journal is told of those."""
        self.now_ms = now_ms
        transactions.pass_time(self, transactional_id_ms)
