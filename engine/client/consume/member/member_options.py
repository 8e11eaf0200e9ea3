"""Read the options of a member from the keywords of `mq.consumer`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ....protocol.errors import IllegalState, InvalidRequest, InvalidSessionTimeout, LakeMQError
from ....protocol.values.consuming.groups import MAX_ASSIGNORS, OFFSET_RESETS
from ...arguments import invalid_argument, parse_choice, parse_text, parse_texts, parse_whole_number
from ..options import CONSUMER, MAX_CLIENT_ID
from .membership import MemberOptions
from .subscription import Pattern

log = logging.getLogger("lakemq.consumer")


def read_member_options(topics: Sequence[str], config: Mapping[str, Any], options: Mapping[str, Any]) -> MemberOptions:
    """Check the keywords, and return the options of a member.

    Args:
        topics: names of topics; empty if there is a pattern.
        config: settings of the group that the keywords imply so far.
        options: keyword -> value; keywords that are left out have their defaults.

    Raises:
        InvalidRequest, InvalidSessionTimeout, InvalidRegularExpression, IllegalState: a keyword is not valid.
    """
    settings = dict(config)
    if settings["group.protocol"] != "queue" and options.get("ack_mode") is not None:
        raise IllegalState("Messages are acknowledged in queue groups.", found="ack_mode")
    for keyword, key in ("ack_mode", "ack.mode"), ("isolation", "isolation.level"):
        if settings["group.protocol"] == "queue" and (value := options.get(keyword)) is not None:
            settings[key] = parse_text(keyword, value)
    instance_id = options.get("instance_id")
    session_ms = _read_number("session_timeout_ms", options, InvalidSessionTimeout)
    heartbeat_ms = _read_number("heartbeat_interval_ms", options)
    if heartbeat_ms >= session_ms:
        raise InvalidRequest(
            "heartbeat_interval_ms is too long: the member would be lost between two heartbeats.",
            found=f"{heartbeat_ms} ms",
            expected=f"less than {session_ms} ms, which is session_timeout_ms",
        )
    if 3 * heartbeat_ms > session_ms:
        log.warning(
            "heartbeat_interval_ms is %d ms, more than a third of the session (session_timeout_ms, %d ms): the member"
            " may be lost when heartbeats are late.",
            heartbeat_ms,
            session_ms,
        )
    poll_ms = _read_number("max_poll_interval_ms", options)
    if poll_ms < heartbeat_ms:
        raise InvalidRequest(
            "max_poll_interval_ms is too short: only heartbeats tell the group that a member polls.",
            found=f"{poll_ms} ms",
            expected=f"at least {heartbeat_ms} ms, which is heartbeat_interval_ms",
        )
    default_reset = CONSUMER["auto_offset_reset"].default
    reset = parse_choice("auto_offset_reset", options.get("auto_offset_reset", default_reset), OFFSET_RESETS)
    pattern = options.get("pattern")
    return MemberOptions(
        topics,
        None if pattern is None else Pattern(pattern),
        None if instance_id is None else parse_text("instance_id", instance_id),
        session_ms,
        heartbeat_ms,
        poll_ms,
        reset,
        _read_client_id(options.get("client_id")),
        settings,
        _read_assignors(options.get("assignor")),
    )


def _read_assignors(assignor: Any) -> list[str]:
    """Return the assignors that the member supports, the best first; empty if it supports all."""
    if assignor is None:
        return []
    names = [parse_text("assignor", assignor)] if isinstance(assignor, str) else parse_texts("assignor", assignor)
    names = list(dict.fromkeys(names))
    if not 1 <= len(names) <= MAX_ASSIGNORS:
        raise invalid_argument("assignor", assignor, f"a name, or a list of 1 to {MAX_ASSIGNORS} names")
    return names


def _read_client_id(client_id: Any) -> str | None:
    if client_id is None:
        return None
    if not 1 <= len(parse_text("client_id", client_id)) <= MAX_CLIENT_ID:
        raise InvalidRequest(
            "client_id is not valid.",
            found=f"{len(client_id)} characters",
            expected=f"1 to {MAX_CLIENT_ID} characters",
        )
    return str(client_id)


def _read_number(name: str, options: Mapping[str, Any], error: type[LakeMQError] = InvalidRequest) -> int:
    """Return the option, or its default. Raises `error` unless it is a number in the option's range."""
    option = CONSUMER[name]
    return parse_whole_number(name, options.get(name, option.default), option.low, option.high, error)
