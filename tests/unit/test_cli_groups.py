"""`lakemq groups delete`, `delete-offsets`, `reset-offsets`, and what lists groups."""

import json
import os
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result
from unit.served import Lakemq, new_name, new_topic, run_lakemq, served

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.parameters import GROUP
from lakemq.jobs.cli import app
from lakemq.tables.storage.coordination.step_objects import step_name

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(mq: Connection) -> Lakemq:
    return partial(run_lakemq, mq.namespace.path, "groups")


@pytest.fixture
def topic(mq: Connection) -> str:
    name = new_topic(mq, 2)
    mq.publish(name, pa.table({"value": [f"v{n}" for n in range(10)], "partition": [0, 1] * 5}))
    return name


def committed(mq: Connection, topic: str, *offsets: int) -> str:
    """A new group that has committed these."""
    group = new_name("g")
    with mq.consumer(group, assign=[topic]) as consumer:
        consumer.commit({(topic, partition): offset for partition, offset in enumerate(offsets)})
    return group


def offsets(mq: Connection, group: str) -> list[int | None]:
    return [partition.committed_offset for partition in mq.groups.lag(group)]


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_reset_offsets_changes_nothing_without_execute(mq: Connection, lake: Lakemq, topic: str) -> None:
    group = committed(mq, topic, 3, 4)
    output = lake("reset-offsets", group, "--all-topics", "--to-earliest", "--output", "json")
    assert [(row["partition"], row["before"], row["after"]) for row in rows(output)] == [(0, 3, 0), (1, 4, 0)]
    assert "--execute" in output.stderr
    assert offsets(mq, group) == [3, 4]
    done = lake("reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    assert "--execute" not in done.stderr
    assert offsets(mq, group) == [0, 0]


def test_offsets_of_one_partition_are_reset(mq: Connection, lake: Lakemq, topic: str) -> None:
    for options, offset in (
        (["--to-latest"], 5),
        (["--to-offset", "2"], 2),
        (["--shift-by", "-1"], 3),
        (["--to-datetime", "1970-01-01T00:00:00Z"], 0),
        (["--by-duration", "P1D"], 0),
    ):
        group = committed(mq, topic, 3, 4)
        lake("reset-offsets", group, "--topic", f"{topic}:1", *options, "--execute")
        assert offsets(mq, group) == [3, offset], options


def test_exported_offsets_are_read_again(mq: Connection, lake: Lakemq, topic: str, tmp_path: Path) -> None:
    one, two = committed(mq, topic, 3, 4), committed(mq, topic, 1)
    file = tmp_path / "offsets.csv"
    file.write_text(lake("reset-offsets", one, two, "--all-topics", "--shift-by", "0", "--export").stdout)
    assert file.read_text().splitlines() == [f"{one},{topic},0,3", f"{one},{topic},1,4", f"{two},{topic},0,1"]
    lake("reset-offsets", one, two, "--all-topics", "--to-latest", "--execute")
    lake("reset-offsets", one, two, "--from-file", str(file), "--execute")
    assert (offsets(mq, one), offsets(mq, two)) == ([3, 4], [1])
    lines = tmp_path / "offsets.jsonl"
    lines.write_text(
        lake("reset-offsets", one, "--all-topics", "--to-offset", "2", "--export", "--output", "json").stdout
    )
    lake("reset-offsets", one, "--from-file", str(lines), "--execute")
    assert offsets(mq, one) == [2, 2]
    file.write_text(lake("reset-offsets", one, "--all-topics", "--to-earliest", "--export").stdout)
    assert file.read_text().splitlines() == [f"{topic},0,0", f"{topic},1,0"]
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as spreadsheets do
    lake("reset-offsets", one, "--from-file", str(file), "--execute")
    assert offsets(mq, one) == [0, 0]


def test_files_that_hold_no_offsets_are_named(lake: Lakemq, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    for line in ("t,0", "t,x,1", "t,0,1\nt,0,2", "other,t,0,1", "g,t,0,1,2", "\ud800"):
        file.write_bytes(line.encode("utf-8", "surrogatepass"))
        refusal = lake("reset-offsets", "g", "--from-file", str(file), code=2).stderr
        assert "offsets.csv" in re.sub(r"[\s│]", "", refusal), line


def test_wrong_usage_of_reset_offsets_is_exit_code_2(lake: Lakemq) -> None:
    for arguments in (
        "g --to-earliest",
        "g --all-topics",
        "g --all-topics --to-earliest --to-latest",
        "g --all-topics --topic t --to-latest",
        "--all-topics --to-latest",
        "g --all-groups --all-topics --to-latest",
        "g --all-topics --to-latest --execute --dry-run",
        "g --all-topics --by-duration '1 day'",
        "g --all-topics --by-duration P",
        "g --all-topics --to-datetime noon",
        "g --topic t:0,x --to-latest",
        f"g --topic t:{'9' * 5000} --to-latest",
        "g --from-file no-such-file",
    ):
        lake("reset-offsets", *shlex.split(arguments), code=2)


def test_reset_of_several_groups_goes_on_after_a_missing_one(mq: Connection, lake: Lakemq, topic: str) -> None:
    one, two = committed(mq, topic, 3), committed(mq, topic, 4)
    output = lake("reset-offsets", one, "nobody", two, "--all-topics", "--to-earliest", "--execute", code=1)
    assert [line.split() for line in output.stdout.splitlines()[1:]] == [
        [one, topic, "0", "3", "0"],
        [two, topic, "0", "4", "0"],
    ]
    assert "GROUP_ID_NOT_FOUND" in output.stderr


@pytest.mark.extended
def test_groups_list_selects_groups_by_state(mq: Connection, lake: Lakemq, topic: str) -> None:
    empty, group = committed(mq, topic, 3), new_name("g")
    with mq.consumer(group, topics=[topic], protocol="cooperative") as member:
        while len(member.assignment()) < 2:
            member.poll()
        stable = rows(lake("list", "--state", "Stable", "--output", "json"))
        assert [(one["group"], one["state"]) for one in stable] == [(group, "Stable")]
        assert empty in {row["group"] for row in rows(lake("list", "--state", "Empty", "--output", "json"))}
        lake("list", "--state", "stable", code=2)
        described = {row["group"]: row for row in rows(lake("describe", "--all-groups", "--output", "json"))}
        assert (described[group]["members"], described[empty]["members"]) == (1, 0)
        (member,) = rows(lake("describe", group, empty, "--members", "--output", "json"))
        assert (member["group"], member["partitions"]) == (group, [f"{topic}-0", f"{topic}-1"])
        header, first, *_ = lake("describe", group, empty, "--state", "--output", "csv").stdout.splitlines()
        assert header == "group,coordinator,assignor,state,members,leader,generation,waits_for,delay_left_ms"
        assert first.startswith(f"{group},")
        assert ",Stable,1," in first
        lake("describe", group, "--state", "--members", code=2)
        named = rows(lake("describe", group, empty, "--output", "json"))
        assert [one["group"] for one in named] == [group, empty]


def test_group_describe_shows_the_settings_and_which_are_set(mq: Connection, lake: Lakemq, topic: str) -> None:
    name, bare = new_name("g"), committed(mq, topic, 1)
    mq.groups.create(name, {"max.redelivery.count": 2, "nack.order": "none"})
    described = mq.groups.describe(name)
    assert described.config == {"max.redelivery.count": 2, "nack.order": "none"}
    assert described.settings == {**GROUP.defaults(), **described.config}
    (record,) = rows(lake("describe", name, "--output", "json"))
    assert (record["config"], record["settings"]) == (described.config, described.settings)
    table = lake("describe", name, "--settings", "--output", "csv").stdout.splitlines()
    assert table[0] == "group,setting,value,set"
    assert f"{name},max.redelivery.count,2,yes" in table
    assert f"{name},max.handoff.ms,3000,default" in table
    mq.groups.alter(name, {"max.redelivery.count": None, "group.protocol": "classic"})
    described = mq.groups.describe(name)
    assert described.config == {"nack.order": "none", "group.protocol": "classic"}
    assert (described.settings["max.redelivery.count"], described.settings["group.assignor"]) == (5, "range")
    assert mq.groups.describe(bare).config == {}
    lake("describe", name, "--settings", "--members", code=2)


def test_figures_that_are_old_because_the_leader_is_silent_come_with_a_warning(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        topic = new_topic(mq)
        group = committed(mq, topic, 0)
        path = mq.namespace.path
        assert [read_warning(path, command, group) for command in ("describe", "lag")] == ["", ""]
    with lakemq.connect(path) as mq:
        sequencer = mq.sequencer()
        assert sequencer.try_lead()
        last_step = Path(path, step_name(sequencer.state.step))
        put_s = last_step.stat().st_mtime - 60
        os.utime(last_step, (put_s, put_s))
        for command in ("describe", "lag"):
            assert f"The leader {sequencer.name} is silent: its lease is 10 s." in read_warning(path, command, group)
        sequencer.resign()


def read_warning(path: str, command: str, group: str) -> str:
    result = CliRunner().invoke(app, ["--path", path, "--output", "json", "groups", command, group])
    assert result.exit_code == 0
    assert {json.loads(line)["group"] for line in result.stdout.splitlines()} == {group}
    return result.stderr
