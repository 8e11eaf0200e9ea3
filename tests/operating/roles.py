"""A process of the operator's trial: `python roles.py ROLE PATH`. The line `ready` on stdout says that it is at work.

Each role is a program that has gone wrong in its own way, or a healthy one beside it. It lives until it is killed.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import lakemq
from lakemq.engine.client.connection import Connection

MEMBER: dict[str, Any] = {
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
    "max_poll_interval_ms": 6_000,
    "protocol": "queue",
}


def tell_ready() -> None:
    print("ready", flush=True)


def work(mq: Connection) -> None:
    """Acknowledge everything, as a healthy member does."""
    with mq.consumer("billing", topics=["orders"], client_id="billing-1", **MEMBER) as member:
        tell_ready()
        while True:
            member.ack(member.poll(timeout_ms=500))


def hang(mq: Connection) -> None:
    """Poll, and never finish the work on a message."""
    with mq.consumer("billing", topics=["orders"], client_id="billing-2", **MEMBER) as member:
        tell_ready()
        while True:
            member.poll(timeout_ms=200)


def refuse(mq: Connection) -> None:
    """Fail on one message again and again, until the group gives it up."""
    mq.groups.create("mailer", {"max.redelivery.count": 2, "nack.backoff.ms": 10})
    with mq.consumer("mailer", topics=["mails"], client_id="mailer-1", **MEMBER) as member:
        tell_ready()
        while True:
            for message in member.poll(timeout_ms=500):
                if message.value == b"not a mail":
                    member.nack(message, error="ValueError: the mail has no recipient")
                else:
                    member.ack(message)


def lag(mq: Connection) -> None:
    """Commit one message a second, which is far less than what comes in."""
    with mq.consumer("shipping", topics=["orders"], client_id="shipping-1", protocol="cooperative") as member:
        is_ready = False
        while True:
            batch = member.poll(1, timeout_ms=1_000)
            member.commit(batch)
            if len(batch) and not is_ready:
                is_ready = True
                tell_ready()
            time.sleep(1)


def leave_open(mq: Connection) -> None:
    """Send in a transaction, and never end it."""
    with mq.producer("exporter", transaction_timeout_ms=900_000) as producer:
        producer.begin_transaction()
        producer.send("exports", "row 1", partition=1).result()
        tell_ready()
        while True:
            time.sleep(1)


def flood(mq: Connection) -> None:
    """Schedule many messages for the next hour, evenly, and some for later."""
    count = 12_000
    delays_ms = [120_000 + n * 3_300_000 // count for n in range(count)] + [7_200_000] * 500
    mq.publish("reminders", pa.table({"value": [f"call {n}" for n in range(len(delays_ms))], "delay_ms": delays_ms}))
    tell_ready()


# How long the programs wait for a sequencer that a test stops, and for the commands that the test runs meanwhile.
SETTINGS = {"request.timeout.ms": 600_000}

ROLES: dict[str, Callable[[Connection], None]] = {
    role.__name__: role for role in (work, hang, refuse, lag, leave_open, flood)
}


if __name__ == "__main__":
    with lakemq.connect(sys.argv[2], config=SETTINGS) as connection:
        ROLES[sys.argv[1]](connection)
