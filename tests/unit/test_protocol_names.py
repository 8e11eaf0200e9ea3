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
    is_name,
    matches,
    unify_collision_chars,
)

GOOD = ["...", "x" * 249, "-", "_", "0"]
BAD = ["", "x" * 250, "a b", "a\n", "%s", "*"]
"""More are in golden/names.yaml."""

levels = st.text("ab.", min_size=1, max_size=2).filter(is_name)


@pytest.mark.parametrize("name", GOOD)
def test_a_name_is_taken(name: str) -> None:
    check_topic_name(name)
    check_destination(name)
    check_subscription(name)


@pytest.mark.parametrize("name", BAD)
def test_invalid_topic_name_is_refused(name: str) -> None:
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


@examples()
@given(st.lists(levels | st.just("*"), min_size=1, max_size=4), st.booleans(), st.lists(levels, min_size=1, max_size=4))
def test_matching_is_level_by_level(levels: list[str], rest: bool, destination_levels: list[str]) -> None:
    """`*` matches any one level, a last `>` matches one or more."""
    long_enough = len(destination_levels) > len(levels) if rest else len(destination_levels) == len(levels)
    agree = all(w in ("*", g) for w, g in zip(levels, destination_levels, strict=False))
    subscription = "/".join([*levels, ">"] if rest else levels)
    assert matches(subscription, "/".join(destination_levels)) is (long_enough and agree)


def test_dots_and_underscores_clash() -> None:
    assert unify_collision_chars("a.b_c") == unify_collision_chars("a_b.c")
    assert len({unify_collision_chars(name) for name in ("a.b", "a-b", "a.b.c")}) == 3
