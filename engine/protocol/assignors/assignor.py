"""What an assignor is given and gives, and whether what it gave is an assignment at all.

An assignor is a function `(partition_counts, members) -> assignment`: topic -> number of partitions, and member id ->
`Member`, in; member id -> the partitions it is to have, out. The same is given whatever order the mappings are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TypeAlias

TopicPartition: TypeAlias = tuple[str, int]

_MOST_NAMED = 5
_MOST_SHOWN = 100


@dataclass(frozen=True)
class Member:
    """A member of a group, as an assignor sees it.

    topics: what it subscribes, topics that do not exist among them, perhaps. owned: the (topic, partition) it says it
    has now; others may say the same, and what it owns may be gone. instance_id: of a static member.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    instance_id: str | None = None


Assignor: TypeAlias = Callable[[Mapping[str, int], Mapping[str, Member]], Mapping[str, Sequence[TopicPartition]]]


def in_order(members: Mapping[str, Member]) -> list[str]:
    """Member ids in the order in which they are served: static members first, by instance id, then by member id."""

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def subscribers(partition_counts: Mapping[str, int], members: Mapping[str, Member]) -> dict[str, tuple[str, ...]]:
    """Topics in order, each with the members that subscribe it, in order; topics that nobody subscribes are left out.

    Topics with the same subscribers share one tuple: 10,000 topics of 500 members are not 5,000,000 entries.
    """
    places = {member_id: place for place, member_id in enumerate(in_order(members))}
    alike: dict[tuple[str, ...], list[str]] = {}
    for member_id in places:
        alike.setdefault(members[member_id].topics, []).append(member_id)
    subscriptions: dict[str, list[int]] = {topic: [] for topic in sorted(partition_counts)}
    for number, topics in enumerate(alike):
        for topic in subscriptions.keys() & topics:
            subscriptions[topic].append(number)
    same = list(alike.values())
    merged: dict[tuple[int, ...], tuple[str, ...]] = {(): ()}
    found = {}
    for topic, numbers in subscriptions.items():
        key = tuple(numbers)
        if key not in merged:
            merged[key] = tuple(sorted((one for number in key for one in same[number]), key=places.__getitem__))
        if key:
            found[topic] = merged[key]
    return found


# -- whether it is one ----------------------------------------------------------------------------------


class _Nonsense(Exception):
    """With what is wrong, in one line."""


def check(
    assignment: object, partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    """The assignment with every member in it, sorted, of plain text and numbers.

    Each partition of a topic that somebody subscribes has one member, and that one subscribes the topic. Raises
    ValueError, which says in one line what is wrong, and nothing else, whatever the object does when it is looked at;
    one that never comes back is the caller's to wait for.
    """
    try:
        return _read(assignment, partition_counts, members)
    except _Nonsense as nonsense:
        wrong = str(nonsense)
    except BaseException as error:  # SystemExit, too: it is the object's own code that runs here
        wrong = f"it cannot be read: {_type_name(error)}"
    raise ValueError(wrong)


def _read(
    assignment: object, partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    if not isinstance(assignment, Mapping):
        raise _Nonsense(f"it is no mapping, but of type {_type_name(assignment)}")
    topic_sets = {topics: frozenset(topics) for topics in {member.topics for member in members.values()}}
    read: dict[str, list[TopicPartition]] = {}
    takers: dict[TopicPartition, str] = {}
    for key, given in assignment.items():  # may be endless, as may what is in it: nothing is taken twice
        member_id = _text(key, "a member id")
        if member_id not in members or member_id in read:
            raise _Nonsense(f"{_shown(member_id)} {'is there twice' if member_id in read else 'is no member'}")
        if not isinstance(given, Iterable):
            raise _Nonsense(f"{_shown(member_id)} gets no partitions, but an object of type {_type_name(given)}")
        read[member_id] = mine = []
        subscribed = topic_sets[members[member_id].topics]
        for entry in given:
            partition = _partition(entry, partition_counts)
            if partition in takers:
                raise _Nonsense(f"{_named(partition)} goes to {_shown(takers[partition])} and {_shown(member_id)}")
            if partition[0] not in subscribed:
                raise _Nonsense(f"{_shown(member_id)} gets {_named(partition)}, and has not subscribed the topic")
            takers[partition] = member_id
            mine.append(partition)
    _refuse_missing(takers, partition_counts, frozenset().union(*topic_sets.values()))
    return {member_id: sorted(read.get(member_id, ())) for member_id in sorted(members)}


def _refuse_missing(
    takers: Mapping[TopicPartition, str], partition_counts: Mapping[str, int], subscribed: frozenset[str]
) -> None:
    wanted = ((topic, partition) for topic in sorted(subscribed) for partition in range(partition_counts.get(topic, 0)))
    missing = [partition for partition in wanted if partition not in takers]
    if missing:
        named = ", ".join(map(_named, missing[:_MOST_NAMED]))
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise _Nonsense(f"nobody gets {named}{more}, though there are subscribers")


def _partition(entry: object, partition_counts: Mapping[str, int]) -> TopicPartition:
    """A partition that is there, of a plain str and a plain int."""
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise _Nonsense(f"an object of type {_type_name(entry)} is no pair of a topic and a partition")
    topic, number = _text(entry[0], "a topic"), entry[1]
    if isinstance(number, bool) or not hasattr(number, "__index__"):  # numpy's numbers have one
        raise _Nonsense(f"an object of type {_type_name(number)} is no number of a partition of {_shown(topic)}")
    partition = index(number)
    if not 0 <= partition < partition_counts.get(topic, 0):
        raise _Nonsense(f"there is no partition {_named((topic, partition))}")
    return topic, partition


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _Nonsense(f"an object of type {_type_name(value)} stands where {what} should")
    return str.__str__(value)  # of somebody's own class: compared and hashed as they please


def _named(partition: TopicPartition) -> str:
    return f"{_shown(partition[0])[1:-1]}-{partition[1]}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def _type_name(value: object) -> str:
    """Of an object whose class may answer with what it likes."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name[:_MOST_SHOWN]
