"""Defaults of a namespace for topics, groups and consumers: applied at creation, and kept afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.served import served

from lakemq.engine.namespace.config import ENGINE, EngineConfig, build_limits, load_config
from lakemq.engine.protocol.parameters import GROUP, MEMBER, TOPIC
from lakemq.errors import InvalidConfig

DEFAULTS = {
    "retention.ms": 86_400_000,
    "delay.levels": "1000,2000",
    "max.redelivery.count": 2,
    "group.protocol": "cooperative",
    "session.timeout.ms": 12_000,
    "heartbeat.interval.ms": 1_000,
    "auto.offset.reset": "latest",
}


@pytest.mark.extended
@pytest.mark.slow
def test_topics_groups_and_members_get_the_defaults_when_they_are_made(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        old = mq.topics.create("old")
        assert old.settings["retention.ms"] == TOPIC["retention.ms"].default
    with served(tmp_path, **DEFAULTS) as mq:
        assert mq.topics.describe("old").config == {}
        assert mq.topics.create("new", config={"ttl.ms": 5}).config == {
            "retention.ms": 86_400_000,
            "delay.levels": [1000, 2000],
            "ttl.ms": 5,
        }
        assert mq.topics.create("own", config={"retention.ms": -1}).settings["retention.ms"] == -1
        mq.groups.create("made", {"nack.order": "none"})
        with mq.consumer("joined", topics=["new"]) as consumer:
            (member,) = mq.groups.members("joined")
            assert member.session_timeout_ms == 12_000
            assert mq.groups.describe("joined").config["group.protocol"] == "cooperative"
            assert type(consumer).__name__ == "GroupConsumer"
        with mq.consumer("joined", topics=["new"], session_timeout_ms=20_000):
            (member,) = mq.groups.members("joined")
            assert member.session_timeout_ms == 20_000
        group_config = mq.groups.describe("made").config
        assert group_config == {"max.redelivery.count": 2, "group.protocol": "cooperative", "nack.order": "none"}
    # existing objects keep them under a sequencer with other settings; a setting that is reset takes the new
    # default
    with served(tmp_path, **{"retention.ms": 1_000}) as mq:
        assert mq.topics.describe("new").settings["retention.ms"] == 86_400_000
        assert mq.groups.describe("made").config == group_config
        assert mq.topics.alter("new", {"retention.ms": None, "ttl.ms": None}).config == {
            "retention.ms": 1_000,
            "delay.levels": [1000, 2000],
        }
        mq.groups.alter("made", {"max.redelivery.count": None})
        assert mq.groups.describe("made").settings["max.redelivery.count"] == 5


@pytest.mark.slow
def test_a_default_dead_letter_topic_is_none_of_its_own(tmp_path: Path) -> None:
    with served(tmp_path, **{"dead.letter.topic": "given-up"}) as mq:
        with pytest.raises(InvalidConfig, match="given-up"):
            mq.topics.create("orders")
        assert mq.topics.create("given-up").config == {}
        assert mq.topics.create("orders").config == {"dead.letter.topic": "given-up"}


def test_a_file_may_set_them(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in DEFAULTS.items()) + "lease.ms: 5000\n")
    config = load_config(str(file))
    assert config["lease.ms"] == 5000
    assert config.topic_defaults == {"retention.ms": 86_400_000, "delay.levels": (1000, 2000)}
    assert config.group_defaults == {"max.redelivery.count": 2, "group.protocol": "cooperative"}
    assert config.member_defaults["session_timeout_ms"] == 12_000
    assert build_limits(config).topic_defaults == config.topic_defaults
    assert len(config) == len(ENGINE.declared)


@pytest.mark.parametrize("bad", ["retention.ms", "max.redelivery.count", "session.timeout.ms"])
def test_a_bad_default_is_named(bad: str) -> None:
    with pytest.raises(InvalidConfig, match=bad):
        EngineConfig({bad: "soon"})


def test_no_setting_means_two_things() -> None:
    assert not TOPIC.declared.keys() & (GROUP.declared.keys() | MEMBER.declared.keys() | ENGINE.declared.keys())
    assert not MEMBER.declared.keys() & (GROUP.declared.keys() | ENGINE.declared.keys())
    # the engine's value applies where a group has none
    assert GROUP.declared.keys() & ENGINE.declared.keys() == {"offsets.retention.ms"}
