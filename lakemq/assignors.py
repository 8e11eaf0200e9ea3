"""Assignors: who of a group gets which partition. Those that are there, and how to write one.

An assignor is a function of two mappings, topic -> number of partitions and member id -> `Member`. It returns the
partitions of each member, member id -> list of (topic, partition). One that gives each topic to one member as a whole:

    from lakemq.assignors import Member

    def whole_topics(partition_counts, members):
        assignment = {member_id: [] for member_id in members}
        for topic in sorted(partition_counts):
            takers = [member_id for member_id in sorted(members) if topic in members[member_id].topics]
            if takers:
                taker = min(takers, key=lambda member_id: len(assignment[member_id]))
                assignment[taker] += [(topic, partition) for partition in range(partition_counts[topic])]
        return assignment

It is found by its name among the entry points of the group `lakemq.assignors`, those of any package that is installed
where the sequencer runs. In the package's setup.cfg:

    [options.entry_points]
    lakemq.assignors =
        whole-topics = company.assignors:whole_topics

What it must hold to:

- Each partition of a topic that somebody subscribes goes to one member, which subscribes it. A member that is left out
  gets none. Topics that members subscribe may not exist.
- It answers before `assignor.timeout.ms` is over; importing its module the first time counts.
- It does not raise, and changes nothing that it was given.

Where it does not, a built-in one stands in for it, and the group says why. It runs in a thread of the sequencer's
process, which cannot be ended from outside: while a call of a plug-in hangs, that plug-in is not called again. The same
input should have the same answer. A built-in name (`range`, `roundrobin`, `sticky`, `cooperative-sticky`) is always the
built-in assignor, whatever entry points there are.
"""

from __future__ import annotations

from lakemq.engine.protocol.assignors.assignor import Assignor, Member
from lakemq.engine.protocol.assignors.range import assign_range
from lakemq.engine.protocol.assignors.roundrobin import assign_roundrobin
from lakemq.engine.protocol.assignors.sticky import assign_cooperative_sticky, assign_sticky

__all__ = [
    "Assignor",
    "Member",
    "assign_cooperative_sticky",
    "assign_range",
    "assign_roundrobin",
    "assign_sticky",
]
