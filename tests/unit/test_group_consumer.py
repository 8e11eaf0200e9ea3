"""Consumers that are members of a cooperative group: what each has, what it reads, and what its commits are worth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from unit.consuming import Told, add, owned, texts
from unit.served import committed, new_name, new_topic, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.batch import ConsumerBatch
from lakemq.engine.client.consume.group_consumer import GroupConsumer
from lakemq.engine.client.consume.listener import RebalanceListener
from lakemq.engine.client.consume.membership import Membership
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit
from lakemq.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalState,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidRequest,
    InvalidSessionTimeout,
    NoOffsetForPartition,
    StorageError,
    TransactionAbortable,
    UnknownMemberId,
    UnknownTopicOrPartition,
)

pytestmark = pytest.mark.slow


def member(
    mq: Connection, group: str, topic: str, protocol: str | None = "cooperative", **options: Any
) -> GroupConsumer:
    options = {"auto_offset_reset": "earliest", **options}
    consumer = mq.consumer(group, topics=[topic], protocol=protocol, **options)
    assert isinstance(consumer, GroupConsumer)
    return consumer


def settle(*consumers: GroupConsumer, on: Callable[[], bool]) -> None:
    """Poll all of them until it is so; what they read is not looked at."""

    def poll() -> bool:
        for consumer in consumers:
            consumer.poll(max_records=1)
        return on()

    until(poll)


def shared(mq: Connection, partitions: int, **options: Any) -> tuple[str, str, GroupConsumer, GroupConsumer]:
    """A topic, a group, and two members that share it evenly."""
    topic, group = new_topic(mq, partitions), new_name("g")
    first, second = member(mq, group, topic, **options), member(mq, group, topic, **options)
    settle(first, second, on=lambda: len(owned(first)) == len(owned(second)) == partitions // 2)
    return topic, group, first, second


# -- reading ------------------------------------------------------------------------------------------------


def test_a_member_alone_reads_all_and_commits(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 2, 1: 1})
    with member(mq, group, topic) as one:
        batch = one.poll(timeout_ms=5_000)
        assert texts(batch) == ["0.0", "0.1", "1.0"]
        assert one.commit(batch) == {(topic, 0): 2, (topic, 1): 1}
        assert {place: told.offset for place, told in one.committed().items()} == {(topic, 0): 2, (topic, 1): 1}
        assert one.lag() == {(topic, 0): 0, (topic, 1): 0}
    assert committed(mq, group, topic) == 2


def test_two_members_share_the_partitions_and_none_reads_what_the_other_does(mq: Connection) -> None:
    topic, _, first, second = shared(mq, 4)
    add(mq, topic, dict.fromkeys(range(4), 3))
    read = texts(first.poll(timeout_ms=5_000)) + texts(second.poll(timeout_ms=5_000))
    assert sorted(read) == sorted(f"{p}.{i}" for p in range(4) for i in range(3))
    first.close()
    second.close()


def test_a_poll_without_partitions_brings_nothing_and_waits_its_time(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    first = member(mq, group, topic)
    settle(first, on=lambda: owned(first) == [0])
    standby = member(mq, group, topic)
    batch = standby.poll(timeout_ms=50)
    assert not batch
    assert batch.to_arrow().num_rows == 0
    with pytest.raises(IllegalState, match="no partitions"):
        batch.to_spark()
    first.close()
    settle(standby, on=lambda: owned(standby) == [0])
    standby.close()


def test_the_latest_is_where_the_log_ended_when_the_member_joined(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 2}, "old ")
    one = mq.consumer(group, topics=[topic], protocol="cooperative", auto_offset_reset="latest")
    add(mq, topic, {0: 1}, "new ")
    assert texts(one.poll(timeout_ms=5_000)) == ["new 0.0"]
    one.close()


def test_without_an_offset_and_without_a_reset_a_poll_says_so(mq: Connection) -> None:
    topic = new_topic(mq, 1)
    one = member(mq, new_name("g"), topic, auto_offset_reset="none")
    with pytest.raises(NoOffsetForPartition):
        until(lambda: bool(one.poll()))
    one.close()


def test_a_partition_that_is_halted_brings_nothing_until_it_goes_on(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    with member(mq, new_name("g"), topic) as one:
        settle(one, on=lambda: len(owned(one)) == 2)
        one.pause([(topic, 0)])
        add(mq, topic, {0: 1, 1: 1})
        assert texts(one.poll(timeout_ms=5_000)) == ["1.0"]
        one.resume([(topic, 0)])
        assert texts(one.poll(timeout_ms=5_000)) == ["0.0"]
        with pytest.raises(IllegalState, match="not assigned"):
            one.pause([(topic, 2)])


def test_partitions_that_come_later_are_read_from_their_start(mq: Connection) -> None:
    topic = new_topic(mq, 1)
    with mq.consumer(new_name("g"), topics=[topic], protocol="cooperative") as one:
        settle(one, on=lambda: owned(one) == [0])
        mq.topics.alter(topic, partitions=2)
        add(mq, topic, {1: 2})
        assert texts(one.poll(timeout_ms=5_000)) == ["1.0", "1.1"]


def test_what_was_deleted_below_a_start_is_passed_over_and_nothing_else(mq: Connection) -> None:
    """Whatever the member says that has the partition now: where the group begins was said by its first one."""
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 5, 1: 5})
    one = member(mq, group, topic)
    settle(one, on=lambda: len(owned(one)) == 2)
    two = mq.consumer(group, topics=[topic], protocol="cooperative")
    assert isinstance(two, GroupConsumer)
    mq.topics.delete_records(topic, {0: 2, 1: 2})
    settle(one, on=lambda: owned(one) == [0])
    assert texts(two.poll(timeout_ms=5_000)) == ["1.2", "1.3", "1.4"]
    two.close()
    one.close()


# -- changing hands -----------------------------------------------------------------------------------------


def test_what_moves_is_told_and_only_that(mq: Connection) -> None:
    topic, group = new_topic(mq, 4), new_name("g")
    first, second = Told(), Told()
    one = member(mq, group, topic, listener=first)
    settle(one, on=lambda: len(owned(one)) == 4)
    two = member(mq, group, topic, listener=second)
    settle(one, two, on=lambda: len(owned(two)) == 2)
    two.close()
    settle(one, on=lambda: len(owned(one)) == 4)
    one.close()
    assert first.words == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [2, 3]),
        ("assigned", [2, 3]),
        ("revoked", [0, 1, 2, 3]),
    ]
    assert second.words == [("assigned", [2, 3]), ("revoked", [2, 3])]


def test_the_next_owner_goes_on_where_the_last_one_committed_as_it_gave_up(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 3})
    batches: list[Any] = []

    class Commits(RebalanceListener):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            one.commit({place: batches[-1].offsets[place] for place in partitions})

    one = member(mq, group, topic, listener=Commits())
    batches.append(one.poll(timeout_ms=5_000))
    assert batches[0].record_count == 6
    two = member(mq, group, topic)
    settle(one, two, on=lambda: owned(two) == [1])
    add(mq, topic, {1: 1}, "later ")
    assert texts(two.poll(timeout_ms=5_000)) == ["later 1.0"]
    two.close()
    one.close()


def test_a_commit_of_what_is_another_ones_is_refused_and_the_rest_of_it_counts(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 3})
    one = member(mq, group, topic)
    batch = one.poll(timeout_ms=5_000)
    two = member(mq, group, topic)
    settle(one, two, on=lambda: owned(two) == [1])
    with pytest.raises(FencedMemberEpoch, match=f"{topic}-1"):
        one.commit(batch)
    assert {place: told.offset for place, told in one.committed().items()} == {(topic, 0): 3}
    assert two.committed() == {}
    two.close()
    one.close()


def test_a_listener_that_raises_keeps_nobody_from_getting_the_partition(mq: Connection) -> None:
    class Raises(RebalanceListener):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            raise ValueError("mine")

    topic, group = new_topic(mq, 2), new_name("g")
    one = member(mq, group, topic, listener=Raises())
    settle(one, on=lambda: len(owned(one)) == 2)
    two = member(mq, group, topic)
    with pytest.raises(ValueError, match="mine"):
        until(lambda: one.poll() is None)
    settle(two, on=lambda: owned(two) == [1])
    assert owned(one) == [0]
    two.close()
    with pytest.raises(ValueError, match="mine"):
        one.close()


def test_a_static_member_comes_back_to_what_it_had(mq: Connection) -> None:
    topic, group = new_topic(mq, 4), new_name("g")
    a, b = member(mq, group, topic, instance_id="a"), member(mq, group, topic, instance_id="b")
    settle(a, b, on=lambda: len(owned(a)) == len(owned(b)) == 2)
    had = owned(a)
    a.close()
    told = Told()
    again = member(mq, group, topic, instance_id="a", listener=told)
    settle(again, b, on=lambda: bool(owned(again)))
    assert told.words == [("assigned", had)]
    again.close(leave=True)
    settle(b, on=lambda: len(owned(b)) == 4)
    b.close()


def test_a_second_process_with_an_instance_id_fences_the_first(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    told = Told()
    first = member(mq, group, topic, instance_id="i", listener=told)
    settle(first, on=lambda: owned(first) == [0])
    second = member(mq, group, topic, instance_id="i")
    with pytest.raises(FencedInstanceId):
        first.poll()
    assert told.words == [("assigned", [0]), ("lost", [0])]
    with pytest.raises(IllegalState, match="closed"):
        first.poll()
    settle(second, on=lambda: owned(second) == [0])
    second.close()


def test_a_member_that_was_removed_joins_anew_with_its_next_poll(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    told = Told()
    one = member(mq, group, topic, listener=told)
    settle(one, on=lambda: owned(one) == [0])
    before = one.member_id
    mq.groups.remove_members(group, members=[before])
    with pytest.raises(UnknownMemberId):
        one.commit({(topic, 0): 0})
    settle(one, on=lambda: owned(one) == [0])
    assert one.member_id != before
    assert told.words == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]
    one.close()


def test_a_deleted_topic_is_lost_and_its_successor_is_read_from_the_start(mq: Connection) -> None:
    topic, told = new_topic(mq, 1), Told()
    with member(mq, new_name("g"), topic, listener=told) as one:
        settle(one, on=lambda: owned(one) == [0])
        mq.topics.delete(topic)
        settle(one, on=lambda: owned(one) == [])
        mq.topics.create(topic, 1)
        add(mq, topic, {0: 1})
        assert texts(one.poll(timeout_ms=5_000)) == ["0.0"]
    assert told.words[:3] == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]


def test_who_closes_the_connection_leaves_its_groups(mq: Connection) -> None:
    topic, group, told = new_topic(mq, 2), new_name("g"), Told()
    with lakemq.connect(mq.namespace.path) as other:
        one = member(other, group, topic, listener=told)
        settle(one, on=lambda: owned(one) == [0, 1])
    assert told.words == [("assigned", [0, 1]), ("revoked", [0, 1])]
    until(lambda: mq.groups.describe(group).members == 0)
    one.close()


def test_what_was_read_can_be_committed_as_it_is_given_up_whatever_was_asked_meanwhile(mq: Connection) -> None:
    class Commits(RebalanceListener):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            noted.append(one.commit())

    noted: list[Any] = []
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 3})
    one = member(mq, group, topic, listener=Commits())
    assert one.poll(timeout_ms=5_000).record_count == 6
    two = member(mq, group, topic)
    until(lambda: any(row.state == "paused" for row in mq.groups.assignments(group)))
    assert one.lag() == {(topic, 0): 0, (topic, 1): 0}
    assert one.position(topic, 1) == 3
    settle(one, two, on=lambda: owned(two) == [1])
    assert noted == [{(topic, 0): 3, (topic, 1): 3}]
    assert two.position(topic, 1) == 3
    two.close()
    one.close()


def test_what_is_to_be_given_up_is_read_no_further(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    one = member(mq, group, topic)
    settle(one, on=lambda: len(owned(one)) == 2)
    two = member(mq, group, topic)
    until(lambda: any(row.state == "paused" for row in mq.groups.assignments(group)))
    one.lag()
    add(mq, topic, {1: 1})
    settle(two, on=lambda: owned(two) == [] or not one.poll())
    assert one.poll(timeout_ms=20).record_count == 0
    assert texts(two.poll(timeout_ms=5_000)) == ["1.0"]
    two.close()
    one.close()


def test_a_lost_member_is_told_so_when_it_commits(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as one:
        assert one.poll(timeout_ms=5_000)
        mq.groups.remove_members(group, members=[one.member_id])
        assert one.lag() == {}
        with pytest.raises(IllegalState, match="not assigned"):
            one.seek(topic, 0, 0)
        with pytest.raises(UnknownMemberId):
            one.commit()


def test_a_listener_may_wait_for_another_thread_that_commits(mq: Connection) -> None:
    class Waits(RebalanceListener):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            thread = threading.Thread(target=lambda: noted.append(one.commit(batch)), daemon=True)
            thread.start()
            thread.join(10)

    noted: list[Any] = []
    topic, group = new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 2})
    one = member(mq, group, topic, listener=Waits())
    batch = one.poll(timeout_ms=5_000)
    one.close()
    assert noted == [{(topic, 0): 2}]


@pytest.mark.parametrize("how", [{"assign": ["t"]}, {"topics": ["t"], "protocol": "cooperative"}], ids=str)
def test_what_an_interrupted_poll_has_passed_is_read_again(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    def interrupted(self: Any) -> bool:
        raise KeyboardInterrupt

    topic, group = new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 3})
    reads = {word: [topic] if isinstance(of, list) else of for word, of in how.items()}
    with mq.consumer(group, **reads, auto_offset_reset="earliest") as one:
        until(lambda: one.poll(1).record_count == 1)
        with monkeypatch.context() as patched:
            patched.setattr(ConsumerBatch, "__bool__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.poll()
        assert one.commit() == {(topic, 0): 1}
        assert texts(one.poll(timeout_ms=5_000)) == ["0.1", "0.2"]


# -- transactions -------------------------------------------------------------------------------------------


def test_offsets_of_a_member_count_with_the_transaction(mq: Connection) -> None:
    topic, out, group = new_topic(mq, 1), new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as one:
        batch = one.poll(timeout_ms=5_000)
        with mq.transaction(new_name("tx")) as txn:
            txn.publish(out, batch.to_arrow().select(["value"]))
            txn.send_offsets(batch)
        assert committed(mq, group, topic) == 2


def test_a_transaction_with_offsets_of_a_partition_that_has_gone_to_another_is_aborted(mq: Connection) -> None:
    topic, out, group = new_topic(mq, 2), new_topic(mq, 1), new_name("g")
    add(mq, topic, {0: 2, 1: 2})
    one = member(mq, group, topic)
    batch = one.poll(timeout_ms=5_000)
    two = member(mq, group, topic)
    settle(one, two, on=lambda: owned(two) == [1])
    with pytest.raises((TransactionAbortable, FencedMemberEpoch)), mq.transaction(new_name("tx")) as txn:  # noqa: PT012
        txn.publish(out, batch.to_arrow().select(["value"]))
        txn.send_offsets(batch)
    assert mq.fetch(out).to_arrow().num_rows == 0
    assert one.committed() == two.committed() == {}
    two.close()
    one.close()


# -- listeners that call back, and calls that fail half way ------------------------------------------------


def test_a_consumer_that_is_closed_by_its_listener_leaves_nobody_behind(mq: Connection) -> None:
    class Closes(RebalanceListener):
        def on_lost(self, partitions: list[tuple[str, int]]) -> None:
            one.close()

        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            one.close()

    topic, group = new_topic(mq, 2), new_name("g")
    one = member(mq, group, topic, listener=Closes())
    settle(one, on=lambda: len(owned(one)) == 2)
    mq.groups.remove_members(group, members=[one.member_id])
    with pytest.raises(IllegalState, match="closed"):
        one.poll()
    assert mq.groups.describe(group).members == 0
    one = member(mq, group, topic, listener=Closes())
    settle(one, on=lambda: len(owned(one)) == 2)
    two = member(mq, group, topic)
    with pytest.raises(IllegalState, match="closed"):
        until(lambda: one.poll() is None)
    settle(two, on=lambda: owned(two) == [0, 1])
    two.close()


def test_a_consumer_that_cannot_be_made_leaves_nobody_behind(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any) -> Any:
        raise StorageError("The store cannot be read.")

    topic, group = new_topic(mq, 2), new_name("g")
    with monkeypatch.context() as patched:
        patched.setattr(Membership, "read_view", fails)
        with pytest.raises(StorageError):
            member(mq, group, topic)
    assert mq.groups.describe(group).members == 0


def test_a_member_that_has_a_great_many_offsets_stops_nobody(mq: Connection) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    with member(mq, group, topic) as one:
        known = mq.state().topic(topic).topic_id
        offset = OffsetCommit(topic, 0, 0, None, known, 10**9)
        begun_s = time.process_time()
        judged = mq.requester.ask(CommitOffsets(group, [offset] * 100_000, None, one.member_id))
        assert len(judged.fenced) == 100_000  # type: ignore[union-attr]
        assert time.process_time() - begun_s < 10
        with pytest.raises(InvalidRequest, match="Too many offsets"):
            mq.requester.ask(CommitOffsets(group, [offset] * 100_001, None, one.member_id))


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"session_timeout_ms": 5_999}, InvalidSessionTimeout),
        ({"session_timeout_ms": 6_000, "heartbeat_interval_ms": 6_000}, InvalidRequest),
        ({"max_poll_interval_ms": 0}, InvalidRequest),
        ({"max_poll_interval_ms": 999, "heartbeat_interval_ms": 1_000}, InvalidRequest),
        ({"auto_offset_reset": "sometime"}, InvalidRequest),
        ({"instance_id": ""}, InvalidRequest),
        ({"assignor": 3}, InvalidRequest),
        ({"isolation": "none"}, InvalidRequest),
        ({"listener": 3}, InvalidRequest),
        ({"no_such": 3}, InvalidConfig),
    ],
    ids=str,
)
def test_a_member_that_cannot_be_is_refused(mq: Connection, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        member(mq, new_name("g"), new_topic(mq), **options)


def test_a_group_of_another_kind_or_a_topic_that_is_not_there_is_refused(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    with pytest.raises(UnknownTopicOrPartition):
        member(mq, group, "nowhere")
    with pytest.raises(InvalidRequest):
        mq.consumer(group, topics=[topic], protocol="chaotic")
    with pytest.raises(InvalidRequest):
        mq.consumer(group, assign=[(topic, 0)], protocol="cooperative")
    with member(mq, group, topic, assignor="range"), pytest.raises(InconsistentGroupProtocol, match="range"):
        member(mq, group, topic, assignor="sticky")


def test_members_with_lists_of_assignors_agree_on_one_that_all_support(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    with member(mq, group, topic, assignor=["cooperative-sticky", "range"]) as first:
        settle(first, on=lambda: mq.groups.describe(group).assignor == "cooperative-sticky")
        with member(mq, group, topic, assignor=["range", "sticky"]) as second:
            settle(first, second, on=lambda: len(owned(first)) == len(owned(second)) == 1)
            assert mq.groups.describe(group).assignor == "range"
            supported = [one.assignors for one in mq.groups.members(group)]
            assert supported == [["cooperative-sticky", "range"], ["range", "sticky"]]


def test_who_is_no_member_commits_nothing_while_there_are_members(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    outside = mq.consumer(group, assign=[topic])
    batch = outside.poll(timeout_ms=5_000)
    with member(mq, group, topic), pytest.raises(UnknownMemberId):
        outside.commit(batch)
    assert outside.commit(batch) == {(topic, 0): 2}


# -- one group, many threads and processes ------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("protocol", ["cooperative", "classic"])
def test_members_in_threads_read_everything_once_while_they_come_and_go(mq: Connection, protocol: str) -> None:
    """Who commits what it has read before it gives up, or closes, hands over without a doubt."""
    topic, group, total = new_topic(mq, 6), new_name("g"), 600
    mq.groups.create(group, {"group.protocol": protocol, "group.initial.rebalance.delay.ms": 0})
    read: list[str] = []
    lock, stop = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def work(rounds: int) -> None:
        try:
            for _ in range(rounds):
                with member(mq, group, topic, None) as one:
                    until_s = time.monotonic() + 0.4
                    while time.monotonic() < until_s and not stop.is_set():
                        batch = one.poll(max_records=20, timeout_ms=5)
                        if batch:
                            one.commit(batch)
                            with lock:
                                read.extend(texts(batch))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rounds,)) for rounds in (3, 4, 30)]
    for thread in threads:
        thread.start()
    for i in range(total // 60):
        add(mq, topic, dict.fromkeys(range(6), 10), f"{i} ")
    deadline_s = time.monotonic() + 20
    while len(read) < total and time.monotonic() < deadline_s and threads[2].is_alive():
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not errors
    # committed before anybody else could have it: nothing is read twice
    assert sorted(read) == sorted({f"{i} {p}.{n}" for i in range(total // 60) for p in range(6) for n in range(10)})


def test_an_own_connection_sees_the_group_as_it_is(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    with lakemq.connect(mq.namespace.path) as other, member(mq, group, topic) as one:
        two = member(other, group, topic)
        settle(one, two, on=lambda: sorted(owned(one) + owned(two)) == [0, 1] and len(owned(one)) == 1)
        two.close()
        settle(one, on=lambda: owned(one) == [0, 1])
