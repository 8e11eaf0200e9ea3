"""The segments of dead letters, and of messages that went back to their topics."""

from typing import Any

import pytest
from golden.story import Story
from protocol_harness import Harness

from lakemq.engine.protocol.values.dead_letters import DeadLettersJudged, SettleDeadLetters


def bury_message(**config: str) -> Story:
    """Return a story in which the only message of a topic is a dead letter that waits to go back."""
    story = Story()
    for line in (
        {"create": {"t": 1}, "config": config},
        {"publish": {"t-0": 1}},
        {"join": "C1", "config": {"group.protocol": "queue"}},
        {"acquire": "C1"},
        {"reject": {"t-0": 0}},
        {"wait_ms": 5_000},
        {"bury": "t-0"},
        {"redrive": {"t.dlq-0": 0}},
        {"wait_ms": 5_000},
        {"bury": "t.dlq-0", "group": ""},
    ):
        story.tell(line)
    return story


@pytest.mark.parametrize(("stamps", "is_stamped"), [("LogAppendTime", True), ("CreateTime", False)])
def test_redriven_segment_has_no_transaction_and_the_time_that_its_topic_says(stamps: str, is_stamped: bool) -> None:
    story = bury_message(**{"message.timestamp.type": stamps})
    first, letter, redriven = story.mq.segments()
    assert [segment["transactional"] for segment in (first, letter, redriven)] == [False] * 3
    now_ms = story.mq.state.now_ms

    def list_times(segment: dict[str, Any]) -> list[Any]:
        return [segment[name] for name in ("min_timestamp_ms", "max_timestamp_ms", "append_time_ms")]

    assert list_times(letter) == list_times(first), "a dead letter is the message that it was"
    assert list_times(redriven) == ([now_ms] * 3 if is_stamped else list_times(first))
    assert (letter["decided_at_ms"], redriven["decided_at_ms"]) == (now_ms - 5_000, now_ms)


@pytest.mark.parametrize(("config", "ttl_ms"), [({}, None), ({"ttl.ms": "100000"}, 100_000)])
def test_time_to_live_of_a_redriven_message_begins_again(config: dict[str, str], ttl_ms: int | None) -> None:
    story = bury_message(**config)
    redriven = story.mq.segments()[-1]
    assert (redriven["origin"], redriven["ttl_from_ms"], redriven["ttl_ms"]) == (
        "redrive",
        story.mq.state.now_ms,
        ttl_ms,
    )


def test_redrive_of_a_partition_without_messages_finds_none() -> None:
    mq = Harness()
    topic_id = mq.create("t.dlq")
    assert mq.one(SettleDeadLetters("t.dlq", topic_id, {0: []})) == DeadLettersJudged(0)
