"""Waiting rows are read from the table piece by piece, and are the newest rows of all keys."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from protocol_harness import F, G, Harness

from lakemq.engine.maintenance import housekeeping
from lakemq.engine.maintenance.housekeeping import _drop_outdated_rows, iterate_by_hours
from lakemq.engine.maintenance.merging import write_merged_file, write_merged_pieces
from lakemq.engine.maintenance.removal import read_named_file_ids
from lakemq.engine.maintenance.retention import is_mostly_old, read_live_state, trim_rows
from lakemq.engine.namespace import waiting_rows
from lakemq.engine.namespace.load import read_delayed_rows
from lakemq.engine.namespace.waiting_rows import WaitingRows
from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.topics import DeleteRecords, DeleteTopic
from lakemq.engine.protocol.values.transactions import AbortTransaction, EndTransaction
from lakemq.tables.specs.messages import DELAYED, HOUR_MS, DelayedRow
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.storage.delta.commits import NewFile, StoredFile
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Store, TableHandle, select_newest
from lakemq.tables.storage.object_stores.local_files import LocalFiles

PASSES = 6


def make_row(key: int, step: int, removed: bool) -> DelayedRow:
    return DelayedRow(
        step=step,
        topic_id=1 + key % 2,
        topic=f"t{1 + key % 2}",
        partition=0,
        due_hour=9 + key % 3,
        file_id=key // 4 << 50,
        first_row=key,
        reschedules=key % 3,
        record_count=9,
        first_due_ms=(9 + key % 3) * HOUR_MS + key,
        last_due_ms=(9 + key % 3) * HOUR_MS + key,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        has_ttl=False,
        scheduled_step=None if removed else 1,
        position=None if removed else key,
        waiting_count=0 if removed else 9 - step,
        released_count=step,
        state="released" if removed else "waiting",
        changed_at_ms=step,
        removed=removed,
    )


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> TableHandle:
    """A table of several passes: most ranges have one row, some have several, some have ended."""
    store = Store(LocalFiles(Path(tmp_path_factory.mktemp("table"))))
    store.create(DELAYED)
    handle, chance = store.open(DELAYED), random.Random(1)
    for step in range(1, PASSES + 1):
        keys = [*range(step * 100, step * 100 + 100), *chance.sample(range(100, step * 100 + 100), 30)]
        rows = [make_row(key, step, key < step * 100 and chance.random() < 0.3) for key in dict.fromkeys(keys)]
        handle.append_at(handle.version, DELAYED.table(rows), step)
    return handle


@pytest.mark.parametrize(("step", "collide"), [(0, False), (1, False), (PASSES, False), (PASSES, True)])
def test_pieces_hold_the_newest_row_of_each_key(
    monkeypatch: pytest.MonkeyPatch, handle: TableHandle, step: int, collide: bool
) -> None:
    """Some keys share hashes."""
    if collide:
        hash_keys = waiting_rows.hash_keys
        monkeypatch.setattr(waiting_rows, "hash_keys", lambda columns: hash_keys(columns) % np.uint64(40))
    expected = select_newest(read_delayed_rows(handle, step), DELAYED.keys).filter(~pc.field("removed"))
    pieces = list(WaitingRows(handle, step).read())
    read_rows = pa.concat_tables(pieces) if pieces else DELAYED.empty().select(["first_row", "released_count"])
    assert sorted(list_releases(read_rows)) == sorted(list_releases(expected))
    assert expected.num_rows or not step


@pytest.mark.parametrize("compared_rows", [5, 10**6])
def test_file_counts_as_named_while_one_of_its_keys_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compared_rows: int
) -> None:
    """The number of rows that are compared at once makes no difference. Four keys share a file."""
    monkeypatch.setattr(waiting_rows, "_COMPARED_ROWS", compared_rows)
    store = Store(LocalFiles(tmp_path))
    store.create(DELAYED)
    handle, ended, published_again = store.open(DELAYED), [0, 1, 2, 3, 5, 8, 9, 10, 11, 16], [9]
    for step, keys in ((1, list(range(20))), (2, ended), (3, published_again)):
        handle.append_at(handle.version, DELAYED.table(make_row(key, step, step == 2) for key in keys), step)
    assert read_named_file_ids(handle) == {number << 50 for number in (1, 2, 3, 4)}


def list_releases(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows["first_row"].to_pylist(), rows["released_count"].to_pylist(), strict=True))


# A merge of `delayed` holds only the rows of some hours, and writes the same file as a merge of all rows.

ROWS = 600


@pytest.fixture
def hours_handle(tmp_path: Path) -> TableHandle:
    """A table of three passes. The keys fall into three hours, and every third one is removed."""
    store = Store(LocalFiles(tmp_path))
    store.create(DELAYED)
    hours_handle = store.open(DELAYED)
    for step, keys in ((1, range(ROWS)), (2, range(0, ROWS, 3)), (3, range(5, ROWS, 7))):
        hours_handle.append_at(
            hours_handle.version, DELAYED.table(make_row(key, step, step == 2) for key in keys), step
        )
    return hours_handle


def read_back(tmp_path: Path, files: tuple[NewFile, ...]) -> pa.Table:
    (file,) = files
    return pq.read_table(tmp_path / DELAYED.name / file.path)


@pytest.mark.parametrize("merged_rows", [1, 300, 10**6])
@pytest.mark.parametrize("whole", [False, True])
def test_merge_in_pieces_writes_the_file_of_a_whole_merge(
    tmp_path: Path, hours_handle: TableHandle, monkeypatch: pytest.MonkeyPatch, merged_rows: int, whole: bool
) -> None:
    monkeypatch.setattr(housekeeping, "_MERGED_ROWS", merged_rows)
    files = LocalFiles(tmp_path)
    leftovers, stored = Leftovers(files), hours_handle.files()
    at_once = _drop_outdated_rows(DELAYED, hours_handle.read(), 2, whole, 2)
    expected = write_merged_file(files, leftovers, DELAYED, at_once, stored)
    pieces = [_drop_outdated_rows(DELAYED, rows, 2, whole, 2) for rows in iterate_by_hours(hours_handle, stored)]
    assert len(pieces) == (1 if merged_rows == 10**6 else 3)
    written = write_merged_pieces(files, leftovers, DELAYED, pieces, stored)
    order = [(name, "ascending") for name in (*DELAYED.keys, "step")]
    assert read_back(tmp_path, written).sort_by(order) == read_back(tmp_path, expected).sort_by(order)
    assert written[0].statistics == expected[0].statistics
    hours = read_back(tmp_path, written)["due_hour"].to_pylist()
    assert hours == sorted(hours)


# Merging trims the history of transactions, markers below the log start, and segments of deleted topics.

RETENTION_MS = 1000


@pytest.fixture
def mq() -> Harness:
    """A namespace with transactions of `old`, ended long ago, and of `open`.

    Markers are at offset 1 of t-0, u-0 and t-1.
    """
    harness = Harness()
    harness.create("t", 2)
    harness.create("u")
    old = harness.begin("old")
    harness.one(harness.produce_to({("t", 0): 1, ("u", 0): 1, ("t", 1): 1}, F, old))
    harness.one(EndTransaction(old, True, 1))
    harness.one(harness.produce_to({("t", 0): 1}, G, harness.begin("open", 900_000)))
    harness.now_ms += RETENTION_MS + 1
    harness.begin("young")
    return harness


def trim_table(mq: Harness, name: str, whole: bool = True) -> list[dict[str, Any]]:
    table = project(mq.state, mq.steps).get(name, BY_NAME[name].empty())
    return list(trim_rows(BY_NAME[name], table, read_live_state(mq.state), RETENTION_MS, whole).to_pylist())


def test_trim_keeps_young_and_open_transactions(mq: Harness) -> None:
    assert [(row["transactional_id"], row["state"]) for row in trim_table(mq, "transactions")] == [
        ("open", "Empty"),
        ("open", "Ongoing"),
        ("young", "Empty"),
    ]
    mq.one(AbortTransaction("open"))
    states = [row["state"] for row in trim_table(mq, "transactions") if row["transactional_id"] == "open"]
    assert states == ["PrepareAbort", "CompleteAbort"]


def test_trim_removes_markers_below_the_log_start(mq: Harness) -> None:
    def places() -> list[tuple[str, int, int]]:
        return [(row["topic"], row["partition"], row["offset"]) for row in trim_table(mq, "control_markers")]

    assert places() == [("t", 0, 1), ("t", 1, 1), ("u", 0, 1)]
    mq.one(DeleteRecords("t", {0: 1, 1: 2}))
    assert places() == [("t", 0, 1), ("u", 0, 1)]
    mq.one(DeleteTopic("t"))
    assert places() == [("u", 0, 1)]


@pytest.mark.parametrize("whole", [True, False])
def test_trim_removes_segments_of_deleted_topics(mq: Harness, whole: bool) -> None:
    mq.one(DeleteRecords("t", {0: 1}))
    before = trim_table(mq, "segments", whole)
    mq.one(DeleteTopic("t"))
    of_u = [row for row in before if row["topic"] == "u"]
    segments = trim_table(mq, "segments", whole)
    assert [row for row in segments if row["topic"] == "u"] == of_u
    # otherwise rows of the topic in other files would come back to the views
    assert [row["kind"] for row in segments if row["topic"] == "t"] == ([] if whole else ["topic_deleted"])


def make_stored_file(**statistics: Any) -> StoredFile:
    return StoredFile("f", 1 << 30, 1, {name.replace("_of_", "."): value for name, value in statistics.items()})


def test_large_files_of_which_nothing_stays_are_merged_once_more(mq: Harness) -> None:
    now = read_live_state(mq.state)

    def spent(name: str, **statistics: Any) -> bool:
        return is_mostly_old(BY_NAME[name], make_stored_file(**statistics), now, RETENTION_MS)

    assert spent("transactions", max_of_updated_at_ms=now.now_ms - RETENTION_MS - 1)
    assert not spent("transactions", max_of_updated_at_ms=now.now_ms - RETENTION_MS)
    assert spent("segments", min_of_topic_id=3, max_of_topic_id=9)
    assert not spent("segments", min_of_topic_id=2, max_of_topic_id=9)
    assert not spent("control_markers")
    assert not spent("rejected_rows", min_of_topic_id=3, max_of_topic_id=9)
