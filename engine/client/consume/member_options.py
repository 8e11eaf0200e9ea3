"""How a member joins: its keywords, checked in the call that was given them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...protocol.errors import IllegalState, InvalidRequest, InvalidSessionTimeout
from ...protocol.values.groups import MAX_POLL_MS, OFFSET_RESETS, SESSION_MS
from ..arguments import one_of, text, whole_number
from .membership import MemberOptions
from .subscription import Pattern

log = logging.getLogger("lakemq.consumer")

PROTOCOLS = ("queue", "cooperative", "classic")

MEMBER_OPTIONS = (
    "ack_mode",
    "assignor",
    "auto_offset_reset",
    "heartbeat_interval_ms",
    "instance_id",
    "isolation",
    "listener",
    "max_poll_interval_ms",
    "pattern",
    "session_timeout_ms",
)

_HOUR_MS = 3_600_000


def member_options(topics: Sequence[str], config: Mapping[str, Any], options: Mapping[str, Any]) -> MemberOptions:
    """Raises InvalidRequest, InvalidSessionTimeout, InvalidRegularExpression, IllegalState."""
    settings = dict(config)
    if (assignor := options.get("assignor")) is not None:
        settings["group.assignor"] = text("assignor", assignor)
    if settings["group.protocol"] != "queue" and options.get("ack_mode") is not None:
        raise IllegalState("Messages are acknowledged in queue groups.", found="ack_mode")
    for keyword, key in ("ack_mode", "ack.mode"), ("isolation", "isolation.level"):
        if settings["group.protocol"] == "queue" and (value := options.get(keyword)) is not None:
            settings[key] = text(keyword, value)
    instance_id = options.get("instance_id")
    session_ms = whole_number(
        "session_timeout_ms", options.get("session_timeout_ms", 45_000), *SESSION_MS, InvalidSessionTimeout
    )
    beat_ms = whole_number("heartbeat_interval_ms", options.get("heartbeat_interval_ms", 3_000), 1, _HOUR_MS)
    if beat_ms >= session_ms:
        raise InvalidRequest(
            "A member that beats as seldom is lost.", found=f"{beat_ms} ms", expected=f"less than {session_ms} ms"
        )
    if 3 * beat_ms > session_ms:
        log.warning("heartbeat_interval_ms is %d: more than a third of the session, %d ms", beat_ms, session_ms)
    poll_ms = whole_number("max_poll_interval_ms", options.get("max_poll_interval_ms", 300_000), 1, MAX_POLL_MS)
    if poll_ms < beat_ms:
        raise InvalidRequest(
            "Polls are told with beats.", found=f"max_poll_interval_ms {poll_ms}", expected=f"at least {beat_ms}"
        )
    reset = one_of("auto_offset_reset", options.get("auto_offset_reset", "latest"), OFFSET_RESETS)
    pattern = options.get("pattern")
    return MemberOptions(
        topics,
        None if pattern is None else Pattern(pattern),
        None if instance_id is None else text("instance_id", instance_id),
        session_ms,
        beat_ms,
        poll_ms,
        reset,
        settings,
    )
