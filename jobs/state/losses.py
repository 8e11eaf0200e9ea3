"""Find what retention deletes before groups have read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakemq.engine.client.leadership import find_store_now_ms
from lakemq.engine.client.topics import parse_settings
from lakemq.engine.maintenance.retention import find_outgrown

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection

_MOST_GROUPS = 5


def name_losers(mq: Connection, topic: str, settings: Mapping[str, Any]) -> str:
    """Return the groups with messages that retention deletes unread under these settings, as part of a sentence.

    settings: changes as a user writes them. The text is empty if no group loses messages.
    """
    if not any(name.startswith("retention.") for name in settings):
        return ""
    losses = sorted(count_losses(mq, topic, parse_settings(settings)).items(), key=lambda loss: -loss[1])
    named = [f"{group} ({count:,})" for group, count in losses[:_MOST_GROUPS]]
    more = len(losses) - len(named)
    return ", ".join(named) + (f" and {more} more groups" if more else "")


def count_losses(mq: Connection, name: str, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return group -> how many offsets it has not read that retention deletes at once under changed settings.

    Args:
        name: the topic.
        settings: changes; None as a value resets a setting to its default.

    Raises UnknownTopicOrPartition.
    """
    topic = mq.state().topic(name)
    config = {key: value for key, value in {**topic.config, **settings}.items() if value is not None}
    changed = replace(topic, config=config)
    if changed.setting("retention.waits.for.groups"):
        return {}
    cuts: dict[int, int] = {}
    for outgrown in find_outgrown(mq.namespace.store, {topic.topic_id: changed}, find_store_now_ms(mq.namespace.files)):
        for kept in (outgrown.by_age, outgrown.by_size):
            cuts |= {partition: max(first, cuts.get(partition, 0)) for partition, first in kept.items()}
    losses: dict[str, int] = {}
    for group in mq.groups.list() if cuts else ():
        for lag in mq.groups.lag(group):
            if lag.topic == name:
                first = max(lag.next_offset, int(topic.log_starts[lag.partition]))
                losses[group] = losses.get(group, 0) + min(lag.lag, max(0, cuts.get(lag.partition, 0) - first))
    return {group: count for group, count in losses.items() if count}
