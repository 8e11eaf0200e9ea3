"""The doctor finds each problem and says how to mend it. In a healthy namespace it finds nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from lawless_writer import ignore_protocol
from typer.testing import CliRunner

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.jobs import jars
from lakemq.jobs.cli import app
from lakemq.jobs.doctor import examination as doctor
from lakemq.jobs.doctor import namespace as doctor_namespace
from lakemq.jobs.doctor.examination import examine
from lakemq.jobs.doctor.namespace import Finding, check_sequencer, make_checks
from lakemq.tables.specs.messages import MESSAGES, REJECTED_ROWS
from lakemq.tables.storage.object_stores.files import LocalFiles

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_to_give_up")]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace with a topic and a message, without a sequencer."""
    path = tmp_path_factory.mktemp("doctor") / "mq"
    with lakemq.connect(str(path), create=True) as mq, mq.serving():
        mq.topics.create("t")
        mq.publish("t", pa.table({"value": ["1"]}))
    return path


@pytest.fixture
def path(healthy: Path, tmp_path: Path) -> Path:
    """The path of a copy of the healthy namespace, which a test may damage."""
    return Path(shutil.copytree(healthy, tmp_path / "mq"))


@pytest.fixture
def mq(path: Path) -> Iterator[Connection]:
    with Connection(open_namespace(str(path))) as connection:
        yield connection


def find_problems(path: Path | None, **options: Any) -> dict[str, Finding]:
    """Return the findings that are not ok, by their checks."""
    return {f.check: f for f in examine(None if path is None else str(path), spark=False, **options) if not f.ok}


def test_a_healthy_namespace_has_no_findings(healthy: Path) -> None:
    result = CliRunner().invoke(app, ["--path", str(healthy), "doctor", "--no-spark", "--output", "json"])
    findings = [json.loads(line) for line in result.stdout.splitlines()]
    assert {f["state"] for f in findings} == {"ok"}
    assert result.exit_code == 0
    with lakemq.connect(str(healthy)) as mq:
        assert {f["check"] for f in findings} == {"versions", "settings", *make_checks(mq, mq.observer())}
    assert not (healthy / "probe").exists()


def test_groups_whose_offsets_expire_soon_are_a_finding(path: Path) -> None:
    with lakemq.connect(str(path)) as mq, mq.serving():
        for group, retention_ms in (("soon", 1), ("sooner", 1), ("late", 86_400_000), ("never", -1)):
            mq.groups.create(group, {"offsets.retention.ms": retention_ms})
            with mq.consumer(group, assign=["t"]) as consumer:
                consumer.commit({("t", 0): 1})
    (finding,) = find_problems(path).values()
    assert (finding.check, finding.found.count(" at "), len(finding.commands)) == ("groups", 2, 2)
    for group in ("soon", "sooner"):
        assert f"{group} at 2" in finding.found
        assert ["groups", "alter", group, "--config", "offsets.retention.ms=-1"] in [*finding.commands]


def test_a_finding_is_exit_code_1_and_says_how_to_mend_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--path", str(tmp_path / "none"), "doctor", "--no-spark"])
    assert result.exit_code == 1
    assert result.stderr == "1 finding\n"
    (line,) = [line for line in result.stdout.splitlines() if "FINDING" in line]
    assert line.startswith("namespace")
    assert f"lakemq --path {tmp_path}/none init" in line


# -- the machine ----------------------------------------------------------------------------------------


def test_missing_java_and_jars_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("LAKEMQ_JARS", str(tmp_path))
    findings = {f.check: f for f in examine(None) if not f.ok}
    assert set(findings) == {"java", "jars"}
    assert f"none in JAVA_HOME={tmp_path}" in findings["java"].found
    assert findings["jars"].advice.endswith("-m lakemq.jobs.jars")
    assert not find_problems(None)


def test_a_version_out_of_range_is_named_with_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.metadata.version
    wrong = {"pandas": "3.0.1", "delta-spark": "4.4.1"}
    monkeypatch.setattr(doctor.metadata, "version", lambda name: wrong.get(name) or real(name))
    finding = doctor.check_versions()
    assert not finding.ok
    assert "pandas 3.0.1" in finding.found
    assert "pandas<3,>=2.2" in finding.advice or "pandas>=2.2,<3" in finding.advice
    assert f"delta-spark=={jars.DELTA_VERSION}" in finding.advice


# -- the namespace --------------------------------------------------------------------------------------


def test_dead_leader_with_a_lease_is_a_finding(path: Path, mq: Connection) -> None:
    sequencer = mq.sequencer()
    assert sequencer.try_lead()
    assert not find_problems(path)
    last = max((path / "steps").iterdir())
    long_ago_s = time.time() - 3600
    os.utime(last, (long_ago_s, long_ago_s))
    name = mq.namespace.mailbox.put("client", 1, b"letter", int(time.time() * 1000))
    os.utime(path / "mailbox" / name, (long_ago_s, long_ago_s))
    findings = find_problems(path)
    assert set(findings) == {"sequencer", "mailbox"}
    assert findings["mailbox"].to_record("a b")["advice"].endswith("start one. Command: `lakemq --path 'a b' serve`.")
    assert f"{sequencer.name} leads with epoch" in findings["sequencer"].found
    assert "seems to be dead" in findings["sequencer"].advice


