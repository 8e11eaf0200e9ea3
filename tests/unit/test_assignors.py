"""Assignors: a table of assignments, and properties that hold for every assignment."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lakemq.engine.protocol.assignors import BUILT_IN, Member, TopicPartition, check_assignment

STICKY = ("sticky", "cooperative-sticky")

# -- a table --------------------------------------------------------------------------------------------
# A member: its name, (its subscription) if that is not all, {its partitions}. A bare number is of the topic t.

TABLE = [
    ("range", "t1:3 t2:3", "C1 C2", "C1{t1-0,t1-1,t2-0,t2-1} C2{t1-2,t2-2}"),
    ("range", "t1:3 t2:2", "C1(t1) C2(t1,t2) C3(t1)", "C1{t1-0} C2{t1-1,t2-0,t2-1} C3{t1-2}"),
    ("range", "t:2", "C1 C2 C3", "C1{0} C2{1} C3{}"),
    (
        "range",
        "t:11",
        "c1 c2 c3 c4 c5 c6 c7 c8 c9 c10 c11",
        "c1{0} c10{1} c11{2} c2{3} c3{4} c4{5} c5{6} c6{7} c7{8} c8{9} c9{10}",
    ),
    ("roundrobin", "t1:3 t2:3", "C1 C2", "C1{t1-0,t1-2,t2-1} C2{t1-1,t2-0,t2-2}"),
    ("roundrobin", "t1:1 t2:2 t3:3", "C1(t1) C2(t1,t2) C3", "C1{t1-0} C2{t2-0} C3{t2-1,t3-0,t3-1,t3-2}"),
    ("sticky", "t1:3 t2:3", "C1 C2", "C1{t1-0,t1-2,t2-1} C2{t1-1,t2-0,t2-2}"),
    ("sticky", "t:3", "C1", "C1{0,1,2}"),
    ("sticky", "t:3", "C1{0,1,2} C2", "C1{0,1} C2{2}"),
    ("sticky", "t:3", "C2{2}", "C2{0,1,2}"),
    ("sticky", "t:4", "C1 C2 C3", "C1{0,3} C2{1} C3{2}"),
    ("cooperative-sticky", "t:6", "C1{0,1,2} C2{3,4,5} C3", "C1{0,1} C2{3,4} C3{2,5}"),
    ("cooperative-sticky", "t:6", "C1{0,1} C2{3,4} C3", "C1{0,1} C2{3,4} C3{2,5}"),
    ("cooperative-sticky", "t:4", "C1{0,3} C2{1} C3{2}", "C1{0,3} C2{1} C3{2}"),
    ("cooperative-sticky", "t:4", "C1{0,3} C3{2}", "C1{0,3} C3{1,2}"),
    # the owned partitions are gone, outside the subscription, or have two owners
    ("sticky", "t:2", "C1{1,2,3,x-0} C2", "C1{1} C2{0}"),
    ("sticky", "t:2 u:2", "C1(t){u-0,u-1,t-1} C2(t,u)", "C1{0,1} C2{u-0,u-1}"),
    ("sticky", "t:2", "C1{0} C2{0,1}", "C1{0} C2{1}"),
    # a chain: C1 has too much, only C2 can take it, and C2 gives what C3 can take
    ("sticky", "t:2 u:2", "C1(t){t-0,t-1} C2(t,u){u-0,u-1} C3(u)", "C1{t-0,t-1} C2{u-0} C3{u-1}"),
    ("sticky", "t:3 u:2", "C1(t){t-0,t-1,t-2} C2(t,u){u-0,u-1} C3(u)", "C1{t-0,t-1} C2{t-2,u-0} C3{u-1}"),
    ("range", "t:2", "", ""),
    ("roundrobin", "t:2", "", ""),
    ("sticky", "t:2", "", ""),
    ("range", "", "C1(t)", "C1{}"),
    ("roundrobin", "u:2", "C1(t)", "C1{}"),
    ("sticky", "u:2 t:0", "C1(t)", "C1{}"),
]


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    names = (entry if "-" in entry else f"t-{entry}" for entry in text.split(",") if entry)
    return tuple((topic, int(number)) for topic, number in (name.split("-") for name in names))


def parse_members(text: str, topics: Iterable[str]) -> dict[str, Member]:
    matches = re.findall(r"(\w+)(?:\(([^)]*)\))?(?:\{([^}]*)\})?", text)
    return {
        name: Member(tuple(subscribed.split(",") if subscribed else topics), parse_partitions(owned))
        for name, subscribed, owned in matches
    }


@pytest.mark.parametrize(("name", "partitions", "members", "expected"), TABLE)
def test_assignor_gives_each_member_its_partitions(name: str, partitions: str, members: str, expected: str) -> None:
    counts = {topic: int(count) for topic, count in (entry.split(":") for entry in partitions.split())}
    members_by_id = parse_members(members, counts)
    expected_assignment = {member_id: sorted(member.owned) for member_id, member in parse_members(expected, ()).items()}
    assert check_assignment(BUILT_IN[name](counts, members_by_id), counts, members_by_id) == expected_assignment


@pytest.mark.parametrize("name", BUILT_IN)
def test_static_members_come_first_by_their_instance_ids(name: str) -> None:
    members = {
        "a": Member(("t",)),
        "b": Member(("t",), instance_id="host-2"),
        "c": Member(("t",), instance_id="host-10"),
        "d": Member(("t",), instance_id=""),
    }
    assigned = BUILT_IN[name]({"t": 4}, members)
    assert sorted(members, key=lambda member_id: list(assigned[member_id])) == ["d", "c", "b", "a"]


# -- properties of all assignors ----------------------------------------------------------------------------

TOPICS = ("a", "b", "c", "d")
Case = tuple[dict[str, int], dict[str, Member]]

partition = st.tuples(st.sampled_from([*TOPICS, "gone"]), st.integers(-1, 8))
some_topics = st.lists(st.sampled_from([*TOPICS, "never made"]), unique=True).map(tuple)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 8))
instance_ids = st.none() | st.sampled_from(["i1", "i2"])


def draw_members(topics: st.SearchStrategy[tuple[str, ...]]) -> st.SearchStrategy[dict[str, Member]]:
    member = st.builds(Member, topics, st.lists(partition, max_size=12).map(tuple), instance_ids)
    return st.dictionaries(st.sampled_from([f"m{i}" for i in range(12)]), member, max_size=7)


anybody: st.SearchStrategy[Case] = st.tuples(counts, draw_members(some_topics))
equals: st.SearchStrategy[Case] = st.tuples(counts, some_topics.flatmap(lambda topics: draw_members(st.just(topics))))


def count_partitions(assignment: Mapping[str, Sequence[TopicPartition]]) -> dict[str, int]:
    return {member_id: len(partitions) for member_id, partitions in assignment.items()}


def compute_spread(numbers: Iterable[int]) -> int:
    values = list(numbers) or [0]
    return max(values) - min(values)


def find_owners(members: Mapping[str, Member], counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Return the member that keeps each partition if possible: the first in order with a valid claim to it."""

    def order(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    owner_by_partition: dict[TopicPartition, str] = {}
    for member_id in sorted(members, key=order):
        for topic, number in members[member_id].owned:
            if topic in members[member_id].topics and 0 <= number < counts.get(topic, 0):
                owner_by_partition.setdefault((topic, number), member_id)
    return owner_by_partition


@pytest.mark.parametrize("name", BUILT_IN)
@examples()
@given(case=anybody | equals)
def test_every_partition_is_assigned_once_whatever_the_order_of_members(name: str, case: Case) -> None:
    counts, members = case
    assigned = BUILT_IN[name](counts, members)
    assert check_assignment(assigned, counts, members) == assigned
    backwards = {
        member_id: Member(member.topics[::-1], member.owned[::-1], member.instance_id)
        for member_id, member in reversed(members.items())
    }
    assert BUILT_IN[name](dict(reversed(counts.items())), backwards) == assigned


@examples()
@given(case=equals)
def test_members_with_one_subscription_differ_by_one_partition_at_most(case: Case) -> None:
    counts, members = case
    for name in ("roundrobin", *STICKY):
        assert compute_spread(count_partitions(BUILT_IN[name](counts, members)).values()) <= 1
    ranges = BUILT_IN["range"](counts, members)
    for topic in counts:
        assert compute_spread(sum(of == topic for of, _ in partitions) for partitions in ranges.values()) <= 1


@examples()
@given(case=equals)
def test_sticky_moves_no_more_than_it_must_where_all_subscribe_the_same(case: Case) -> None:
    counts, members = case
    owner_by_partition = find_owners(members, counts)
    assigned = BUILT_IN["sticky"](counts, members)
    kept_count = sum(
        owner_by_partition.get(partition) == member_id
        for member_id, partitions in assigned.items()
        for partition in partitions
    )

    owned = Counter(owner_by_partition.values())
    share, extra = divmod(sum(count_partitions(assigned).values()), len(members) or 1)
    expected_count = max(
        sum(min(owned[member_id], share + (member_id in larger)) for member_id in members)
        for larger in itertools.combinations(members, extra)
    )
    assert kept_count == expected_count


@examples()
@given(case=anybody)
def test_sticky_leaves_no_chain_of_moves_that_would_even_out(case: Case) -> None:
    counts, members = case
    assigned = BUILT_IN["sticky"](counts, members)
    load = count_partitions(assigned)
    could_take = {
        giver: {taker for taker in members if any(topic in members[taker].topics for topic, _ in assigned[giver])}
        for giver in members
    }
    for fullest in members:
        reached, newly_reached = {fullest}, {fullest}
        while newly_reached:
            newly_reached = set().union(*(could_take[giver] for giver in newly_reached)) - reached
            reached |= newly_reached
        assert min(load[member_id] for member_id in reached) >= load[fullest] - 1
