"""The sequencer's log tells an operator what happens to topics, groups and transactions."""

from __future__ import annotations

import logging
import os
import re

import pytest
from unit.consuming import add, create_queue_group, join_queue_group
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection


def test_log_of_the_sequencer_names_what_was_decided(mq: Connection, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lakemq.serve")
    topic, transactional_id = new_topic(mq, 2), new_name("x")
    mq.topics.alter(topic, {"retention.ms": 1_000_000_000})
    add(mq, topic, {0: 1, 1: 1})
    group = create_queue_group(mq)
    with join_queue_group(mq, group, topic) as consumer:
        read = 0
        while read < 2:
            for message in consumer.poll(timeout_ms=1_000):
                consumer.reject(message)
                read += 1
        consumer.flush()
        until(lambda: "dead letters" in caplog.text)
    with mq.producer(transactional_id=transactional_id) as producer:
        producer.begin_transaction()
        producer.send(topic, b"x")
        producer.flush()
        producer.abort_transaction()
    mq.groups.delete(group)
    add(mq, topic, {0: 3})
    with mq.consumer(reader := new_name("g"), assign=[topic]) as assigned:
        assigned.commit({(topic, 0): 2})
    mq.topics.delete_records(topic, {0: 4, 1: 1})
    mq.topics.delete(topic)
    text = "\n".join(record.getMessage() for record in caplog.records if record.name == "lakemq.serve")
    client = r"by client \S+-[0-9a-f]{16}"
    for line in (
        f"Topic {topic} is created with 2 partitions, {client}",
        f"Topic {topic} is altered: 2 partitions, settings {{'retention.ms': 1000000000}}, {client}",
        f"Group {group} got settings, {client}",
        rf"Group {group}: \S+ is a member, process {os.getpid()} of \S+",
        rf"Group {group}: rebalanced within \d+ ms, reason balance, generation \d+",
        rf"Group {group}: messages of {topic} became dead letters of {topic}\.dlq( \(2\))?",
        rf"Group {group}: \S+ is no member any more, because it has left",
        f"Transactional id {transactional_id}: its transaction is aborted, by producer",
        f"Group {group} is deleted, {client}",
        f"Topic {topic}: offsets are deleted below 4 in partition 0, 1 in partition 1; groups lost messages that they"
        rf" had not read: {reader} \(2 so far\), {client}",
        f"Topic {topic} is deleted, {client}",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), f"{line} is not in:\n{text}"
