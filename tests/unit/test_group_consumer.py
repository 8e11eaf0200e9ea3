"""Consumers in a cooperative group: their partitions, their messages, and which of their commits count."""

import os
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from targets import extended_but
from unit.consuming import RecordingListener, add, list_partitions, new_group, texts
from unit.served import new_name, new_topic, until

from lakemq import errors
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.batch import ConsumerBatch
from lakemq.engine.client.consume.group_consumer import GroupConsumer
from lakemq.engine.client.consume.options import RebalanceListener
from lakemq.jobs.doctor.namespace import check_groups

pytestmark = pytest.mark.slow


def member(
    mq: Connection, group: str, topic: str, protocol: str | None = "cooperative", **options: Any
) -> GroupConsumer:
    options = {"auto_offset_reset": "earliest", **options}
    consumer = mq.consumer(group, topics=[topic], protocol=protocol, **options)
    assert isinstance(consumer, GroupConsumer)
    return consumer


def settle(*consumers: GroupConsumer, on: Callable[[], bool]) -> None:
    """Poll all consumers until the condition holds. The messages are ignored."""

    def poll() -> bool:
        for consumer in consumers:
            consumer.poll(max_records=1)
        return on()

    until(poll)


# -- reading ------------------------------------------------------------------------------------------------


def test_member_without_partitions_polls_empty_batches(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    first = member(mq, group, topic)
    settle(first, on=lambda: list_partitions(first) == [0])
    standby = member(mq, group, topic)
    batch = standby.poll(timeout_ms=50)
    assert not batch
    assert batch.to_arrow().num_rows == 0
    with pytest.raises(errors.IllegalState, match="no partitions"):
        batch.to_spark()
    first.close()
    settle(standby, on=lambda: list_partitions(standby) == [0])
    standby.close()


def test_paused_partition_is_not_read_until_it_is_resumed(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    with member(mq, new_name("g"), topic) as consumer:
        settle(consumer, on=lambda: len(list_partitions(consumer)) == 2)
        consumer.pause([(topic, 0)])
        add(mq, topic, {0: 1, 1: 1})
        assert texts(consumer.poll(timeout_ms=5_000)) == ["1.0"]
        consumer.resume([(topic, 0)])
        assert texts(consumer.poll(timeout_ms=5_000)) == ["0.0"]
        with pytest.raises(errors.IllegalState, match="not assigned"):
            consumer.pause([(topic, 2)])


# -- changing hands -----------------------------------------------------------------------------------------


def test_listener_hears_only_of_partitions_that_move(mq: Connection) -> None:
    topic, group = new_topic(mq, 4), new_name("g")
    first_listener, second_listener = RecordingListener(), RecordingListener()
    first = member(mq, group, topic, listener=first_listener)
    settle(first, on=lambda: len(list_partitions(first)) == 4)
    second = member(mq, group, topic, listener=second_listener)
    settle(first, second, on=lambda: len(list_partitions(second)) == 2)
    second.close()
    settle(first, on=lambda: len(list_partitions(first)) == 4)
    first.close()
    assert first_listener.events == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [2, 3]),
        ("assigned", [2, 3]),
        ("revoked", [0, 1, 2, 3]),
    ]
    assert second_listener.events == [("assigned", [2, 3]), ("revoked", [2, 3])]


def test_commit_of_a_moved_partition_is_refused_and_the_rest_counts(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 3})
    first = member(mq, group, topic)
    batch = first.poll(timeout_ms=5_000)
    second = member(mq, group, topic)
    settle(first, second, on=lambda: list_partitions(second) == [1])
    with pytest.raises(errors.FencedMemberEpoch, match=f"{topic}-1"):
        first.commit(batch)
    assert {tp: committed.offset for tp, committed in first.committed().items()} == {(topic, 0): 3}
    assert second.committed() == {}
    second.close()
    first.close()


def test_partition_moves_when_the_listener_raises(mq: Connection) -> None:
    class Raises(RebalanceListener):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            raise ValueError("mine")

    topic, group = new_topic(mq, 2), new_name("g")
    first = member(mq, group, topic, listener=Raises())
    settle(first, on=lambda: len(list_partitions(first)) == 2)
    second = member(mq, group, topic)
    with pytest.raises(ValueError, match="mine"):
        until(lambda: first.poll() is None)
    settle(second, on=lambda: list_partitions(second) == [1])
    assert list_partitions(first) == [0]
    second.close()
    with pytest.raises(ValueError, match="mine"):
        first.close()


