"""Members of a queue that are killed and stopped: no message is lost, and none that is done with comes again."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest
from faults.checks import check_all
from faults.processes import TOPIC, Processes, Publishing, is_stopped, terminate, until

import lakemq

GROUP = "q"


class Members:
    """The notes of members."""

    def __init__(self, family: Processes, *names: str) -> None:
        self.family, self.names = family, names
        with lakemq.connect(family.path) as mq:
            mq.groups.create(GROUP, {"rebalance.delay.ms": 500, "max.handoff.ms": 1_000})

    def notes(self, word: str, name: str) -> list[Any]:
        return [tuple(place) for kind, listed in self.family.read_notes_of(name) if kind == word for place in listed]

    def done(self) -> Counter[tuple[int, int]]:
        return Counter(place for name in self.names for place in self.notes("done", name))

    def partitions(self, name: str, since: int) -> set[int]:
        """Return the partitions of the messages that a member got after the first `since`."""
        return {partition for partition, *_ in self.notes("given", name)[since:]}

    def lag(self) -> int:
        with lakemq.connect(self.family.path) as mq:
            return mq.groups.describe(GROUP).lag


def check_queue(members: Members, acknowledged: list[Any], interrupted: set[str]) -> None:
    """Each message was given under each of its counts once, in order the first time; what was done came no more.

    interrupted: members that were killed or stopped, who may have done what they did not note.
    """
    rows = check_all(members.family.path, TOPIC, acknowledged)
    there = {(r["partition"], r["offset"]) for r in rows.to_pylist()}
    done = members.done()
    assert all(count == 1 for count in done.values())
    missing = there - done.keys()
    assert missing <= {(p, at) for name in interrupted for p, at, *_ in members.notes("given", name)}
    assert len(missing) <= 7 * len(interrupted)  # a batch
    deliveries = Counter((p, at, count) for name in members.names for p, at, _, count in members.notes("given", name))
    assert all(times == 1 for times in deliveries.values())
    for name in members.names:
        first = [(p, at) for p, at, _, count in members.notes("given", name) if count == 1]
        for partition in (0, 1):
            offsets = [at for p, at in first if p == partition]
            assert offsets == sorted(offsets)


def test_a_killed_member_of_a_queue_loses_nothing_that_it_had(family: Processes) -> None:
    """The sequencer is killed, too."""
    first = family.serve()
    members = Members(family, "one", "two")
    one, two = (family.consume(name, GROUP, role="drain") for name in members.names)
    with Publishing(family.path, "p", family.config) as publishing:
        until(lambda: bool(members.notes("done", "one") and members.notes("done", "two")), 30, "work by both")
        first.kill()
        serving = family.serve()
        publishing.wait_for(10)
        since = len(members.notes("given", "two"))
        one.kill()
        until(lambda: members.partitions("two", since) == {0, 1}, 40, "the other's partition")
        publishing.wait_for(5)
    until(lambda: members.lag() == 0, 30, "work on the rest")
    terminate(two)
    terminate(serving)
    check_queue(members, publishing.acknowledged, interrupted={"one"})


@pytest.mark.long
def test_a_member_of_a_queue_that_was_stopped_past_its_session_says_nothing_that_counts(family: Processes) -> None:
    serving = family.serve()
    members = Members(family, "one", "two")
    one, two = (family.consume(name, GROUP, role="drain") for name in members.names)
    with Publishing(family.path, "p", family.config) as publishing:
        until(lambda: bool(members.notes("done", "one") and members.notes("done", "two")), 30, "work by both")
        since = len(members.notes("given", "two"))
        os.kill(one.pid, signal.SIGSTOP)
        until(lambda: is_stopped(one.pid), 5, "stop")
        until(lambda: members.partitions("two", since) == {0, 1}, 40, "the other's partition")
        count = len(members.notes("given", "one"))
        os.kill(one.pid, signal.SIGCONT)
        until(lambda: len(members.notes("given", "one")) > count + 7, 30, "work after the stop")
    until(lambda: members.lag() == 0, 30, "work on the rest")
    terminate(one)
    terminate(two)
    terminate(serving)
    check_queue(members, publishing.acknowledged, interrupted={"one"})


@pytest.mark.extended
def test_whatever_is_killed_each_message_that_is_given_up_is_one_dead_letter_and_goes_back_once(
    family: Processes,
) -> None:
    """The sequencer, time and again: while it looks for where they are, and when it has decided."""
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
        until(lambda: mq.groups.describe(GROUP).lag == 0, 30, "dead letters")
        assert Counter(message.value for message in mq.fetch(dead)) == {str(n).encode(): 1 for n in range(count)}
        for part in ("source_offset % 2 = 0", "source_offset % 2 = 1"):
            redriven = mq.dead_letters.redrive(dead, part)
            serving.kill()
            serving = family.serve()
            assert redriven.messages > 0
        until(lambda: len(list(mq.fetch(TOPIC))) == 2 * count, 30, "all back")
        assert Counter(message.value for message in mq.fetch(TOPIC)) == {str(n).encode(): 2 for n in range(count)}
        assert not mq.dead_letters.counts()
    terminate(serving)
