"""The interface of assignors, and the check of what an assignor returns.

An assignor is a function `(partition_counts, members) -> assignment`. It gets topic -> number of partitions, and member
id -> `Member`, and returns member id -> partitions. The result must not depend on the order of the mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TypeAlias

TopicPartition: TypeAlias = tuple[str, int]

_MAX_NAMED = 5
_MAX_SHOWN = 100


@dataclass(frozen=True)
class Member:
    """A member of a group, as an assignor sees it.

    topics: its subscriptions, which may include topics that do not exist. owned: the (topic, partition) that it says it
    has; other members may say the same, and the partition may be gone. instance_id: of a static member.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    instance_id: str | None = None


Assignor: TypeAlias = Callable[[Mapping[str, int], Mapping[str, Member]], Mapping[str, Sequence[TopicPartition]]]


def order_members(members: Mapping[str, Member]) -> list[str]:
    """Return member ids in the order in which they are served: static members by instance id, then the others by id."""

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def find_subscribers(partition_counts: Mapping[str, int], members: Mapping[str, Member]) -> dict[str, tuple[str, ...]]:
    """Return topics in order, each with its subscribers in order. Topics without subscribers are left out.

    Topics with the same subscribers share one tuple: 10,000 topics of 500 members do not need 5,000,000 entries.
    """
    places = {member_id: place for place, member_id in enumerate(order_members(members))}
    alike: dict[tuple[str, ...], list[str]] = {}
    for member_id in places:
        alike.setdefault(members[member_id].topics, []).append(member_id)
    subscriptions: dict[str, list[int]] = {topic: [] for topic in sorted(partition_counts)}
    for number, topics in enumerate(alike):
        for topic in subscriptions.keys() & topics:
            subscriptions[topic].append(number)
    same = list(alike.values())
    merged: dict[tuple[int, ...], tuple[str, ...]] = {(): ()}
    members_by_topic = {}
    for topic, numbers in subscriptions.items():
        key = tuple(numbers)
        if key not in merged:
            merged[key] = tuple(
                sorted((member_id for number in key for member_id in same[number]), key=places.__getitem__)
            )
        if key:
            members_by_topic[topic] = merged[key]
    return members_by_topic


# -- checking -------------------------------------------------------------------------------------------


class _InvalidAssignment(Exception):
    """The assignment is invalid, for a reason that fits in one line."""


def check_assignment(
    assignment: object, partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    """Return the assignment with all members, sorted, as plain text and numbers.

    Each partition of a subscribed topic must have one member, which subscribes to the topic. Raises ValueError with the
    reason in one line, and nothing else, even if the object raises when it is read. If reading never ends, the caller
    must stop it.
    """
    try:
        return _read_assignment(assignment, partition_counts, members)
    except _InvalidAssignment as nonsense:
        wrong = str(nonsense)
    except BaseException as error:  # even SystemExit: the object's own code runs here
        wrong = f"it cannot be read: {_type_name(error)}"
    raise ValueError(wrong)


def _read_assignment(
    assignment: object, partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    if not isinstance(assignment, Mapping):
        raise _InvalidAssignment(f"it is no mapping, but of type {_type_name(assignment)}")
    topic_sets = {topics: frozenset(topics) for topics in {member.topics for member in members.values()}}
    read: dict[str, list[TopicPartition]] = {}
    takers: dict[TopicPartition, str] = {}
    for key, entries in assignment.items():  # may be endless, and so may be its values: refuse the first repeat
        member_id = _read_text(key, "a member id")
        if member_id not in members or member_id in read:
            raise _InvalidAssignment(f"{_quote(member_id)} {'is there twice' if member_id in read else 'is no member'}")
        if not isinstance(entries, Iterable):
            raise _InvalidAssignment(
                f"{_quote(member_id)} gets no partitions, but an object of type {_type_name(entries)}"
            )
        read[member_id] = partitions = []
        subscribed = topic_sets[members[member_id].topics]
        for entry in entries:
            partition = _read_partition(entry, partition_counts)
            if partition in takers:
                raise _InvalidAssignment(
                    f"{_format_partition(partition)} goes to {_quote(takers[partition])} and {_quote(member_id)}"
                )
            if partition[0] not in subscribed:
                raise _InvalidAssignment(
                    f"{_quote(member_id)} gets {_format_partition(partition)}, and has not subscribed the topic"
                )
            takers[partition] = member_id
            partitions.append(partition)
    _refuse_missing(takers, partition_counts, frozenset().union(*topic_sets.values()))
    return {member_id: sorted(read.get(member_id, ())) for member_id in sorted(members)}


def _refuse_missing(
    takers: Mapping[TopicPartition, str], partition_counts: Mapping[str, int], subscribed: frozenset[str]
) -> None:
    expected = (
        (topic, partition) for topic in sorted(subscribed) for partition in range(partition_counts.get(topic, 0))
    )
    missing = [partition for partition in expected if partition not in takers]
    if missing:
        named = ", ".join(map(_format_partition, missing[:_MAX_NAMED]))
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        raise _InvalidAssignment(f"nobody gets {named}{more}, though there are subscribers")


def _read_partition(entry: object, partition_counts: Mapping[str, int]) -> TopicPartition:
    """Return an existing partition as a plain str and a plain int."""
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise _InvalidAssignment(f"an object of type {_type_name(entry)} is no pair of a topic and a partition")
    topic, number = _read_text(entry[0], "a topic"), entry[1]
    if isinstance(number, bool) or not hasattr(number, "__index__"):  # numpy's numbers have one
        raise _InvalidAssignment(
            f"an object of type {_type_name(number)} is no number of a partition of {_quote(topic)}"
        )
    partition = index(number)
    if not 0 <= partition < partition_counts.get(topic, 0):
        raise _InvalidAssignment(f"there is no partition {_format_partition((topic, partition))}")
    return topic, partition


def _read_text(value: object, expected: str) -> str:
    if not isinstance(value, str):
        raise _InvalidAssignment(f"an object of type {_type_name(value)} stands where {expected} should")
    return str.__str__(value)  # a subclass may compare and hash in its own way


def _format_partition(partition: TopicPartition) -> str:
    return f"{_quote(partition[0])[1:-1]}-{partition[1]}"


def _quote(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _type_name(value: object) -> str:
    """Return the name of the object's class, even if the class overrides how it answers."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name[:_MAX_SHOWN]
