"""Groups are deleted, and their offsets reset, with a sequencer that decides."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from unit.served import new_name, new_topic

from lakemq.engine.client.connection import Connection
from lakemq.errors import GroupIdNotFound, InvalidRequest, InvalidTopic, UnknownTopicOrPartition

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def topic(mq: Connection) -> str:
    """A topic of two partitions with five messages each, a minute apart."""
    name = new_topic(mq, 2)
    times = [NOON + timedelta(minutes=n // 2) for n in range(10)]
    rows = {"value": [f"v{n}" for n in range(10)], "partition": [0, 1] * 5, "timestamp": times}
    mq.publish(name, pa.table(rows))
    return name


@pytest.fixture
def group(mq: Connection, topic: str) -> str:
    """A group that has committed offset 3 of the first partition, and nothing of the other."""
    name = new_name("g")
    with mq.consumer(name, assign=[(topic, 0)]) as consumer:
        consumer.commit({(topic, 0): 3})
    return name


def reset_offsets(mq: Connection, *arguments: Any, **options: Any) -> dict[int, tuple[int | None, int | None]]:
    return {
        offset.partition: (offset.before, offset.after) for offset in mq.groups.reset_offsets(*arguments, **options)
    }


def test_reset_moves_the_offset_to_each_kind_of_target(mq: Connection, topic: str, group: str) -> None:
    after_by_options: list[tuple[dict[str, Any], int]] = [
        ({"to": "latest"}, 5),
        ({"to": 2}, 2),
        ({"to": 100}, 5),
        ({"shift_by": -2}, 1),
        ({"shift_by": 1}, 4),
        ({"to": NOON + timedelta(minutes=2)}, 2),
        ({"to": NOON + timedelta(minutes=2, microseconds=1)}, 3),
        ({"to": NOON + timedelta(days=1)}, 5),
        ({"to": timedelta(days=30_000)}, 0),
        ({"to": timedelta()}, 5),
    ]
    with mq.consumer(group, assign=[(topic, 0)]) as consumer:
        for options, after in after_by_options:
            consumer.commit({(topic, 0): 3})
            assert reset_offsets(mq, group, **options) == {0: (3, after)}, options
            assert consumer.committed()[topic, 0].offset == after


def test_reset_to_a_time_skips_no_message_published_meanwhile(
    mq: Connection, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = mq.groups._offsets_for_times

    def publish_late(name: str, times: Any) -> Any:
        offsets = look(name, times)
        mq.publish(topic, pa.table({"value": ["late"], "partition": [0], "timestamp": [NOON + timedelta(days=1)]}))
        return offsets

    monkeypatch.setattr(mq.groups, "_offsets_for_times", publish_late)
    assert reset_offsets(mq, group, to=NOON + timedelta(hours=1)) == {0: (3, 5)}


def test_bad_resets_are_refused(mq: Connection, topic: str, group: str) -> None:
    reset = mq.groups.reset_offsets
    for arguments in ({}, {"to": "earliest", "shift_by": 1}, {"to": "first"}, {"to": -1}, {"to": timedelta(-1)}):
        with pytest.raises(InvalidRequest):
            reset(group, **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        reset(group, topic, {(topic, 0): 1})
    with pytest.raises(InvalidTopic):
        reset(group, [3], "earliest")  # type: ignore[list-item]
    missing_group = new_name("nobody")
    for to in ("earliest", NOON):
        with pytest.raises(GroupIdNotFound):
            reset(missing_group, to=to)
        with pytest.raises(UnknownTopicOrPartition):
            reset(group, "no-topic", to)