DIES = """
import os, signal, sys, lakemq
mq = lakemq.connect(sys.argv[1])
assert mq.sequencer().try_lead()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.extended
def test_killed_leader_is_a_finding_before_its_lease_ends(path: Path, mq: Connection) -> None:
    ended = subprocess.run([sys.executable, "-c", DIES, str(path)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    mq.namespace.mailbox.put("client", 1, b"letter", int(time.time() * 1000))
    finding = check_sequencer(mq, mq.observer())
    assert not finding.ok
    assert finding.found.startswith("no sequencer leads: ")
    assert (finding.advice, finding.commands) == ("Letters wait. Start a sequencer.", (("serve",),))
    result = CliRunner().invoke(app, ["--path", str(path), "doctor", "--no-spark"])
    assert result.exit_code == 1


def test_other_files_in_the_mailbox_are_a_finding_until_they_are_deleted(path: Path) -> None:
    (path / "mailbox").mkdir(exist_ok=True)
    for i in range(7):
        (path / "mailbox" / f"notes{i}\x1b.txt").write_text("hello")
    findings = find_problems(path)
    assert set(findings) == {"aliens"}
    assert "\\x1b" in findings["aliens"].found
    assert findings["aliens"].found.endswith("and 2 more")
    for file in (path / "mailbox").iterdir():
        file.unlink()
    assert not find_problems(path)


def test_unreadable_letters_are_a_finding(path: Path) -> None:
    (path / "mailbox").mkdir(exist_ok=True)
    for i in range(7):
        name = path / "mailbox" / f"{time.time_ns() // 10**9}000-c{i}-0000000001"
        os.mkfifo(name) if i % 2 else name.symlink_to(name)
    findings = find_problems(path)
    assert "letters" in findings
    assert "-c0-0000000001 (Too many levels of symbolic links)" in findings["letters"].found
    assert "-c1-0000000001 (not a regular file)" in findings["letters"].found
    assert findings["letters"].found.endswith("and 2 more")
    assert findings["letters"].commands == [["init", "--shared-with-group"]]


def test_commits_by_others_are_a_finding(path: Path, mq: Connection) -> None:
    with mq.serving():
        mq.publish("t", pa.table({"value": ["2"]}))
    commit = {"timestamp": 0, "operation": "WRITE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}
    (path / "groups/_delta_log/00000000000000000001.json").write_text(json.dumps({"commitInfo": commit}) + "\n")
    with ignore_protocol(path / "rejected_rows") as copy:
        write_deltalake(copy, REJECTED_ROWS.empty(), mode="overwrite")
    with ignore_protocol(path / "segments") as copy:
        segments = DeltaTable(copy)
        segments.optimize.compact()
        segments.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    findings = find_problems(path)
    assert set(findings) == {"foreign commits"}
    text = findings["foreign commits"].found
    assert "groups version 1: WRITE by Apache-Spark/4.2.0 Delta-Lake/4.4.0 at 1970-01-01T00:00:00.000Z" in text
    assert "rejected_rows version 1: WRITE (Overwrite) by delta-rs" in text
    assert "segments version 3: OPTIMIZE by delta-rs" in text
    assert "VACUUM END by delta-rs" in text
    assert "Leave maintenance to LakeMQ" in findings["foreign commits"].advice


def test_commits_of_spark_to_the_inbox_are_no_finding(path: Path) -> None:
    commit = {"timestamp": 0, "operation": "WRITE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}
    (path / "inbox/_delta_log/00000000000000000001.json").write_text(json.dumps({"commitInfo": commit}) + "\n")
    assert not find_problems(path)


def test_the_files_of_a_deleted_topic_are_not_missed(path: Path, mq: Connection) -> None:
    with mq.serving():
        mq.topics.delete("t")
    for file in (path / MESSAGES.name).glob("*.parquet"):
        file.unlink()
    assert not find_problems(path)


@pytest.mark.extended
@pytest.mark.parametrize("offset_s", [-3600, 3600])
def test_clock_that_differs_from_the_stores_is_a_finding(
    path: Path, monkeypatch: pytest.MonkeyPatch, offset_s: int
) -> None:
    real = time.time_ns
    monkeypatch.setattr(doctor_namespace.time, "time_ns", lambda: real() + offset_s * 10**9)
    finding = find_problems(path)["clock"]
    assert f"{-offset_s:+.1f} s off this clock" in finding.found.replace("3599.9", "3600.0").replace("3600.1", "3600.0")
    assert "time server" in finding.advice


def test_doctor_finds_a_journal_ahead_of_the_clock(path: Path) -> None:
    """The steps were decided when the store's time was a day ahead."""

    class Tomorrow(LocalFiles):
        def time_ms(self) -> int:
            return super().time_ms() + 86_400_000

    with Connection(replace(open_namespace(str(path)), files=Tomorrow(str(path)))) as ahead:
        ahead.step_until_idle()
    findings = find_problems(path)
    assert set(findings) == {"clock"}
    assert "s ahead of this clock" in findings["clock"].found


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(path: Path) -> None:
    for file in (path / "watermarks").glob("*.parquet"):
        os.truncate(file, 10)
    findings = find_problems(path)
    assert "sequencer" in findings
    assert "foreign commits" not in findings
    assert all("\n" not in f.found for f in findings.values())
