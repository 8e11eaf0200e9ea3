"""The model: what a namespace holds and answers, in plain Python that can be compared with docs/semantics.md.

It shares the shapes of requests and results with the engine, and nothing else. Each subject is a module, as in the
core. A kind of request is a line in `DECIDE` below and a function in the module. Its data are in `namespace`.
"""

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
"""All requests but publishes, which need their rows."""


class Model(Namespace):
    def decide(self, request: AnyRequest, rows: list[list[str]], now_ms: int) -> Any:
        """Return the result of a request, or the name of a refusal's error. rows: the messages of each file, or of
        the letter.
        """
        self.now_ms = now_ms
        try:
            if isinstance(request, Produce):
                return log.produce(self, request, rows)
            return DECIDE[type(request)](self, request)
        except Refused as refusal:
            transactions.note_refusal(self, request, str(refusal))
            return str(refusal)

    def pass_time(self, now_ms: int, transactional_id_ms: int) -> None:
        """Let time act on transactions and ids. Clients and producers are left to the caller, who follows the
        journal.
        """
        self.now_ms = now_ms
        transactions.pass_time(self, transactional_id_ms)
