"""Members that ask for topics by a pattern."""

import time
from typing import Any

import pyarrow as pa
import pytest
from unit.served import new_name, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.engine.client.consume.options import Pattern
from lakemq.engine.protocol.values.groups import JoinGroup
from lakemq.errors import InvalidRegularExpression


def member(mq: Connection, group: str, pattern: Any, **options: Any) -> MemberConsumer:
    return mq.consumer(group, pattern=pattern, protocol="cooperative", **options)


def publish(mq: Connection, topic: str, *values: str) -> None:
    mq.publish(topic, pa.table({"value": list(values)}))


def read(consumer: MemberConsumer, count: int) -> list[tuple[str, bytes]]:
    messages: list[tuple[str, bytes]] = []

    def poll() -> bool:
        messages.extend((message.topic, message.value or b"") for message in consumer.poll(timeout_ms=50))
        return len(messages) >= count

    until(poll)
    return sorted(messages)


def test_pattern_matches_whole_names() -> None:
    topics = ["orders.us", "orders", "bills", "orders-eu"]
    for pattern, matching in (
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu", "orders.us"]),
        (r"orders\..*", ["orders.us"]),
        ("(?i)ORDERS", ["orders"]),
        ("orders|bills", ["bills", "orders"]),
        ("x", []),
    ):
        assert Pattern(pattern).find_matches(topics) == matching, pattern


def test_bad_pattern_is_refused_in_the_call(mq: Connection) -> None:
    wrong = ("", "(", "a)|(b", "(?=x)", r"(a)\1", "x" * 1001, "\ud800", "((a{100}){100}){100}", 3, b"x", ["x"])
    for pattern in wrong:
        with pytest.raises(InvalidRegularExpression):
            member(mq, new_name("g"), pattern)


def test_matching_takes_linear_time() -> None:
    names = ["a" * 248 + "b"] * 10_000
    began_s = time.process_time()
    assert Pattern("(a|a|aa)+|(a+)+").find_matches(names) == []
    assert time.process_time() - began_s < 1


@pytest.mark.slow
def test_member_reads_later_topics_from_their_start_and_loses_deleted_ones(mq: Connection) -> None:
    prefix, group = new_name("p"), new_name("g")
    mq.topics.create(f"{prefix}-one")
    publish(mq, f"{prefix}-one", "before")
    with member(mq, group, f"{prefix}-.*", auto_offset_reset="latest") as consumer:
        until(lambda: bool(consumer.poll() is not None and consumer.assignment()))
        mq.topics.create(f"{prefix}-two")
        publish(mq, f"{prefix}-two", "its first")
        mq.topics.create(f"not-{prefix}-three")
        assert read(consumer, 1) == [(f"{prefix}-two", b"its first")]
        mq.topics.delete(f"{prefix}-one")
        until(lambda: consumer.poll() is not None and consumer.assignment() == [(f"{prefix}-two", 0)])
        until(
            lambda: (
                not consumer.poll()
                and [member_info.topics for member_info in mq.groups.members(group)] == [[f"{prefix}-two"]]
            )
        )


def test_pattern_may_match_no_topic_yet(mq: Connection) -> None:
    prefix = new_name("p")
    with member(mq, new_name("g"), f"{prefix}.*") as consumer:
        assert not consumer.poll()
        mq.topics.create(prefix)
        publish(mq, prefix, "a")
        assert read(consumer, 1) == [(prefix, b"a")]


def test_member_joins_again_only_when_its_topics_change(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member asks once. It does not ask again if settings of the group have changed since."""
    prefix, requests = new_name("p"), list[JoinGroup]()
    mq.topics.create(prefix)
    submit = mq.requester.submit

    def note_join(request: Any, *rest: Any) -> Any:
        requests.append(request) if isinstance(request, JoinGroup) else None
        return submit(request, *rest)

    with member(mq, group := new_name("g"), f"{prefix}.*") as consumer:
        until(lambda: consumer.poll() is not None and bool(consumer.assignment()))
        monkeypatch.setattr(mq.requester, "submit", note_join)
        for _ in range(5):
            consumer.poll()
        assert requests == []
        mq.groups.alter(group, {"group.assignor": "sticky"})
        mq.topics.create(f"{prefix}-2")
        until(lambda: consumer.poll() is not None and len(consumer.assignment()) == 2)
        assert [(request.topics, request.config) for request in requests] == [([prefix, f"{prefix}-2"], {})]
