"""Reading until the end: the loop ends when the group has read everything, and earlier only with an error."""

import threading
from typing import Any

import pytest
from targets import extended_but
from unit.consuming import add, texts
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.batch import PollOutcome
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.errors import EndNotReached, IllegalState

pytestmark = pytest.mark.slow

PROTOCOLS = extended_but(["queue"], ["cooperative", "classic", "queue"])


def create_group(mq: Connection, protocol: str) -> str:
    """Create a group without delays, and return its name."""
    name = new_name("g")
    delays = {"classic": "group.initial.rebalance.delay.ms", "queue": "rebalance.delay.ms"}
    config: dict[str, Any] = {"group.protocol": protocol}
    mq.groups.create(name, config | ({delays[protocol]: 0} if protocol in delays else {}))
    return name


def join(mq: Connection, group: str, topic: str) -> MemberConsumer:
    member = mq.consumer(group, topics=[topic], auto_offset_reset="earliest")
    assert isinstance(member, MemberConsumer)
    return member


def wait_until_shared(*members: MemberConsumer) -> None:
    """Poll until each member owns a partition."""

    def all_have() -> bool:
        for member in members:
            member.poll(1)
            member.go_back(member.poll(1))
        return all(member.assignment() for member in members)

    until(all_have)


def read_all(member: MemberConsumer, **options: Any) -> list[str]:
    read_texts = []
    for batch in member.until_end(**options):
        read_texts += texts(batch)
        member.commit(batch)
    return read_texts


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_until_end_reads_all_messages_of_its_call_and_ends(mq: Connection, protocol: str) -> None:
    topic, group = new_topic(mq, 3), create_group(mq, protocol)
    add(mq, topic, {0: 5, 1: 5})
    with join(mq, group, topic) as member:
        assert sorted(read_all(member, max_records=2)) == [f"{p}.{i}" for p in range(2) for i in range(5)]
        assert read_all(member) == []
        assert set(member.group_lag().values()) == {0}
    with join(mq, group, topic) as member:
        assert read_all(member) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_later_messages_do_not_prolong_until_end(mq: Connection, protocol: str) -> None:
    topic, group = new_topic(mq), create_group(mq, protocol)
    add(mq, topic, {0: 3})
    with join(mq, group, topic) as member:
        for batch in member.until_end(max_records=1):
            add(mq, topic, {0: 1}, "later ")
            member.commit(batch)
        assert 1 <= sum(member.group_lag().values()) <= 3


