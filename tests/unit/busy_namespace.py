"""A namespace with something of every kind: lag, unacknowledged messages, dead letters, an open transaction, delays."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from unit.served import CONFIG, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.producer.producer import TransactionalProducer
from lakemq.engine.sequencer.serving import Serving

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>"
"""A payload that would run in a browser that takes it for HTML."""

ORDERS, WORKERS, READERS, SHIPPED = "orders", "workers", "readers", "shipped"


@dataclass(frozen=True)
class BusyNamespace:
    """The namespace, and what works on it. receipt: of the delayed message."""

    mq: Connection
    serving: Serving
    member: QueueConsumer
    transaction: TransactionalProducer
    receipt: str


@contextmanager
def open_busy_namespace(folder: Path) -> Iterator[BusyNamespace]:
    """Yield it, for a quarter of an hour at most: then the transaction times out.

    It has 100 orders. The queue group has rejected one and holds the others; the readers have committed 30.
    """
    with ExitStack() as stack:
        config = {**CONFIG, "project.interval.ms": 100}
        mq = stack.enter_context(lakemq.connect(folder / "mq", create=True, config=config))
        serving = stack.enter_context(mq.serving())
        mq.topics.create(ORDERS, 2)
        mq.topics.create(SHIPPED, 1)
        values = [HOSTILE, *(f'{{"order": {n}}}' for n in range(99))]
        mq.publish(ORDERS, pa.table({"key": [f"k{n % 7}" for n in range(100)], "value": values}))
        receipt = mq.delayed.schedule(ORDERS, "later", key="d", delay_ms=1_800_000)
        member = stack.enter_context(mq.consumer(WORKERS, topics=[ORDERS], protocol="queue"))
        messages: list[object] = []
        until(lambda: bool(messages.extend(member.poll(timeout_ms=500)) or messages))
        member.reject(messages[:1], error="no such <b>customer</b>")  # type: ignore[arg-type]
        with mq.consumer(READERS, assign=[ORDERS]) as reader:
            reader.commit({(ORDERS, 0): 10, (ORDERS, 1): 20})
        transaction = stack.enter_context(mq.producer("shipper", transaction_timeout_ms=900_000))
        assert isinstance(transaction, TransactionalProducer)
        transaction.begin_transaction()
        transaction.send(SHIPPED, "not yet").result()
        until(lambda: sum(count.messages for count in mq.dead_letters.counts()) == 1)
        yield BusyNamespace(mq, serving, member, transaction, receipt)
        transaction.abort_transaction()
