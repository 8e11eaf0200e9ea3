"""Members of a queue that are killed and stopped. No message is lost, and no message that is done comes again."""

from collections import Counter
from typing import Any

import pytest
from faults.checks import check_all
from faults.processes import TOPIC, MemberNotes, Processes, Publishing, terminate, until

import lakemq

GROUP = "q"


def check_queue(members: MemberNotes, acknowledged: list[Any], interrupted: set[str]) -> None:
    """Check that each message came once with each delivery count, in order the first time, and never after it was done.

    interrupted: members that were killed or stopped. They may have done work without a note.
    """
    rows = check_all(members.family.path, TOPIC, acknowledged)
    stored = {(r["partition"], r["offset"]) for r in rows.to_pylist()}
    done_counts = members.count("done")
    assert all(count == 1 for count in done_counts.values())
    missing = stored - done_counts.keys()
    assert missing <= {(p, offset) for name in interrupted for p, offset, *_ in members.read("given", name)}
    assert len(missing) <= 7 * len(interrupted)  # a batch
    deliveries = Counter(
        (p, offset, count) for name in members.names for p, offset, _, count in members.read("given", name)
    )
    assert all(times == 1 for times in deliveries.values())
    for name in members.names:
        first = [(p, offset) for p, offset, _, count in members.read("given", name) if count == 1]
        for partition in (0, 1):
            offsets = [offset for p, offset in first if p == partition]
            assert offsets == sorted(offsets)


def test_messages_of_killed_queue_member_go_to_another(family: Processes) -> None:
    """The sequencer is killed, too."""
    first = family.serve()
    members = MemberNotes(family, "one", "two")
    with lakemq.connect(family.path) as mq:
        mq.groups.create(GROUP, {"rebalance.delay.ms": 500, "max.handoff.ms": 1_000})
    first_member, second_member = (family.consume(name, GROUP, role="drain") for name in members.names)
    with Publishing(family.path, "p", family.config) as publishing:
        until(lambda: bool(members.read("done", "one") and members.read("done", "two")), "work by both")
        first.kill()
        serving = family.serve()
        publishing.wait_for(10)
        since = len(members.read("given", "two"))
        first_member.kill()
        until(lambda: members.partitions("given", "two", since) == {0, 1}, "the other's partition")
        publishing.wait_for(5)
    with lakemq.connect(family.path) as mq:
        until(lambda: mq.groups.describe(GROUP).lag == 0, "work on the rest")
    terminate(second_member)
    terminate(serving)
    check_queue(members, publishing.acknowledged, interrupted={"one"})


@pytest.mark.extended
def test_rejected_message_becomes_one_dead_letter_although_sequencers_are_killed(family: Processes) -> None:
    """The sequencer is killed time and again: while it looks for the messages, and when it has decided."""
    count = 60
    serving = family.serve()
    with lakemq.connect(family.path) as mq:
        with mq.producer() as producer:
            for n in range(count):
                producer.send(TOPIC, str(n))
        with mq.consumer(GROUP, topics=[TOPIC], auto_offset_reset="earliest") as member:
            rejected = 0
            while rejected < count:
                batch = list(member.poll(max_records=7, timeout_ms=1_000))
                member.reject(batch, error="bad")
                member.flush()
                rejected += len(batch)
                if rejected % 3 == 0:
                    serving.kill()
                    serving = family.serve()
        dead = f"{TOPIC}.dlq"
        until(lambda: mq.groups.describe(GROUP).lag == 0, "dead letters")
        assert Counter(message.value for message in mq.fetch(dead)) == {str(n).encode(): 1 for n in range(count)}
        for part in ("source_offset % 2 = 0", "source_offset % 2 = 1"):
            redriven = mq.dead_letters.redrive(dead, part)
            serving.kill()
            serving = family.serve()
            assert redriven.messages > 0
        until(lambda: len(list(mq.fetch(TOPIC))) == 2 * count, "all back")
        assert Counter(message.value for message in mq.fetch(TOPIC)) == {str(n).encode(): 2 for n in range(count)}
        assert not mq.dead_letters.counts()
    terminate(serving)
