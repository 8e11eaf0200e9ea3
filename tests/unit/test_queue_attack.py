"""A queue group under attack: members in threads join, leave and vanish, return messages with delays, and abort.

A plain model checks the result: each message is acknowledged once or becomes a dead letter, no finished message is
shown again, and no later message of a partition is shown before one that was given back.
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue.queue_consumer import QueueConsumer
from lakemq.engine.client.fetch.fetch_result import Message
from lakemq.errors import (
    FencedMemberEpoch,
    IllegalState,
    InvalidRecordState,
    LakeMQError,
    TransactionAbortable,
    UnknownMemberId,
)

pytestmark = [pytest.mark.slow, pytest.mark.extended]

SECONDS = float(os.environ.get("LAKEMQ_ATTACK_SECONDS", "2"))
SEED = int(os.environ.get("LAKEMQ_ATTACK_SEED", "1"))
PARTITIONS = 3

Key = tuple[int, int]
"""A message's partition and offset."""


@dataclass
class Model:
    """The messages that the threads have read and acknowledged. errors: violations of the model."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: dict[Key, int] = field(default_factory=dict)
    given_back: set[Key] = field(default_factory=set)
    done: set[Key] = field(default_factory=set)
    rejected: set[Key] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def show(self, message: Message) -> None:
        key = message.partition, message.offset
        with self.lock:
            if key in self.done:
                self.errors.append(f"{key} is done with and is shown again")
            if message.delivery_count <= self.counts.get(key, 0):
                self.errors.append(f"{key} is shown as delivery {message.delivery_count} again")
            earlier = [delivery for delivery in self.given_back if delivery[0] == key[0] and delivery[1] < key[1]]
            if earlier:
                self.errors.append(f"{key} is shown before {sorted(earlier)}")
            self.counts[key] = message.delivery_count
            self.given_back.discard(key)

    def give_back(self, message: Message) -> None:
        with self.lock:
            key = message.partition, message.offset
            if self.counts[key] == message.delivery_count:
                self.given_back.add(key)

    def finish(self, messages: list[Message]) -> None:
        with self.lock:
            self.done |= {(message.partition, message.offset) for message in messages}


class Worker(threading.Thread):
    """A member that joins and leaves until a test stops it."""

    def __init__(self, mq: Connection, group: str, topic: str, model: Model, seed: int) -> None:
        super().__init__(daemon=True)
        self.mq, self.group, self.topic, self.model = mq, group, topic, model
        self.random, self.stopped = random.Random(seed), threading.Event()

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.live_once()
        except BaseException as error:
            self.model.errors.append(repr(error))

    def live_once(self) -> None:
        consumer = self.mq.consumer(self.group, topics=[self.topic], auto_offset_reset="earliest")
        assert isinstance(consumer, QueueConsumer)
        try:
            until_s = time.monotonic() + self.random.uniform(0.2, 1.5)
            while time.monotonic() < until_s and not self.stopped.is_set():
                self.work(consumer)
            if self.random.random() < 0.3:  # as if the process were killed: it neither closes nor acknowledges
                with suppress(UnknownMemberId):
                    self.mq.groups.remove_members(self.group, [consumer.member_id])
        finally:
            consumer.close()

    def work(self, consumer: QueueConsumer) -> None:
        try:
            batch = consumer.poll(max_records=self.random.randint(1, 9), timeout_ms=20)
        except (IllegalState, InvalidRecordState):
            return
        messages = list(batch)
        for message in messages:
            self.model.show(message)
        if not messages:
            return
        if self.random.random() < 0.2:
            self.transact(consumer, batch, messages)
            return
        accepted = [message for message in messages if not self.refuse(consumer, message)]
        with suppress(FencedMemberEpoch, InvalidRecordState, UnknownMemberId):
            for message in accepted:
                consumer.ack(message)
            consumer.flush(10_000)
            self.model.finish(accepted)

    def refuse(self, consumer: QueueConsumer, message: Message) -> bool:
        """Give some messages back, with and without a delay."""
        if self.random.random() > 0.15:
            return False
        with suppress(FencedMemberEpoch, InvalidRecordState, UnknownMemberId):
            consumer.nack(message, self.random.choice([None, 0, 30, 100]))
            self.model.give_back(message)
        return True

    def transact(self, consumer: QueueConsumer, batch: Any, messages: list[Message]) -> None:
        commits = self.random.random() < 0.5
        try:
            with self.mq.transaction(f"tx-{self.random.random()}") as transaction:
                transaction.send_offsets(batch)
                if not commits:
                    raise RuntimeError("on purpose")
            self.model.finish(messages)
        except (RuntimeError, TransactionAbortable, InvalidRecordState, FencedMemberEpoch, UnknownMemberId):
            with suppress(LakeMQError):
                if consumer.go_back(batch):
                    for message in messages:
                        self.model.give_back(message)


def test_no_message_is_lost_doubled_or_out_of_order_under_attack(mq: Connection) -> None:
    topic, group, model = new_topic(mq, PARTITIONS), new_name("g"), Model()
    mq.groups.create(
        group,
        {
            "group.protocol": "queue",
            "max.handoff.ms": 100,
            "rebalance.delay.ms": 50,
            "max.redelivery.count": 60,
            "max.delivered.unacked.msgs.per.flow": 20,
        },
    )
    workers = [Worker(mq, group, topic, model, SEED * 100 + i) for i in range(3)]
    for worker in workers:
        worker.start()
    sent = 0
    until_s = time.monotonic() + SECONDS
    with mq.producer() as producer:
        while time.monotonic() < until_s and not model.errors:
            for _ in range(20):
                producer.send(topic, b"%d" % sent, key=b"%d" % (sent % 17))
                sent += 1
            producer.flush()
            time.sleep(0.1)
    for worker in workers:
        worker.stopped.set()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert not model.errors, (SEED, model.errors[:5])
    last = Worker(mq, group, topic, model, 0)
    with mq.consumer(group, topics=[topic]) as consumer:
        assert isinstance(consumer, QueueConsumer)
        mq.groups.alter(group, {"max.delivered.unacked.msgs.per.flow": 1_000})
        last_lag, deadline_s = sent + 1, time.monotonic() + 30
        while (lag := mq.groups.describe(group).lag) and time.monotonic() < deadline_s:
            if lag < last_lag:  # on a busy machine progress is slow, so keep waiting
                last_lag, deadline_s = lag, time.monotonic() + 30
            messages = list(consumer.poll(timeout_ms=50))
            for message in messages:
                last.model.show(message)
            consumer.ack(messages)
            consumer.flush()
            model.finish(messages)
        assert mq.groups.describe(group).lag == 0, (SEED, mq.groups.stalls(group))
    until(lambda: mq.groups.describe(group).members == 0)
    assert not model.errors, (SEED, model.errors[:5])
    assert len(model.done) <= sent
    assert len(model.counts) == sent, "each message was shown to somebody"
