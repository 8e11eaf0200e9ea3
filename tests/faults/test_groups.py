"""Members of a group as processes that are killed and stopped. No message is lost, and no member commits for
another.
"""

from typing import Any

from faults.checks import check_all
from faults.processes import TOPIC, MemberNotes, Processes, Publishing, terminate, until

import lakemq

GROUP = "g"


def check_group(family: Processes, members: MemberNotes, acknowledged: list[Any], twice: set[str]) -> None:
    """Check that all acknowledged messages were read, in order within an assignment, and twice only by members in
    `twice`.

    twice: members that were killed or stopped. Messages that they read and did not commit are read again.
    """
    rows = check_all(family.path, TOPIC, acknowledged)
    stored = {(r["partition"], r["offset"], r["value"].decode()) for r in rows.to_pylist()}
    read = members.count("read")
    assert read.keys() == stored
    read_twice = {message for message, count in read.items() if count > 1}
    assert read_twice <= {message for name in twice for message in members.read("read", name)}
    assert len(read_twice) <= 7 * len(twice)  # a batch
    with lakemq.connect(family.path) as mq:
        lag = mq.groups.lag(GROUP)
        assert [partition.lag for partition in lag] == [0] * len(lag)


def test_a_killed_member_is_replaced_and_nothing_is_lost(family: Processes) -> None:
    """The sequencer is killed, too, and its successor does not think living members dead."""
    first = family.serve()
    first_member, second_member = (family.consume(name, GROUP, session_ms=600_000) for name in ("one", "two"))
    members = MemberNotes(family, "one", "two")
    with Publishing(family.path, "p", family.config) as publishing:
        publishing.wait_for(20)
        until(lambda: bool(members.read("read", "one") and members.read("read", "two")), "reading by both")
        first.kill()
        serving = family.serve()
        publishing.wait_for(10)
        since = len(members.read("read", "two"))
        first_member.kill()
        # its process has ended on the sequencer's machine, which notices that at once; its session would end later
        until(lambda: members.partitions("read", "two", since) == {0, 1}, "the other's partition")
        publishing.wait_for(5)
    until(lambda: len(members.count("read")) == len(publishing.acknowledged), "reading of the rest")
    terminate(second_member)
    terminate(serving)
    check_group(family, members, publishing.acknowledged, twice={"one"})
