"""Names of topics, groups and ids, and which topics a destination reaches.

A name is `[A-Za-z0-9._-]{1,249}`, not `.` or `..`, as in Kafka. A destination is one or more such names joined
by `/`; a subscription is a destination in which a level may be `*` (any one level) and the last may be `>`
(one or more levels), as in Solace PubSub+.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

from .errors import InvalidGroupId, InvalidTopic

MAX_LENGTH = 249
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_LENGTH}}}")


def is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and text not in (".", "..")


def check_topic_name(topic: str) -> None:
    """Raises InvalidTopic unless `topic` is a name."""
    if not is_name(topic):
        raise InvalidTopic(
            "This is not a topic name.",
            found=shown(topic),
            expected=f"1 to {MAX_LENGTH} of [A-Za-z0-9._-], not '.' or '..'",
        )


def check_group(group: str) -> None:
    """Raises InvalidGroupId unless `group` is a name."""
    if not is_name(group):
        raise InvalidGroupId(found=shown(group), expected=f"1 to {MAX_LENGTH} of [A-Za-z0-9._-], not '.' or '..'")


def check_destination(destination: str) -> None:
    """Raises InvalidTopic unless every level of `destination` is a name."""
    if not all(is_name(level) for level in destination.split("/")):
        raise InvalidTopic(
            "This is not a destination.",
            found=shown(destination),
            expected="names joined by '/', each 1 to 249 of [A-Za-z0-9._-]",
        )


def check_subscription(subscription: str) -> None:
    """Raises InvalidTopic unless the levels are names, `*`, or a final `>`."""
    levels = subscription.split("/")
    last = len(levels) - 1
    for i, level in enumerate(levels):
        if not (is_name(level) or level == "*" or (level == ">" and i == last)):
            raise InvalidTopic(
                "This is not a subscription.",
                found=shown(subscription),
                expected="names or '*' joined by '/', the last may be '>'",
            )


def folded(topic: str) -> str:
    """The same for names that differ in `.` against `_` only, of which Kafka lets one topic have one."""
    return topic.replace(".", "_")


def matches(subscription: str, destination: str) -> bool:
    """Whether a queue with this subscription receives what is published to `destination`."""
    wanted, given = subscription.split("/"), destination.split("/")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in ("*", g) for w, g in zip(wanted, given, strict=True))


def reached(destination: str, topics: Container[str], subscriptions: Mapping[str, Iterable[str]]) -> list[str]:
    """Names of the topics a destination reaches, sorted: the one so named, and all that subscribe to it.

    topics: the names of all; subscriptions: topic name -> its subscriptions, of those that have any.
    """
    named = {destination} if destination in topics else set()
    return sorted(
        named.union(
            topic for topic, wanted in subscriptions.items() if any(matches(one, destination) for one in wanted)
        )
    )


def shown(text: str) -> str:
    """At most 60 characters of what somebody gave as a name."""
    return text if len(text) <= 60 else f"{text[:57]}... ({len(text)} characters)"