def test_second_process_with_an_instance_id_fences_the_first(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    listener = RecordingListener()
    first = member(mq, group, topic, instance_id="i", listener=listener)
    settle(first, on=lambda: list_partitions(first) == [0])
    second = member(mq, group, topic, instance_id="i")
    with pytest.raises(errors.FencedInstanceId, match=rf"of member {second.member_id} \(process {os.getpid()}, "):
        first.poll()
    assert listener.events == [("assigned", [0]), ("lost", [0])]
    with pytest.raises(errors.IllegalState, match="closed"):
        first.poll()
    settle(second, on=lambda: list_partitions(second) == [0])
    second.close(leave=True)


def test_two_consumers_with_an_instance_id_are_a_finding_that_names_both(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    consumers = [member(mq, group, topic, instance_id="i")]
    settle(consumers[0], on=lambda: list_partitions(consumers[0]) == [0])
    for _ in range(2):
        consumers.append(member(mq, group, topic, instance_id="i"))
        with pytest.raises(errors.FencedInstanceId):
            consumers[-2].poll()
        names = [f"{c.member_id} (process {os.getpid()} on {socket.gethostname()})" for c in consumers[-2:]]
        expected = f"Two consumers use the instance id i: {names[0]} lived when {names[1]} took it over at "
        (stall,) = mq.groups.stalls(group)
        assert stall.found.startswith(expected), "the newest one counts"
        finding = check_groups(mq, mq.observer())
        assert (finding.ok, expected in finding.found, finding.advice) == (False, True, stall.advice)
        assert "an instance id of its own" in stall.advice
    consumers[-1].close(leave=True)
    assert check_groups(mq, mq.observer()).ok, "a group without members has no trouble with them"


def test_process_that_restarts_with_its_instance_id_is_no_finding(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    first = member(mq, group, topic, instance_id="i")
    settle(first, on=lambda: list_partitions(first) == [0])
    first.close()
    second = member(mq, group, topic, instance_id="i")
    settle(second, on=lambda: list_partitions(second) == [0])
    assert mq.groups.stalls(group) == []
    second.close(leave=True)


def test_removed_member_joins_again_with_its_next_poll(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    listener = RecordingListener()
    consumer = member(mq, group, topic, listener=listener)
    settle(consumer, on=lambda: list_partitions(consumer) == [0])
    before = consumer.member_id
    mq.groups.remove_members(group, members=[before])
    with pytest.raises(errors.UnknownMemberId):
        consumer.commit({(topic, 0): 0})
    assert consumer.lag() == {}
    with pytest.raises(errors.IllegalState, match="not assigned"):
        consumer.seek(topic, 0, 0)
    settle(consumer, on=lambda: list_partitions(consumer) == [0])
    assert consumer.member_id != before
    assert listener.events == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]
    consumer.close()


def test_listener_commits_what_was_read_as_partitions_are_revoked(mq: Connection) -> None:
    class Commits(RebalanceListener):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            answers.append(first.commit())

    answers: list[Any] = []
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 3})
    first = member(mq, group, topic, listener=Commits())
    assert first.poll(timeout_ms=5_000).record_count == 6
    second = member(mq, group, topic)
    until(lambda: any(row.state == "paused" for row in mq.groups.assignments(group)))
    assert first.lag() == {(topic, 0): 0, (topic, 1): 0}
    assert first.position(topic, 1) == 3
    settle(first, second, on=lambda: list_partitions(second) == [1])
    assert answers == [{(topic, 0): 3, (topic, 1): 3}]
    assert second.position(topic, 1) == 3
    second.close()
    first.close()


def test_listener_may_wait_for_a_commit_of_another_thread(mq: Connection) -> None:
    class Waits(RebalanceListener):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            thread = threading.Thread(target=lambda: answers.append(consumer.commit(batch)), daemon=True)
            thread.start()
            thread.join(10)

    answers: list[Any] = []
    topic, group = new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 2})
    consumer = member(mq, group, topic, listener=Waits())
    batch = consumer.poll(timeout_ms=5_000)
    consumer.close()
    assert answers == [{(topic, 0): 2}]


