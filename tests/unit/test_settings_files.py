"""Settings files: each content is either accepted, or refused in one line that names the key or the file."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unit.served import served

from lakemq.engine.namespace.config import ENGINE, EngineConfig, load_config
from lakemq.engine.protocol.parameters import GROUP, MEMBER, TOPIC
from lakemq.errors import InvalidConfig
from lakemq.jobs.cli import app

BILLION_LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
    f"{chr(c)}: &{chr(c)} [{', '.join([f'*{chr(c - 1)}'] * 9)}]\n" for c in range(ord("c"), ord("z"))
)
BAD = {
    "unknown": (b"lease.m: 1", "lease.m"),
    "kafka": (b"min.insync.replicas: 2", "min.insync.replicas is no setting of LakeMQ"),
    "word": (b"lease.ms: soon", "lease.ms"),
    "date": (b"lease.ms: 2024-01-01", "lease.ms"),
    "bad date": (b"lease.ms: 2024-13-45", "month"),
    "list": (b"lease.ms: [1]", "lease.ms"),
    "object": (b"lease.ms: !!python/object/apply:os.getcwd []", "Cannot read"),
    "out of range": (b"lease.ms: 18446744073709551616", "lease.ms"),
    "number as key": (b"5: 1", "A key is not text"),
    "twice": (b"lease.ms: 1000\nlease.ms: 1000", "lease.ms in line 2"),
    "as long as answers are kept": (
        b"request.timeout.ms: 60000\nclient.expiration.ms: 60000",
        "request.timeout.ms must be below client.expiration.ms",
    ),
    "nested": (b"engine:\n  tick.ms: 1", "engine"),
    "not a mapping": (b"- a", "holds no settings"),
    "utf-16": ("lease.ms: 1000".encode("utf-16"), "UTF-8"),
    "broken": (b"lease.ms: [", "Cannot read"),
    "deep": (b"[" * 10_000, "nested in more than 64 levels"),
    "large": (b"#" * (1 << 20) + b"#", "more than 1048576 characters"),
    "laughs": (BILLION_LAUGHS.encode(), "more than 100000 values"),
}


@pytest.mark.slow
def test_bad_files_are_refused_in_one_line_that_names_what_is_wrong(tmp_path: Path) -> None:
    file, wrong = tmp_path / "lakemq.yaml", []
    for kind, (text, expected) in BAD.items():
        file.write_bytes(text)
        result = CliRunner().invoke(app, ["--path", str(tmp_path / "mq"), "--conf", str(file), "topics", "list"])
        is_one_line = re.fullmatch(r"INVALID_CONFIG: .{,3000}\n", result.stderr) is not None
        is_named = f"In {file}: " in result.stderr and expected in result.stderr
        if (result.exit_code, result.stdout) != (3, "") or not is_one_line or not is_named:
            wrong.append((kind, result.exit_code, result.output))
        with pytest.raises(InvalidConfig):
            load_config(str(file))
    assert wrong == []


def test_good_files_are_accepted(tmp_path: Path) -> None:
    file, values = tmp_path / "lakemq.yaml", []
    for text in ("", "# nothing\n", "lease.ms: '1000'", "\ufefflease.ms: 1000", "lease.ms: 0x3e8"):
        file.write_text(text, encoding="utf-8")
        values.append(load_config(str(file))["lease.ms"])
    assert values == [10_000, 10_000, 1000, 1000, 1000]


def test_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "none"), "a\0b"):
        with pytest.raises(InvalidConfig, match="Cannot read"):
            load_config(name)


# Defaults of a namespace for topics, groups and consumers: applied at creation, and kept afterwards.

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
def test_default_dead_letter_topic_has_no_dead_letter_topic(tmp_path: Path) -> None:
    with served(tmp_path, **{"dead.letter.topic": "given-up"}) as mq:
        with pytest.raises(InvalidConfig, match="given-up"):
            mq.topics.create("orders")
        assert mq.topics.create("given-up").config == {}
        assert mq.topics.create("orders").config == {"dead.letter.topic": "given-up"}


@pytest.mark.parametrize("bad", ["retention.ms", "max.redelivery.count", "session.timeout.ms"])
def test_a_bad_default_is_named(bad: str) -> None:
    with pytest.raises(InvalidConfig, match=bad):
        EngineConfig({bad: "soon"})


def test_no_name_is_a_setting_of_two_kinds() -> None:
    assert not TOPIC.declared.keys() & (GROUP.declared.keys() | MEMBER.declared.keys() | ENGINE.declared.keys())
    assert not MEMBER.declared.keys() & (GROUP.declared.keys() | ENGINE.declared.keys())
    # the engine's value applies where a group has none
    assert GROUP.declared.keys() & ENGINE.declared.keys() == {"offsets.retention.ms"}
