"""Delayed reminders: remind customers of orders that they have not paid after a while.

    python examples/delayed_reminders.py data/shop schedule 3000     # one reminder for each order, 3000 ms from now
    python examples/delayed_reminders.py data/shop pay order-17      # the customer has paid: cancel the reminder
    python examples/delayed_reminders.py data/shop send              # a service that sends the reminders that are due

`schedule` reads the orders and publishes their reminders in one transaction with its progress, so that each order gets
one reminder even if the program is killed and run again. Until its time nobody sees a reminder.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa

import lakemq


def schedule(mq: lakemq.Connection, delay_ms: int) -> None:
    """Schedule a reminder for each order that has none, and end."""
    transaction = mq.transaction("reminders")
    with mq.consumer("reminders", topics=["orders"]) as orders:
        for batch in orders.until_end(max_records=20):
            order_ids = [json.loads(message.value)["id"] for message in batch]
            with transaction:
                reminders = pa.table({"key": order_ids, "value": [f"Please pay {name}." for name in order_ids]})
                transaction.publish("reminders", reminders, delay_ms=delay_ms)
                transaction.send_offsets(batch)
            print(f"{len(order_ids)} reminders scheduled", flush=True)


def pay(mq: lakemq.Connection, order_id: str) -> None:
    """Cancel the reminder of an order that is paid. If it is too late, no reminder waits any more."""
    outcomes = mq.delayed.cancel_where("reminders", key=order_id).to_pylist()
    print(f"{order_id}: {outcomes[0]['outcome'] if outcomes else 'no reminder waits'}", flush=True)


def send(mq: lakemq.Connection) -> None:
    """Send reminders as they become due, until stopped. A reminder counts as sent when it is acknowledged."""
    with mq.consumer("mail", topics=["reminders"], protocol="queue") as reminders:
        while True:
            for reminder in reminders.poll(timeout_ms=1_000):
                print(f"to {reminder.key.decode()}: {reminder.value.decode()}", flush=True)
                reminders.ack(reminder)
            reminders.flush()


def main(path: str, command: str, *arguments: str) -> None:
    with lakemq.connect(path) as mq:
        mq.topics.create("reminders", partitions=4, exist_ok=True)
        match command, arguments:
            case "schedule", [delay_ms]:
                schedule(mq, int(delay_ms))
            case "pay", [order_id]:
                pay(mq, order_id)
            case "send", []:
                send(mq)
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
