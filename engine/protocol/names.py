"""Names of topics, groups and ids, and which topics a destination reaches.

A name is `[A-Za-z0-9._-]{1,249}`, not `.` or `..`, as in Kafka. A destination is one or more such names joined
by `/`; a subscription is a destination in which a level may be `*` (any one level) and the last may be `>`
(one or more levels), as in Solace PubSub+.
"""

import re
from collections.abc import Container, Iterable, Mapping

from .errors import InvalidGroupId, InvalidTopic

MAX_LENGTH = 249
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_LENGTH}}}")


def is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and text not in (".", "..")


def check_topic_name(topic: str) -> None:
    """Raise InvalidTopic unless `topic` is a name."""
    if not is_name(topic):
        raise InvalidTopic(
            "This is not a topic name.",
            found=shorten(topic),
            expected=f"1 to {MAX_LENGTH} of [A-Za-z0-9._-], not '.' or '..'",
        )


def check_group(group: str) -> None:
    """Raise InvalidGroupId unless `group` is a name."""
    if not is_name(group):
        raise InvalidGroupId(found=shorten(group), expected=f"1 to {MAX_LENGTH} of [A-Za-z0-9._-], not '.' or '..'")


def check_destination(destination: str) -> None:
    """Raise InvalidTopic unless every level of `destination` is a name."""
    if not all(is_name(level) for level in destination.split("/")):
        raise InvalidTopic(
            "This is not a destination.",
            found=shorten(destination),
            expected="names joined by '/', each 1 to 249 of [A-Za-z0-9._-]",
        )


def check_subscription(subscription: str) -> None:
    """Raise InvalidTopic unless the levels are names, `*`, or a final `>`."""
    levels = subscription.split("/")
    last = len(levels) - 1
    for i, level in enumerate(levels):
        if not (is_name(level) or level == "*" or (level == ">" and i == last)):
            raise InvalidTopic(
                "This is not a subscription.",
                found=shorten(subscription),
                expected="names or '*' joined by '/', the last may be '>'",
            )


def unify_collision_chars(topic: str) -> str:
    """Return the name with `.` replaced by `_`. As in Kafka, two topics must not differ only in these."""
    return topic.replace(".", "_")


def matches(subscription: str, destination: str) -> bool:
    """Return whether a topic with this subscription receives messages published to `destination`."""
    pattern, levels = subscription.split("/"), destination.split("/")
    if pattern[-1] == ">":
        pattern = pattern[:-1]
        if len(levels) <= len(pattern):
            return False
        levels = levels[: len(pattern)]
    return len(pattern) == len(levels) and all(w in ("*", g) for w, g in zip(pattern, levels, strict=True))


def find_reached_topics(
    destination: str, topics: Container[str], subscriptions: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the topics that a destination reaches, sorted: the topic with this name, and all that subscribe to it.

    topics: the names of all topics. subscriptions: topic -> its subscriptions, for topics that have any.
    """
    named = {destination} if destination in topics else set()
    return sorted(
        named.union(
            topic
            for topic, listed in subscriptions.items()
            if any(matches(subscription, destination) for subscription in listed)
        )
    )


def shorten(text: str) -> str:
    """Return at most 60 characters of a name, for an error message."""
    return text if len(text) <= 60 else f"{text[:57]}... ({len(text)} characters)"
