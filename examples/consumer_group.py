"""A consumer group: several processes share the orders, and the orders of a customer are handled one after the other.

    python examples/consumer_group.py data/shop invoices &
    python examples/consumer_group.py data/shop invoices &

Start as many as the topic has partitions; further ones would only stand by. If one is killed, the others take its
partitions over. They get the messages again that it handled but did not commit. So the work must be repeatable: here
an invoice is a file named after its order, and writing it twice changes nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import lakemq


def write_invoice(folder: Path, order: dict[str, str]) -> None:
    """Write the invoice of an order under its final name only when it is complete."""
    draft = folder / f".{order['id']}.{os.getpid()}"
    draft.write_text(f"Invoice for order {order['id']} of {order['customer']}\n")
    draft.rename(folder / f"{order['id']}.txt")


def main(path: str, folder: str) -> None:
    Path(folder).mkdir(exist_ok=True)
    with lakemq.connect(path) as mq, mq.consumer("invoicing", topics=["orders"]) as consumer:
        while True:
            batch = consumer.poll(max_records=20, timeout_ms=1_000)
            for message in batch:
                write_invoice(Path(folder), json.loads(message.value))
            if batch:
                consumer.commit(batch)  # only after the work: what is not committed is delivered again
                print(f"{batch.record_count} invoices", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
