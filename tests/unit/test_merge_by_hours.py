"""A merge of `delayed` holds only the rows of some hours, and writes the same file as a merge of all rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.test_waiting_rows import make_row

from lakemq.engine.maintenance import housekeeping
from lakemq.engine.maintenance.housekeeping import _drop_outdated_rows, iterate_by_hours
from lakemq.engine.maintenance.writing import join_statistics, write_merged_file, write_merged_pieces
from lakemq.tables.specs.delayed import DELAYED
from lakemq.tables.storage.delta.commits import NewFile, compute_statistics
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.storage.object_stores.local_files import LocalFiles

ROWS = 600


@pytest.fixture
def handle(tmp_path: Path) -> TableHandle:
    """A table of three passes. The keys fall into three hours, and every third one is removed."""
    store = Store(LocalFiles(tmp_path))
    store.create(DELAYED)
    handle = store.open(DELAYED)
    for step, keys in ((1, range(ROWS)), (2, range(0, ROWS, 3)), (3, range(5, ROWS, 7))):
        handle.append_at(handle.version, DELAYED.table(make_row(key, step, step == 2) for key in keys), step)
    return handle


def read_back(tmp_path: Path, files: tuple[NewFile, ...]) -> pa.Table:
    (file,) = files
    return pq.read_table(tmp_path / DELAYED.name / file.path)


@pytest.mark.parametrize("merged_rows", [1, 300, 10**6])
@pytest.mark.parametrize("whole", [False, True])
def test_merge_in_pieces_writes_the_file_of_a_whole_merge(
    tmp_path: Path, handle: TableHandle, monkeypatch: pytest.MonkeyPatch, merged_rows: int, whole: bool
) -> None:
    monkeypatch.setattr(housekeeping, "_MERGED_ROWS", merged_rows)
    files = LocalFiles(tmp_path)
    leftovers, stored = Leftovers(files), handle.files()
    at_once = _drop_outdated_rows(DELAYED, handle.read(), 2, whole, 2)
    expected = write_merged_file(files, leftovers, DELAYED, at_once, stored)
    pieces = [_drop_outdated_rows(DELAYED, rows, 2, whole, 2) for rows in iterate_by_hours(handle, stored)]
    assert len(pieces) == (1 if merged_rows == 10**6 else 3)
    written = write_merged_pieces(files, leftovers, DELAYED, pieces, stored)
    order = [(name, "ascending") for name in (*DELAYED.keys, "step")]
    assert read_back(tmp_path, written).sort_by(order) == read_back(tmp_path, expected).sort_by(order)
    assert written[0].statistics == expected[0].statistics
    hours = read_back(tmp_path, written)["due_hour"].to_pylist()
    assert hours == sorted(hours)


def test_a_merge_that_leaves_nothing_writes_no_file(tmp_path: Path, handle: TableHandle) -> None:
    files = LocalFiles(tmp_path)
    assert write_merged_pieces(files, Leftovers(files), DELAYED, [DELAYED.empty(), DELAYED.empty()], []) == ()


def test_a_column_without_bounds_in_a_part_has_none() -> None:
    parts = [compute_statistics(pa.table({"a": [1, 5], "b": [2, 2]})), compute_statistics(pa.table({"a": [0]}))]
    assert join_statistics(parts) == {
        "numRecords": 3,
        "minValues": {"a": 0},
        "maxValues": {"a": 5},
        "nullCount": {"a": 0},
    }
