"""Waiting rows are read from the table piece by piece, and are the newest rows of all keys."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemq.engine.maintenance.data_file_removal import read_named_file_ids
from lakemq.engine.namespace.loading import waiting_rows
from lakemq.engine.namespace.loading.load import read_delayed_rows
from lakemq.engine.namespace.loading.waiting_rows import WaitingRows
from lakemq.tables.specs.delayed import DELAYED, HOUR_MS, DelayedRow
from lakemq.tables.storage.delta.changelog import select_newest
from lakemq.tables.storage.delta.store import Store, TableHandle
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


@pytest.mark.parametrize("hour", [8, 10])
def test_reads_up_to_and_from_an_hour_split_the_rows(handle: TableHandle, hour: int) -> None:
    rows = WaitingRows(handle, PASSES)
    early, late = list(rows.read(last_hour=hour)), list(rows.read(first_hour=hour + 1))
    assert sorted(list_releases(pa.concat_tables(early + late))) == sorted(list_releases(pa.concat_tables(rows.read())))
    for pieces, is_right in ((early, lambda due_hour: due_hour <= hour), (late, lambda due_hour: due_hour > hour)):
        assert all(is_right(ms // HOUR_MS) for piece in pieces for ms in piece["first_due_ms"].to_pylist())
    assert rows.count_rows(12) == 0


@pytest.mark.parametrize("compared_rows", [5, 10**6])
def test_file_is_named_while_one_of_its_keys_exists(
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
