"""A small shop, written from README and the pages alone: `python shop.py setup|sell TILL BATCHES|ship WORKER|bill`.

test_small_application.py runs it, kills it and counts what it has done.
"""

from __future__ import annotations

import json
import os
import sys
import time

import pyarrow as pa

import lakemq
from lakemq.errors import TransactionAbortable

PATH = os.environ.get("SHOP_PATH", "data/shop")
REMINDER_DELAY_MS = 5_000
ORDERS_PER_BATCH = 10


def setup() -> None:
    with lakemq.connect(PATH, create=True) as mq, mq.serving():
        for topic in ("orders", "shipments", "invoices", "reminders"):
            mq.topics.create(topic, partitions=4, exist_ok=True)


def sell(till: str, batches: int) -> None:
    """Publish numbered batches of orders, each with its reminders. A till that was killed starts again at 0."""
    with lakemq.connect(PATH) as mq:
        for number in range(batches):
            names = [f"{till}-{number}-{n}" for n in range(ORDERS_PER_BATCH)]
            customers = [f"customer-{n % 5}" for n in range(ORDERS_PER_BATCH)]
            with mq.transaction(f"till-{till}", batch_id=number) as txn:
                if not txn.replayed:
                    txn.publish("orders", pa.table({"key": customers, "value": names}))
                    reminders = pa.table({"key": names, "value": names})
                    txn.publish("reminders", reminders, delay_ms=REMINDER_DELAY_MS)
            # every third order is paid at once: it needs no reminder
            for name in names[::3]:
                for outcome in mq.delayed.cancel_where("reminders", key=name).to_pylist():
                    print(json.dumps({"order": name, "outcome": outcome["outcome"]}), flush=True)
            time.sleep(0.05)


def ship(worker: str) -> None:
    """Ship orders as a member of a group until stopped or killed."""
    with lakemq.connect(PATH) as mq:
        txn = mq.transaction(f"ship-{worker}")
        with mq.consumer("shipping", topics=["orders"]) as orders:
            while True:
                batch = orders.poll(max_records=20, timeout_ms=1_000)
                if not batch:
                    continue
                time.sleep(0.1)
                try:
                    with txn:
                        txn.publish("shipments", batch.to_arrow().select(["key", "value"]))
                        txn.send_offsets(batch)
                except TransactionAbortable as error:
                    print("aborted:", error, flush=True)
                    orders.go_back(batch)


def bill() -> None:
    """Write an invoice for each order, and end; a scheduler runs this every few seconds."""
    with lakemq.connect(PATH) as mq, mq.serving():
        txn = mq.transaction("billing")
        billed = 0
        with mq.consumer("billing", topics=["orders"]) as orders:
            for batch in orders.until_end(max_records=50):
                with txn:
                    txn.publish("invoices", batch.to_arrow().select(["key", "value"]))
                    txn.send_offsets(batch)
                billed += batch.record_count
                time.sleep(0.05)
        print(json.dumps({"billed": billed, "lag": sum(lag.lag for lag in mq.groups.lag("billing"))}), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["setup"]:
            setup()
        case ["sell", till, batches]:
            sell(till, int(batches))
        case ["ship", worker]:
            ship(worker)
        case ["bill"]:
            bill()
        case _:
            sys.exit(__doc__)
