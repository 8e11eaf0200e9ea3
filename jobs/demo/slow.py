"""The demo's fourth part: a message that takes long, in a group of each protocol, and who stands still meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import GroupConsumer
from lakemq.jobs.demo import checks
from lakemq.jobs.demo.checks import Checked, CheckFailed

PROTOCOLS = ("classic", "cooperative", "queue")
MAX_POLL_MS = 1_500
_TAKES_S = 3.5
"""The message: its member is out before, and all go on."""
_PATIENCE_S = 60


@dataclass(frozen=True)
class Slowed:
    """stood_still_ms: the longest time in which another member was given nothing; waited_for: whom the group waited for
    then; slow: whose message takes so long.
    """

    stood_still_ms: float
    waited_for: list[str]
    slow: str


def slow_message(mq: Connection, topic: str) -> dict[str, Slowed]:
    """By protocol. topic: with more messages in each partition than are read here. Raises CheckFailed."""
    return {protocol: _slowed(mq, topic, protocol) for protocol in PROTOCOLS}


def _slowed(mq: Connection, topic: str, protocol: str) -> Slowed:
    """Two members share the topic, one takes long for a message, and a third one comes."""
    group = f"slow-{protocol}"
    mq.groups.create(group, {"group.protocol": protocol, "group.initial.rebalance.delay.ms": 0})
    with ExitStack() as stack, ThreadPoolExecutor(1) as aside:

        def member() -> GroupConsumer:
            how: dict[str, Any] = {"heartbeat_interval_ms": 200, "max_poll_interval_ms": MAX_POLL_MS}
            consumer = mq.consumer(group, topics=[topic], protocol=protocol, auto_offset_reset="earliest", **how)
            assert isinstance(consumer, GroupConsumer)
            return stack.enter_context(consumer)

        slow, quick = member(), member()
        _share(slow, quick)
        third, began_s = member(), time.monotonic()
        asked = aside.submit(_waited_for, mq, group)
        given_s = [began_s]
        while time.monotonic() - began_s < _TAKES_S:
            if _works(quick):
                given_s.append(time.monotonic())
            _works(third)
            time.sleep(0.01)
        given_s.append(time.monotonic())
        longest_s = max(after - before for before, after in pairwise(given_s))
        return Slowed(longest_s * 1000, asked.result(_PATIENCE_S), slow.member_id)


def _waited_for(mq: Connection, group: str) -> list[str]:
    """Members, while the message is worked on."""
    time.sleep(MAX_POLL_MS / 4000)
    return mq.groups.describe(group).waits_for


def _share(slow: GroupConsumer, quick: GroupConsumer) -> None:
    """Until both have partitions; the last thing that happens is that the slow one is given a message."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not (slow.assignment() and quick.assignment() and not slow.may_get_some()):
        if time.monotonic() > deadline_s:
            raise CheckFailed("Two members of a group have not shared its partitions.")
        _works(quick)
        slow.poll(1)
    slow.poll(1, timeout_ms=1_000)


def _works(consumer: GroupConsumer) -> bool:
    """Whether it was given a message, which it is done with."""
    batch = consumer.poll(1)
    if batch:
        consumer.commit(batch)
    return bool(batch)


def check_slow(found: Mapping[str, Slowed]) -> Checked:
    """Only in the classic protocol the others stand still, until its member is out, and it is known for whom."""
    classic, others = found["classic"], [found[name].stood_still_ms for name in PROTOCOLS[1:]]
    stops_all = classic.stood_still_ms > max(MAX_POLL_MS / 2, *others)
    return checks.check(
        "A message that takes long stops the other members of a classic group, and of no other",
        stops_all and classic.waited_for == [classic.slow],
        ", ".join(f"{name} {one.stood_still_ms:,.0f} ms" for name, one in found.items())
        + f"; classic waited for {', '.join(classic.waited_for)}",
    )
