"""What waits is read from the table piece by piece, and is what the newest rows of all keys say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemq.engine.namespace import waiting_rows
from lakemq.engine.namespace.load import read_delayed_rows
from lakemq.engine.namespace.waiting_rows import WaitingRows
from lakemq.tables.specs.delayed import DELAYED, DelayedRow
from lakemq.tables.storage.changelog import select_newest
from lakemq.tables.storage.local_files import LocalFiles
from lakemq.tables.storage.store import Store, TableHandle

PASSES = 6


def row(key: int, step: int, removed: bool) -> DelayedRow:
    return DelayedRow(
        step=step,
        topic_id=1 + key % 2,
        topic=f"t{1 + key % 2}",
        partition=0,
        due_hour=9,
        file_id=key // 4 << 50,
        first_row=key,
        reschedules=key % 3,
        record_count=9,
        first_due_ms=9 * 3_600_000 + key,
        last_due_ms=9 * 3_600_000 + key,
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
        rows = [row(key, step, key < step * 100 and chance.random() < 0.3) for key in dict.fromkeys(keys)]
        handle.append_at(handle.version, DELAYED.table(rows), step)
    return handle


@pytest.mark.parametrize("step", range(PASSES + 1))
@pytest.mark.parametrize("collide", [False, True])
def test_pieces_are_the_newest_rows(
    monkeypatch: pytest.MonkeyPatch, handle: TableHandle, step: int, collide: bool
) -> None:
    """Also where keys share hashes."""
    if collide:
        hash_keys = waiting_rows.hash_keys
        monkeypatch.setattr(waiting_rows, "hash_keys", lambda columns: hash_keys(columns) % np.uint64(40))
    expected = select_newest(read_delayed_rows(handle, step), DELAYED.keys).filter(~pc.field("removed"))
    pieces = list(WaitingRows(handle, step).read())
    found = pa.concat_tables(pieces) if pieces else DELAYED.empty().select(["first_row", "released_count"])
    assert sorted(told(found)) == sorted(told(expected))
    assert expected.num_rows or not step


def told(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows["first_row"].to_pylist(), rows["released_count"].to_pylist(), strict=True))
