"""The table `admin_log` and the view `admin_changes` say who changed what, and when, each change once."""

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from faulty_files import FaultyFiles
from golden.story import Story
from unit.served import CONFIG, run_sql, served, until, wait_for_files

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.maintenance import housekeeping, retention
from lakemq.engine.namespace.config import load_config
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.protocol.rows.admin_log import build_admin_log
from lakemq.engine.protocol.values.groups import JoinGroup, LeaveGroup
from lakemq.engine.protocol.values.journal import StepBatch
from lakemq.engine.protocol.values.state import State
from lakemq.errors import NamespaceError
from lakemq.tables.specs.journal import ADMIN_LOG, JOURNAL, WATERMARKS
from lakemq.tables.storage.delta.store import Store


@pytest.mark.slow
def test_admin_log_names_the_client_of_each_requested_change(tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq, mq.serving():
        mq.topics.create("t")
        mq.publish("t", pa.table({"value": ["a", "b"]}))
        mq.topics.alter("t", {"retention.ms": 5_000_000_000})
        with mq.consumer("by-member", topics=["t"], protocol="queue") as consumer:
            consumer.poll(timeout_ms=100)
            mq.groups.remove_members("by-member", [consumer.member_id])
        mq.groups.create("by-request", {"group.protocol": "classic"})
        with mq.consumer("by-request", assign=["t"]) as reader:
            reader.commit({("t", 0): 1})
        mq.groups.reset_offsets("by-request", ["t"], "earliest")
        mq.topics.delete_records("t", {0: 1})
        with mq.producer("tx") as producer:
            producer.begin_transaction()
            producer.send("t", "c")
            producer.flush()
            mq.transactions.abort("tx")
        mq.schedules.create("s", "t", cron="0 6 * * *", value="x")
        mq.schedules.pause("s")
        mq.schedules.resume("s")
        mq.schedules.delete("s")
        mq.topics.delete("t")
        query = "SELECT kind, subject, client FROM admin_changes ORDER BY step, position"
        changes = mq.sql(query, wait_ms=60_000).to_pylist()
    assert [(change["kind"], change["subject"]) for change in changes] == [
        ("topic_created", "t"),
        ("topic_altered", "t"),
        ("member_left", "by-member"),
        ("group_configured", "by-request"),
        ("offsets_committed", "by-request"),
        ("records_deleted", "t"),
        ("transaction_moved", "tx"),
        ("schedule_created", "s"),
        ("schedule_paused", "s"),
        ("schedule_resumed", "s"),
        ("schedule_deleted", "s"),
        ("offsets_removed", "by-member"),
        ("offsets_removed", "by-request"),
        ("topic_deleted", "t"),
    ]
    assert all(f"-{os.getpid()}-" in change["client"] for change in changes)


def test_a_member_that_leaves_by_itself_is_no_change_and_one_that_is_removed_is() -> None:
    story = Story()
    story.tell({"create": {"t": 2}})
    for is_removal in (False, True):
        story.mq.ask(JoinGroup("g", "C1", ["t"], client_id="me"))
        story.mq.ask(LeaveGroup("g", ["C1"], is_removal=is_removal))
    rows = build_admin_log(StepBatch(story.mq.steps)).to_pylist()
    assert [row["kind"] for row in rows] == ["topic_created", "member_left"]


@pytest.mark.slow
@pytest.mark.parametrize("table", [ADMIN_LOG.name, JOURNAL.name, WATERMARKS.name])
def test_each_change_is_noted_once_though_a_projection_dies_midway(table: str, tmp_path: Path) -> None:
    config = load_config(None, {**CONFIG, "project.interval.ms": 50})
    namespace = open_namespace(str(tmp_path / "mq"), config, create=True)
    files = FaultyFiles(namespace.files.root)
    with Connection(replace(namespace, files=files, store=Store(files))) as mq, mq.serving():
        mq.topics.create("a")
        wait_for_files(mq)
        put_count, files.unwritable = len(files.puts), f"{table}/_delta_log"
        mq.topics.create("b")
        until(lambda: any(name.startswith(files.unwritable) for name in files.puts[put_count:]))
        files.unwritable = ""
        mq.topics.create("c")
        wait_for_files(mq)
        assert run_sql(mq, "SELECT subject FROM admin_changes ORDER BY step, position") == [("a",), ("b",), ("c",)]


def build_rows(times_ms: list[int]) -> pa.Table:
    return ADMIN_LOG.table(
        ADMIN_LOG.row(step=step, position=0, decided_at_ms=ms, kind="k", subject="s", client="c", decision="{}")
        for step, ms in enumerate(times_ms)
    )


@pytest.mark.parametrize(("most", "kept"), [(9, [2, 3, 4]), (2, [3, 4])])
def test_merges_keep_changes_of_the_retention_up_to_the_bound(
    most: int, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_ADMIN_CHANGES", most)
    rows = build_rows([10, 49, 50, 70, 99])
    now = retention.read_live_state(State(now_ms=100))
    assert retention.trim_rows(ADMIN_LOG, rows, now, 50, whole=False)["step"].to_pylist() == kept


@pytest.mark.slow
def test_a_flood_of_changes_leaves_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_ADMIN_CHANGES", 5)
    monkeypatch.setattr(housekeeping, "SMALL_BYTES", 5_000)  # a merged file is larger, and one of a commit is not
    names: list[str] = []
    with served(tmp_path, **{"project.interval.ms": 20, "compact.min.files": 2, "checkpoint.interval": 5}) as mq:

        def change_and_list() -> list[str]:
            names.append(random.Random(len(names)).randbytes(100).hex())
            mq.groups.create(names[-1], {"group.protocol": "classic"})
            wait_for_files(mq)
            return [name for (name,) in run_sql(mq, "SELECT subject FROM admin_changes ORDER BY step")]

        change_and_list()
        assert mq.namespace.store.open(ADMIN_LOG).files()[0].size_bytes < 5_000
        for _ in range(20):
            change_and_list()
        until(lambda: len(change_and_list()) < 10)  # a merge may come later
        kept = change_and_list()
        files = [file.size_bytes for file in mq.namespace.store.open(ADMIN_LOG).files()]
    assert kept == names[-len(kept) :]
    assert max(files) > 5_000


@pytest.mark.slow
def test_a_namespace_that_was_made_without_the_table_is_refused_until_a_leader_has_made_it(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True):
        shutil.rmtree(path / ADMIN_LOG.name)
    with lakemq.connect(str(path)) as mq:
        with pytest.raises(NamespaceError, match="and a leader where an earlier version has made the namespace"):
            mq.sql("SELECT * FROM admin_changes")
        with mq.serving():
            mq.topics.create("t")
            (row,) = mq.sql("SELECT subject FROM admin_changes", wait_ms=60_000).to_pylist()
    assert row == {"subject": "t"}
