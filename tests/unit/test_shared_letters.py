"""Callers whose requests share a letter: an error of one request is reported to its caller alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.codec.letter import decode_answer, encode_letter, encode_request
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone
from lakemq.engine.protocol.values.topics import AlterTopic, TopicDone
from lakemq.errors import LakeMQError

pytestmark = [pytest.mark.slow, pytest.mark.extended]

ROUNDS = 20


BAD: dict[str, Callable[[Connection, str], Any]] = {
    "a number as text": lambda mq, t: mq.topics.create(new_name("n"), partitions="4"),  # type: ignore[arg-type]
    "no number": lambda mq, t: mq.topics.create(new_name("n"), partitions=None),  # type: ignore[arg-type]
    "a broken number": lambda mq, t: mq.topics.create(new_name("n"), partitions=1.7),  # type: ignore[arg-type]
    "a lone surrogate": lambda mq, t: mq.topics.create("\ud800"),
    "bytes": lambda mq, t: mq.topics.create(b"bytes"),  # type: ignore[arg-type]
    "one subscription": lambda mq, t: mq.topics.create(new_name("n"), subscriptions="a/>"),
    "settings as text": lambda mq, t: mq.topics.alter(t, config="retention.ms=1"),  # type: ignore[arg-type]
    "no offsets": lambda mq, t: mq.topics.delete_records(t, None),  # type: ignore[arg-type]
    "an object": lambda mq, t: mq.topics.alter(t, config={"retention.ms": object()}),
}


def test_bad_values_of_some_threads_refuse_nothing_of_the_others(mq: Connection):
    topic = new_topic(mq)
    outcomes: Counter[str] = Counter()

    def good() -> None:
        outcomes[type(mq.requester.ask(AlterTopic(topic))).__name__] += 1

    def bad(ask: Callable[[Connection, str], Any]) -> None:
        with pytest.raises(LakeMQError, match=r"cannot be sent|is not valid"):
            ask(mq, topic)
        outcomes["refused"] += 1

    def rounds(work: Callable[[], None]) -> None:
        for _ in range(ROUNDS):
            work()

    works = [good] * 6 + [lambda ask=ask: bad(ask) for ask in BAD.values()]
    threads = [threading.Thread(target=rounds, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {"TopicDone": 6 * ROUNDS, "refused": len(BAD) * ROUNDS}


def test_whole_numbers_of_numpy_are_taken(mq: Connection):
    assert mq.topics.create(new_name("n"), partitions=np.int64(4)).partitions == 4


def test_a_request_of_a_newer_client_is_refused_and_its_neighbours_are_decided(mq: Connection, tmp_path: Path):
    """The sequencer cannot read one of three requests, which a client of a newer version may have sent."""
    topic, client = new_topic(mq), new_name("newer")
    texts = [
        encode_request(InitProducer()),
        b'{"request":"time_travel","to":"1955"}',
        encode_request(AlterTopic(topic)),
    ]
    mq.namespace.mailbox.put(client, 1, encode_letter(client, 1, [(0, text) for text in texts], 0), 0)
    until(lambda: mq.namespace.mailbox.poll_reply(client, 1) is not None)
    first, second, third = decode_answer(mq.namespace.mailbox.poll_reply(client, 1) or b"").results
    assert isinstance(first, ProducerDone)
    assert second.error == "INVALID_REQUEST"  # type: ignore[union-attr]
    assert "time_travel" in second.message  # type: ignore[union-attr]
    assert isinstance(third, TopicDone)
