"""Assignors, which decide which member of a group gets which partition: the built-in ones, and how to write your own.

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

The sequencer finds it by its name, among the entry points `lakemq.assignors` of all packages that are installed beside
it. Write into your package's setup.cfg:

    [options.entry_points]
    lakemq.assignors =
        whole-topics = company.assignors:whole_topics

An assignor must keep these rules:

- Give each partition of a subscribed topic to one member that subscribes it. A member that is left out gets none.
  Topics that members subscribe may not exist.
- Return within `assignor.timeout.ms`. The first import of its module counts.
- Raise nothing, and do not change the arguments.
- Return the same assignment for the same input.

If its result is not valid or too late, or if it raises, a built-in assignor takes its place, and the group shows the
reason. It runs in a thread of the sequencer's process, which nothing can end: while a call hangs, the sequencer does
not call this assignor again. The built-in names (`range`, `roundrobin`, `sticky`, `cooperative-sticky`) always mean the
built-in assignors, whatever entry points exist.
"""

# ruff: noqa: I001  # `name as name` says that users import the name from here
from lakemq.engine.protocol.assignors import (
    Assignor as Assignor,
    Member as Member,
    assign_cooperative_sticky as assign_cooperative_sticky,
    assign_range as assign_range,
    assign_roundrobin as assign_roundrobin,
    assign_sticky as assign_sticky,
)
