"""Members of a group as processes that are killed and stopped. No message is lost, and no member commits for
another.
"""

from collections import Counter
from typing import Any

from faults.checks import check_all
from faults.processes import TOPIC, Processes, Publishing, terminate, until

import lakemq

GROUP = "g"


class GroupNotes:
    """The notes of members."""

    def __init__(self, family: Processes, *names: str) -> None:
        self.family, self.names = family, names

    def read(self, name: str) -> list[tuple[int, int, str]]:
        return [tuple(place) for word, places in self.family.read_notes_of(name) if word == "read" for place in places]

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
