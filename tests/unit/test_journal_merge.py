"""Merging the journal: what was appended is what is there, whether its rows were at hand or read back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from unit.served import CONFIG, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.maintenance.housekeeping import JOURNAL_COLUMNS_KEPT, JOURNAL_SMALL_BYTES, _find_small, _take_newest
from lakemq.engine.sequencer import journal
from lakemq.engine.sequencer.journal import Journal
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.commits import StoredFile

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.mark.parametrize("most_kept", [0, 5, 2_000])
def test_what_was_appended_is_there_after_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int
) -> None:
    appended: list[pa.Table] = []
    append = Journal.append

    def noted(self: Journal, step: int, rows: pa.Table) -> None:
        append(self, step, rows)
        appended.append(rows)

    monkeypatch.setattr(Journal, "append", noted)
    monkeypatch.setattr(journal, "_MAX_CACHED_FILES", most_kept)
    config = {**CONFIG, "project.interval.ms": 0, "compact.min.files": 5}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq:
        serving = mq.serving()
        mq.topics.create("t")
        for n in range(40):
            mq.publish("t", pa.table({"value": [f"{n}"]}))
        until(lambda: len(stored(mq)) < 20)
        serving.close()
        rows = (
            mq.namespace.store.open(JOURNAL)
            .read(JOURNAL_COLUMNS_KEPT)
            .sort_by([("step", "ascending"), ("position", "ascending")])
        )
        expected = pa.concat_tables(appended).select(JOURNAL_COLUMNS_KEPT)
        assert rows.equals(expected.combine_chunks())
        assert mq.fetch("t").record_count == 40


def stored(mq: Connection) -> list[StoredFile]:
    return mq.namespace.store.open(JOURNAL).files()


def test_rows_are_let_go_of_once_they_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Journal] = []
    init = Journal.__init__

    def noted(self: Journal, *how: object) -> None:
        init(self, *how)  # type: ignore[arg-type]
        seen.append(self)

    monkeypatch.setattr(Journal, "__init__", noted)
    config = {**CONFIG, "project.interval.ms": 0, "compact.min.files": 5}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq, mq.serving():
        mq.topics.create("t")
        for n in range(30):
            mq.publish("t", pa.table({"value": [f"{n}"]}))
        until(lambda: len(stored(mq)) < 20)
        kept, live = seen[-1].copy_cached_rows(), {file.path for file in seen[-1].files}
        assert kept
        assert kept.keys() <= live
        assert all("rows" not in rows.column_names for rows in kept.values())


def test_a_row_is_written_again_few_times() -> None:
    """Each merge takes 64 new files, of 1 kB a step; all are taken for small."""
    files: list[StoredFile] = []
    written = most = 0
    for step in range(1, 6_001):
        files.append(StoredFile(f"{step}", 1_000, 1, {"max.step": step}))
        if step % 64 == 0:
            chosen = _take_newest(files)
            assert len(chosen) >= 64
            size_bytes = sum(file.size_bytes for file in chosen)
            files = [file for file in files if file not in chosen]
            files.append(StoredFile(f"to {step}", size_bytes, 1, {"max.step": step}))
            written += size_bytes
        most = max(most, len(files))
    assert written < 8 * 6_000_000
    assert most < 64 + 12


def test_a_merge_reads_a_bounded_part_of_a_long_journal() -> None:
    """What a leader holds during a merge must not grow with the number of steps. A small step takes 49 bytes."""
    live: list[StoredFile] = []
    largest_bytes = 0
    for step in range(64, 400_001, 64):
        live.append(StoredFile(f"to {step}", 64 * 49, 1, {"max.step": step}))
        chosen = _take_newest(_find_small(live))
        merged_bytes = sum(file.size_bytes for file in chosen)
        live = [file for file in live if file not in chosen]
        live.append(StoredFile(f"merged to {step}", merged_bytes, 1, {"max.step": step}))
        largest_bytes = max(largest_bytes, merged_bytes)
    assert sum(file.size_bytes for file in live) == 400_000 * 49
    assert largest_bytes <= 2 * JOURNAL_SMALL_BYTES
    assert len(live) < 400_000 * 49 / JOURNAL_SMALL_BYTES + 12