@pytest.mark.parametrize("protocol", extended_but(["cooperative"], ["cooperative", "queue"]))
def test_until_end_waits_for_messages_of_another_member(mq: Connection, protocol: str) -> None:
    topic, group, read_texts = new_topic(mq, 2), create_group(mq, protocol), list[str]()
    with join(mq, group, topic) as consumer, join(mq, group, topic) as other:
        wait_until_shared(consumer, other)
        add(mq, topic, {0: 3, 1: 3})
        reading = threading.Thread(target=lambda: read_texts.extend(read_all(consumer)))
        reading.start()
        until(lambda: len(read_texts) == 0 and sum(consumer.group_lag().values()) == 3)
        assert reading.is_alive()
        found_by_other = read_all(other)
        reading.join(30)
        assert not reading.is_alive()
        assert sorted(read_texts + found_by_other) == [f"{p}.{i}" for p in range(2) for i in range(3)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_error_at_the_timeout_names_the_member_that_holds_messages(mq: Connection, protocol: str) -> None:
    topic, group = new_topic(mq, 2), create_group(mq, protocol)
    with join(mq, group, topic) as consumer, join(mq, group, topic) as other:
        wait_until_shared(consumer, other)
        ((_, other_partition),) = other.assignment()
        add(mq, topic, {0: 3, 1: 3})
        with pytest.raises(EndNotReached, match=f"{topic}-{other_partition} lacks 3, held by member {other.member_id}"):
            read_all(consumer, timeout_ms=300)


def test_until_end_waits_for_acknowledgements_and_its_error_names_what_holds_up_the_queue(mq: Connection) -> None:
    topic, group = new_topic(mq), create_group(mq, "queue")
    add(mq, topic, {0: 3})
    with join(mq, group, topic) as member, pytest.raises(EndNotReached, match="lacks 3, held by this consumer"):
        list(member.until_end(timeout_ms=300))
    with join(mq, group, topic) as member:
        assert isinstance(member, QueueConsumer)
        batches = member.until_end(timeout_ms=500)
        member.nack(next(batches), delay_ms=600_000)
        member.flush()
        with pytest.raises(EndNotReached) as raised:
            next(batches)
    assert f"{topic}-0" in raised.value.detail.partition(". ")[2], raised.value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_until_end_does_not_wait_for_markers_and_aborted_messages(mq: Connection, protocol: str) -> None:
    """A commit stands after the last message, and markers follow it. No commit passes them."""
    topic, group = new_topic(mq, 2), create_group(mq, protocol)

    def write(commits: bool) -> None:
        with mq.producer(new_name("tx")) as producer:
            producer.begin_transaction()
            for partition in range(2):
                producer.send(topic, "v", partition=partition)
            producer.commit_transaction() if commits else producer.abort_transaction()

    write(commits=True)
    write(commits=False)
    with join(mq, group, topic) as consumer:
        assert read_all(consumer, timeout_ms=20_000) == ["v", "v"]
        with join(mq, group, topic) as other:
            wait_until_shared(consumer, other)
            assert read_all(consumer, timeout_ms=20_000) == []


def test_reader_of_assigned_partitions_reads_them_to_the_end_and_says_why_a_batch_is_empty(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    add(mq, topic, {0: 3, 1: 3})
    reader = mq.consumer(new_name("g"), assign=[(topic, 1)])
    assert [text for batch in reader.until_end(max_records=1) for text in texts(batch)] == ["1.0", "1.1", "1.2"]
    assert reader.poll().outcome is PollOutcome.AT_END
    reader.seek(topic, 1, 0)
    assert reader.poll(max_records=1).outcome is PollOutcome.MESSAGES
    reader.seek(topic, 1, 0)
    reader.pause([(topic, 1)])
    assert reader.poll().outcome is PollOutcome.NOT_YET
    with pytest.raises(EndNotReached, match=f"{topic}-1 lacks 3, held by this consumer"):
        list(reader.until_end(timeout_ms=50))
    mq.topics.delete(topic)
    reader.close()
    with pytest.raises(IllegalState):
        reader.until_end()


def test_until_end_does_not_wait_for_a_deleted_topic(mq: Connection) -> None:
    topic, group = new_topic(mq), create_group(mq, "cooperative")
    add(mq, topic, {0: 3})
    with join(mq, group, topic) as member:
        for _ in member.until_end(max_records=1):
            mq.topics.delete(topic)


@pytest.mark.parametrize("protocol", [*PROTOCOLS, pytest.param(None, marks=pytest.mark.extended)])
def test_messages_behind_an_open_transaction_are_not_yet_read(mq: Connection, protocol: str | None) -> None:
    """protocol: of the group; None: a consumer of assigned partitions."""
    topic, name = new_topic(mq), new_name("tx")
    add(mq, topic, {0: 1})
    producer = mq.producer(name)
    producer.begin_transaction()
    producer.send(topic, "open")
    producer.flush()
    add(mq, topic, {0: 1}, "behind ")
    with (
        mq.consumer(new_name("g"), assign=[topic]) if protocol is None else join(mq, create_group(mq, protocol), topic)
    ) as consumer:
        loop = consumer.until_end(timeout_ms=1_000)
        first = next(loop)
        assert texts(first) == ["0.0"]
        consumer.commit(first)
        empty = consumer.poll()
        assert (empty.outcome, consumer.lag()) == (PollOutcome.NOT_YET, {(topic, 0): 2})
        (reason,) = empty.waits_for
        assert f"have read {topic}-0 up to transaction {name}, which is open for" in reason
        with pytest.raises(EndNotReached, match=f"{topic}-0 lacks 2, held by this consumer.*up to transaction {name}"):
            next(loop)
        assert [row.lag for row in mq.groups.lag(consumer.group)] == [2]
        loop = consumer.until_end()
        producer.commit_transaction()
        read_texts = []
        for batch in loop:
            read_texts += texts(batch)
            consumer.commit(batch)
        assert read_texts == ["open", "behind 0.0"]
        assert consumer.poll().waits_for == []


# -- why a batch is empty -----------------------------------------------------------------------------------


def poll_until_outcome(member: MemberConsumer, outcome: PollOutcome) -> PollOutcome:
    """Poll until this is the outcome. No message may come."""
    until(lambda: member.poll(timeout_ms=20).outcome is outcome)
    return outcome


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_empty_batch_says_why_it_is_empty(mq: Connection, protocol: str) -> None:
    topic, group = new_topic(mq, 2), create_group(mq, protocol)
    with join(mq, group, topic) as consumer:
        poll_until_outcome(consumer, PollOutcome.AT_END)
        add(mq, topic, {0: 1})
        until(lambda: bool(consumer.poll(timeout_ms=20)))
        if protocol == "queue":  # until the message is acknowledged
            assert consumer.poll().outcome is PollOutcome.NOT_YET
        consumer.commit()
        poll_until_outcome(consumer, PollOutcome.AT_END)
        consumer.pause(consumer.assignment())
        add(mq, topic, {0: 1})
        poll_until_outcome(consumer, PollOutcome.NOT_YET)
        consumer.resume(consumer.assignment())
        batch = consumer.poll(timeout_ms=5_000)
        assert batch.outcome == "messages"
        consumer.commit(batch)
        with join(mq, group, topic) as other:
            wait_until_shared(consumer, other)
            poll_until_outcome(consumer, PollOutcome.OTHERS_HOLD_THE_REST)
            assert consumer.lag().keys() < consumer.group_lag().keys()


def test_empty_batch_tells_a_member_without_partitions_whether_to_wait(mq: Connection) -> None:
    topic, group, classic = new_topic(mq), create_group(mq, "cooperative"), new_name("g")
    with join(mq, group, topic) as consumer:
        poll_until_outcome(consumer, PollOutcome.AT_END)  # of two that join at once, either may get the partition
        with join(mq, group, topic) as other:
            poll_until_outcome(other, PollOutcome.OTHERS_HOLD_THE_REST)
    mq.groups.create(classic, {"group.protocol": "classic", "group.initial.rebalance.delay.ms": 60_000})
    with join(mq, classic, topic) as first:
        assert first.poll(timeout_ms=20).outcome is PollOutcome.NOT_ASSIGNED
