"""Names (docs/semantics.md G), destinations and subscriptions (docs/semantics.md A)."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given

from lakemq.engine.protocol.errors import InvalidTopic
from lakemq.engine.protocol.names import (
    check_destination,
    check_subscription,
    check_topic_name,
    find_reached_topics,
    is_name,
    matches,
    unify_collision_chars,
)

GOOD = ["a", "A-1_b.c", "...", "..a", "x" * 249, "-", "_", "0"]
BAD = [
    "",
    ".",
    "..",
    "x" * 250,
    "../x",
    "a'; DROP TABLE y--",
    "a b",
    "a\x00",
    "a\n",
    "\n",
    "é",
    "a/b",
    "%s",
    "a\\b",
    "*",
    ">",
]

levels = st.text("ab.", min_size=1, max_size=2).filter(is_name)


@pytest.mark.parametrize("name", GOOD)
def test_a_name_is_taken(name: str) -> None:
    check_topic_name(name)
    check_destination(name)
    check_subscription(name)


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_no_topic_name(name: str) -> None:
    with pytest.raises(InvalidTopic, match=r"INVALID_TOPIC_EXCEPTION.*Found.*Expected"):
        check_topic_name(name)


def test_a_long_name_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidTopic) as refused:
        check_topic_name("x" * 10_000)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("destination", ["", "/", "a/", "/a", "a//b", "a/*", "a/>", "a/..", "a/x y"])
def test_a_destination_is_names_joined(destination: str) -> None:
    with pytest.raises(InvalidTopic):
        check_destination(destination)
    check_destination("flights/JFK/2013")


@pytest.mark.parametrize("subscription", ["", ">/a", "a/>/b", "a/*b", "a*", "a/", ">>", "a/>b"])
def test_wildcards_stand_alone_and_the_rest_stands_last(subscription: str) -> None:
    with pytest.raises(InvalidTopic):
        check_subscription(subscription)


@pytest.mark.parametrize("subscription", [">", "*", "*/*", "*/>", "a/*/c", "a/>"])
def test_a_subscription_may_hold_wildcards(subscription: str) -> None:
    check_subscription(subscription)


@pytest.mark.parametrize(
    ("subscription", "destination", "receives"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a", False),
        ("a/b", "a/b/c", False),
        ("*", "a", True),
        ("*", "a/b", False),
        ("a/*", "a/b", True),
        ("a/*", "a", False),
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/d", False),
        (">", "a", True),
        (">", "a/b/c", True),
        ("a/>", "a/b", True),
        ("a/>", "a/b/c", True),
        ("a/>", "a", False),
        ("a/>", "b/c", False),
        ("*/>", "a/b", True),
        ("*/>", "a", False),
    ],
)
def test_what_a_subscription_receives(subscription: str, destination: str, receives: bool) -> None:
    assert matches(subscription, destination) is receives


@examples()
@given(st.lists(levels | st.just("*"), min_size=1, max_size=4), st.booleans(), st.lists(levels, min_size=1, max_size=4))
def test_matching_is_level_by_level(levels: list[str], rest: bool, destination_levels: list[str]) -> None:
    """`*` matches any one level, a last `>` matches one or more."""
    long_enough = len(destination_levels) > len(levels) if rest else len(destination_levels) == len(levels)
    agree = all(w in ("*", g) for w, g in zip(levels, destination_levels, strict=False))
    subscription = "/".join([*levels, ">"] if rest else levels)
    assert matches(subscription, "/".join(destination_levels)) is (long_enough and agree)


def test_a_destination_reaches_the_topic_so_named_and_all_that_subscribe() -> None:
    topics, subscriptions = {"q3", "q1", "a", "q2", "other"}, {"q3": ["a/>", "a/b"], "q1": ["*/b"], "q2": ["b/>"]}
    assert find_reached_topics("a/b", topics, subscriptions) == ["q1", "q3"]
    assert find_reached_topics("a", topics, subscriptions) == ["a"]
    assert find_reached_topics("q1", topics, {"q1": ["q1"]}) == ["q1"]
    assert find_reached_topics("b/b/b", topics, subscriptions) == ["q2"]
    assert find_reached_topics("nobody", topics, subscriptions) == []


def test_dots_and_underscores_clash() -> None:
    assert unify_collision_chars("a.b_c") == unify_collision_chars("a_b.c")
    assert len({unify_collision_chars(name) for name in ("a.b", "a-b", "a.b.c")}) == 3