@pytest.mark.parametrize("options", [{"assign": ["t"]}, {"topics": ["t"], "protocol": "cooperative"}], ids=str)
def test_messages_of_an_interrupted_poll_are_read_again(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    def interrupt(self: Any) -> bool:
        raise KeyboardInterrupt

    topic, group = new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 3})
    reads = {word: [topic] if isinstance(topics, list) else topics for word, topics in options.items()}
    with mq.consumer(group, **reads, auto_offset_reset="earliest") as consumer:
        until(lambda: consumer.poll(1).record_count == 1)
        with monkeypatch.context() as patched:
            patched.setattr(ConsumerBatch, "__bool__", interrupt)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll()
        assert consumer.commit() == {(topic, 0): 1}
        assert texts(consumer.poll(timeout_ms=5_000)) == ["0.1", "0.2"]


def test_join_with_another_protocol_or_a_missing_topic_is_refused(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    with pytest.raises(errors.UnknownTopicOrPartition):
        member(mq, group, "nowhere")
    with pytest.raises(errors.InvalidRequest):
        mq.consumer(group, topics=[topic], protocol="chaotic")
    with pytest.raises(errors.InvalidRequest):
        mq.consumer(group, assign=[(topic, 0)], protocol="cooperative")
    with member(mq, group, topic, assignor="range"), pytest.raises(errors.InconsistentGroupProtocol, match="range"):
        member(mq, group, topic, assignor="sticky")


@pytest.mark.parametrize("protocol", extended_but(["cooperative"], ["cooperative", "classic", "queue"]))
def test_empty_poll_names_a_topic_that_is_deleted(mq: Connection, protocol: str) -> None:
    topic, group = new_topic(mq), new_group(mq, protocol)
    with mq.consumer(group, topics=[topic], protocol=protocol) as consumer:
        until(lambda: list_partitions(consumer) or consumer.poll(timeout_ms=50))
        mq.topics.delete(topic)
        until(lambda: not consumer.poll(timeout_ms=50) and not list_partitions(consumer))
        (reason,) = consumer.poll(timeout_ms=50).waits_for
        assert re.fullmatch(
            f"Topic {topic}, to which the consumer subscribes, does not exist. The topic was deleted at"
            rf" [0-9-]+T[0-9:]+Z by [^ ]+-{os.getpid()}-[0-9a-f]+\.",
            reason,
        )
        (stall,) = mq.groups.stalls(group)
        assert (stall.kind, stall.topic, stall.member_id) == ("missing topic", topic, consumer.member_id)
        assert stall.found.endswith(reason.partition(". ")[2])
        assert stall.commands == [["topics", "create", topic]]
        mq.topics.create(topic)
        until(lambda: not consumer.poll(timeout_ms=50).waits_for and list_partitions(consumer))
        assert mq.groups.stalls(group) == []


def test_errors_of_a_deleted_topic_say_when_and_by_whom(mq: Connection) -> None:
    topic, deleted = (
        new_topic(mq),
        rf"does not exist.*was deleted at [0-9-]+T[0-9:]+Z by [^ ]+-{os.getpid()}-[0-9a-f]+\.",
    )
    add(mq, topic, {0: 2})
    with mq.consumer(new_name("g"), assign=[topic]) as consumer, mq.consumer(new_name("q"), topics=[topic]) as queue:
        batch, messages = consumer.poll(timeout_ms=30_000), queue.poll(timeout_ms=30_000)
        mq.topics.delete(topic)
        with pytest.raises(errors.UnknownTopicId, match=deleted.removeprefix("does not exist.*")):
            consumer.commit(batch)

        def acknowledge() -> None:
            queue.ack(messages)
            queue.flush()

        with pytest.raises(errors.FencedMemberEpoch, match=deleted):
            acknowledge()
        for call in (
            lambda: mq.topics.alter(topic, partitions=2),
            lambda: mq.topics.delete(topic),
            lambda: consumer.poll(timeout_ms=20),
            lambda: mq.fetch(topic),
            lambda: mq.topics.describe(topic),
            lambda: mq.consumer(new_name("g"), topics=[topic]),
        ):
            with pytest.raises(errors.UnknownTopicOrPartition, match=deleted):
                call()
        with pytest.raises(
            errors.UnknownTopicOrPartition, match=deleted.replace("does not exist", "No topic has this name")
        ):
            add(mq, topic, {0: 1})
