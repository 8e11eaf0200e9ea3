"""Names (docs/semantics.md G), destinations and subscriptions (docs/semantics.md A)."""

import re
from collections.abc import Callable

import hypothesis.strategies as st
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

# fmt: off
BAD = [
    "", ".", "..", "x" * 250, "../x", "a'; DROP TABLE y--", "a b", "a\x00", "a\n", "\n", "é", "a/b", "%s", "a\\b", "*",
    ">",
]
# fmt: on

levels = st.text("ab.", min_size=1, max_size=2).filter(is_name)


def read_refusal(check: Callable[[str], object], name: str) -> str | None:
    """Return the message with which a check refuses a name; None: it accepts the name."""
    try:
        check(name)
    except InvalidTopic as refusal:
        return str(refusal)
    return None


def test_other_names_are_refused_with_what_was_found_and_expected() -> None:
    expected = re.compile(r"INVALID_TOPIC_EXCEPTION.*Found.*Expected")
    assert [name for name in BAD if not expected.search(read_refusal(check_topic_name, name) or "")] == []
    assert len(read_refusal(check_topic_name, "x" * 10_000) or "") < 300, "a long name is not repeated in full"


def test_destination_is_names_joined_by_slashes() -> None:
    wrong = ["", "/", "a/", "/a", "a//b", "a/*", "a/>", "a/..", "a/x y"]
    assert [name for name in wrong if not read_refusal(check_destination, name)] == []
    check_destination("flights/JFK/2013")


def test_wildcard_that_is_not_a_whole_level_is_refused() -> None:
    wrong, right = ["", ">/a", "a/>/b", "a/*b", "a*", "a/", ">>", "a/>b"], [">", "*", "*/*", "*/>", "a/*/c", "a/>"]
    assert [name for name in wrong if not read_refusal(check_subscription, name)] == []
    assert [name for name in right if read_refusal(check_subscription, name)] == []


@examples()
@given(st.lists(levels | st.just("*"), min_size=1, max_size=4), st.booleans(), st.lists(levels, min_size=1, max_size=4))
def test_subscription_matches_level_by_level(levels: list[str], rest: bool, destination_levels: list[str]) -> None:
    """`*` matches any one level, a last `>` matches one or more."""
    long_enough = len(destination_levels) > len(levels) if rest else len(destination_levels) == len(levels)
    agree = all(w in ("*", g) for w, g in zip(levels, destination_levels, strict=False))
    subscription = "/".join([*levels, ">"] if rest else levels)
    assert matches(subscription, "/".join(destination_levels)) is (long_enough and agree)


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    assert unify_collision_chars("a.b_c") == unify_collision_chars("a_b.c")
    assert len({unify_collision_chars(name) for name in ("a.b", "a-b", "a.b.c")}) == 3
