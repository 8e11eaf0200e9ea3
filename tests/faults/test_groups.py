"""Members of a group as processes that are killed and stopped. No message is lost, and no member commits for
another.
"""

import os
import signal
from collections import Counter
from typing import Any

import pytest
from faults.checks import check_all
from faults.processes import TOPIC, Processes, Publishing, is_stopped, terminate, until

import lakemq

GROUP = "g"


class GroupNotes:
    """The notes of members."""

    def __init__(self, family: Processes, *names: str) -> None:
        self.family, self.names = family, names

    def read(self, name: str) -> list[tuple[int, int, str]]:
        return [tuple(place) for word, places in self.family.read_notes_of(name) if word == "read" for place in places]

    def words(self, name: str) -> Counter[str]:
        return Counter(word for word, _ in self.family.read_notes_of(name))

    def count_reads(self) -> Counter[tuple[int, int, str]]:
        return Counter(message for name in self.names for message in self.read(name))

    def partitions(self, name: str, since: int) -> set[int]:
        """Return the partitions of the messages that a member has read after the first `since`."""
        return {partition for partition, _, _ in self.read(name)[since:]}


def check_group(family: Processes, members: GroupNotes, acknowledged: list[Any], twice: set[str]) -> None:
    """Check that all acknowledged messages were read, in order within an assignment, and twice only by members in
    `twice`.

    twice: members that were killed or stopped. Messages that they read and did not commit are read again.
    """
    rows = check_all(family.path, TOPIC, acknowledged)
    stored = {(r["partition"], r["offset"], r["value"].decode()) for r in rows.to_pylist()}
    read = members.count_reads()
    assert read.keys() == stored
    read_twice = {message for message, count in read.items() if count > 1}
    assert read_twice <= {message for name in twice for message in members.read(name)}
    assert len(read_twice) <= 7 * len(twice)  # a batch
    with lakemq.connect(family.path) as mq:
        lag = mq.groups.lag(GROUP)
        assert [partition.lag for partition in lag] == [0] * len(lag)


def test_a_killed_member_is_replaced_and_nothing_is_lost(family: Processes) -> None:
    """The sequencer is killed, too, and its successor does not think living members dead."""
    first = family.serve()
    first_member, second_member = (family.consume(name, GROUP, session_ms=600_000) for name in ("one", "two"))
    members = GroupNotes(family, "one", "two")
    with Publishing(family.path, "p", family.config) as publishing:
        publishing.wait_for(20)
        until(lambda: bool(members.read("one") and members.read("two")), "reading by both")
        first.kill()
        serving = family.serve()
        publishing.wait_for(10)
        since = len(members.read("two"))
        first_member.kill()
        # its process has ended on the sequencer's machine, which notices that at once; its session would end later
        until(lambda: members.partitions("two", since) == {0, 1}, "the other's partition")
        publishing.wait_for(5)
    until(lambda: len(members.count_reads()) == len(publishing.acknowledged), "reading of the rest")
    terminate(second_member)
    terminate(serving)
    check_group(family, members, publishing.acknowledged, twice={"one"})


def is_awaited(mq: lakemq.Connection, member_id: str) -> bool:
    """Return whether the group waits for this member alone to give up partitions."""
    return [stall.member_id for stall in mq.groups.stalls(GROUP) if stall.kind == "handover"] == [member_id]


@pytest.mark.extended
@pytest.mark.slow
def test_classic_group_waits_for_stopped_member_until_its_session_ends(family: Processes) -> None:
    """The sequencer is killed while all wait. Its successor waits for the same member, and for no other."""
    serving = family.serve()
    with lakemq.connect(family.path) as mq:
        mq.groups.create(GROUP, {"group.protocol": "classic", "group.initial.rebalance.delay.ms": 0})
        # the third member comes while the first is thought to live, even if other tests make that slow
        first_member = family.consume("one", GROUP, session_ms=15_000, protocol="classic")
        second_member = family.consume("two", GROUP, protocol="classic")
        members = GroupNotes(family, "one", "two", "three")
        with Publishing(family.path, "p", family.config) as publishing:
            until(lambda: bool(members.read("one") and members.read("two")), "reading by both")
            until(lambda: mq.groups.describe(GROUP).state == "Stable", "rest")
            (first_id,) = (m.member_id for m in mq.groups.members(GROUP) if m.process_id == first_member.pid)
            os.kill(first_member.pid, signal.SIGSTOP)
            until(lambda: is_stopped(first_member.pid), "stop")
            third_member = family.consume("three", GROUP, protocol="classic")
            until(lambda: is_awaited(mq, first_id), "waiting for one alone")
            before = mq.groups.describe(GROUP)
            assert before.state == "PreparingRebalance"
            since = len(members.read("two"))
            serving.kill()
            serving = family.serve()
            publishing.wait_for(10)
            assert len(members.read("two")) == since
            assert not members.read("three")
            assert is_awaited(mq, first_id)
            until(lambda: bool(members.partitions("two", since) and members.read("three")), "going on")
            assert mq.groups.describe(GROUP).generation == before.generation + 1
            assert mq.groups.describe(GROUP).members == 2
            os.kill(first_member.pid, signal.SIGCONT)
            until(lambda: mq.groups.describe(GROUP).members == 3, "return")
            read = len(members.read("one"))
            third_member.kill()
            until(lambda: len(members.read("one")) > read + 7, "reading after the stop")
        until(lambda: len(members.count_reads()) == len(publishing.acknowledged), "reading of the rest")
    terminate(first_member)
    terminate(second_member)
    terminate(serving)
    check_group(family, members, publishing.acknowledged, twice={"one", "three"})
    words = members.words("one")
    assert words["fenced"] + words["committed"] in (words["read"], words["read"] - 1)
