"""Committing by two small files: one suite over both ways, then what only the entry that is put by hand must show."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import LocalStore

from lakemq.tables.specs.journal import JOURNAL, JournalRow
from lakemq.tables.specs.segments import SEGMENT_STRUCT
from lakemq.tables.specs.spec import INT64, TEXT, TableSpec, column
from lakemq.tables.storage.commits import CommitConflict, NewFile
from lakemq.tables.storage.committer import Committer, open_committer
from lakemq.tables.storage.files import Files, LocalFiles, ObjectFiles
from lakemq.tables.storage.follower import Follower
from lakemq.tables.storage.foreign import find_foreign_commits
from lakemq.tables.storage.objects import Data, MaybeThere
from lakemq.tables.storage.store import NotATable, Store


@dataclass(frozen=True, kw_only=True)
class NoteRow:
    step: int = column(INT64, "When.")
    name: str | None = column(TEXT, "Who.", nullable=True)


NOTES = TableSpec(name="notes", row=NoteRow, shape="log", keys=("step",), comment="Notes.", log_retention_ms=0)


def notes(*steps: int) -> pa.Table:
    return NOTES.table([NoteRow(step=step, name=f"n{step}") for step in steps])


class Put(LocalFiles):
    """A disk that does something else where it is told to, as a log's entry is put."""

    instead: Callable[[str, Data], str] | None = None
    afterwards: Callable[[], None] | None = None

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        if self.instead is not None and "_delta_log" in name:
            return self.instead(name, data)
        identity = super().put(name, data, durable=durable)
        if self.afterwards is not None and "_delta_log" in name:
            self.afterwards()
        return identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / NOTES.name


@pytest.fixture
def disk(tmp_path: Path) -> Put:
    return Put(str(tmp_path))


@pytest.fixture(params=["local", "obstore"])
def files(request: pytest.FixtureRequest, tmp_path: Path, disk: Put) -> Files:
    if request.param == "local":
        return disk
    return ObjectFiles(LocalStore(str(tmp_path), automatic_cleanup=True), f"file://{tmp_path}")


def opened(files: Files) -> Committer:
    store = Store(files)
    store.create(NOTES)
    return open_committer(store, store.open(NOTES))


def append(committer: Committer, *steps: int) -> NewFile:
    file = committer.write(notes(*steps))
    committer.commit([file])
    return file


def stored(files: Files) -> list[int]:
    return sorted(Store(files).open(NOTES).read().column("step").to_pylist())


def entry(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


# -- both ---------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.slow
def test_commits_move_on_version_by_version(files: Files) -> None:
    committer = opened(files)
    follower = Follower(files, NOTES, 0)
    for step in range(1, 61):  # more than the engine's handle is used for
        append(committer, step)
    assert committer.version == 60
    assert stored(files) == list(range(1, 61))
    assert [follower.next()["step"].to_pylist() for _ in range(60)] == [[step] for step in range(1, 61)]
    assert follower.next() is None


def test_what_is_written_is_no_part_of_the_table_until_it_is_committed(files: Files) -> None:
    committer = opened(files)
    file = committer.write(notes(1, 2))
    assert stored(files) == []
    committer.commit([file])
    assert stored(files) == [1, 2]


def test_of_two_at_one_version_one_loses_again_and_again(files: Files) -> None:
    first, second = opened(files), opened(files)
    append(first, 1)
    for _ in range(2):
        with pytest.raises(CommitConflict, match="notes"):
            append(second, 2)
    assert stored(files) == [1]
    append(first, 3)
    assert stored(files) == [1, 3]


def test_files_are_swapped_in_one_commit_that_brings_nothing_new(files: Files) -> None:
    committer = opened(files)
    parts = [append(committer, step) for step in (1, 2, 3)]
    follower = Follower(files, NOTES, 3)
    committer.commit([committer.write(notes(1, 2, 3))], [part.to_stored_file() for part in parts])
    assert stored(files) == [1, 2, 3]
    assert len(Store(files).open(NOTES).files()) == 1
    following = follower.next()
    assert following is not None
    assert following.num_rows == 0


def test_what_is_known_of_a_file_is_what_the_log_says_of_it(files: Files) -> None:
    committer = opened(files)
    long = NOTES.table([NoteRow(step=4, name="x" * 33), NoteRow(step=-5, name=None)])
    committer.commit([wide := committer.write(long)])
    parts = [append(committer, 3, 1), append(committer, 2), wide]
    found = {file.path: file for file in Store(files).open(NOTES).files()}
    for part in parts:
        known, said = part.to_stored_file(), found[part.path]
        assert (known.size_bytes, known.record_count) == (said.size_bytes, said.record_count)
        assert {name: said.statistics[name] for name in known.statistics} == known.statistics
    assert set(wide.to_stored_file().statistics) == {"min.step", "max.step"}, "texts bound no file of a few rows"


def test_who_commits_is_no_stranger(files: Files) -> None:
    store = Store(files)
    store.create(JOURNAL)
    committer = open_committer(store, store.open(JOURNAL))
    committer.commit([committer.write(JOURNAL.empty())])
    assert list(find_foreign_commits(store)) == []


def test_a_table_whose_protocol_somebody_has_raised_is_refused(files: Files, folder: Path) -> None:
    """Readers of a newer protocol may need to be told more than an entry of ours tells them."""
    store = Store(files)
    store.create(NOTES)
    handle = DeltaTable(str(folder))
    handle.alter.set_table_properties({"delta.appendOnly": "false"})
    entry(folder, handle.version() + 1).write_text(
        json.dumps({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}})
    )
    with pytest.raises(NotATable, match=r"found Delta protocol \(2, 5\), expected \(1, 2\)"):
        open_committer(store, store.open(NOTES))


# -- the fence ----------------------------------------------------------------------------------------------


def test_who_stands_on_an_entry_that_is_gone_commits_nothing(disk: Put, folder: Path) -> None:
    """Stopped while others went on, checkpointed and cleaned: the name of its next entry is free again."""
    stopped = opened(disk)
    file = stopped.write(notes(99))
    entry(folder, 0).unlink()
    with pytest.raises(CommitConflict, match="cleaned beyond version 0"):
        stopped.commit([file])
    assert not entry(folder, 1).exists()


def test_who_stands_on_an_entry_put_anew_commits_nothing(disk: Put, folder: Path) -> None:
    committer = opened(disk)
    file = committer.write(notes(99))
    was = entry(folder, 0)
    body = was.read_bytes()
    was.unlink()
    (folder / "other").write_bytes(body)
    was.write_bytes(body)
    with pytest.raises(CommitConflict, match="cleaned beyond"):
        committer.commit([file])


def test_a_log_cleaned_while_the_entry_is_put_leaves_it_in_doubt(disk: Put, folder: Path) -> None:
    """The entry may be one that nobody reads, so it counts for nothing; it is not taken back, as somebody may."""
    committer = opened(disk)
    append(committer, 1)
    disk.afterwards = entry(folder, 1).unlink
    with pytest.raises(CommitConflict, match="cleaned beyond version 1"):
        append(committer, 2)
    assert entry(folder, 2).exists()
    assert committer.version == 1


# -- the lost answer ----------------------------------------------------------------------------------------


def test_a_store_that_asks_twice_is_recognised(disk: Put) -> None:
    """NFS repeats a link whose answer was lost, and says of its own that it exists."""
    committer = opened(disk)

    def twice(name: str, data: Data) -> str:
        LocalFiles.put(disk, name, data)
        return LocalFiles.put(disk, name, data)

    disk.instead = twice
    append(committer, 1)
    disk.instead = None
    append(committer, 2)
    assert stored(disk) == [1, 2]


def test_a_store_that_fails_after_others_could_see_the_entry_leaves_it_there(disk: Put) -> None:
    committer = opened(disk)

    def vague(name: str, data: Data) -> str:
        LocalFiles.put(disk, name, data)
        raise MaybeThere(errno.EIO, os.strerror(errno.EIO), name)

    disk.instead = vague
    with pytest.raises(MaybeThere):
        append(committer, 1)
    disk.instead = None
    with pytest.raises(CommitConflict):
        append(committer, 2)  # a version is never put again
    assert stored(disk) == [1]


@pytest.mark.parametrize("there", [b"{", b"\xff\xfe"])
def test_an_entry_that_cannot_be_read_is_a_failing_store(disk: Put, folder: Path, there: bytes) -> None:
    committer = opened(disk)
    file = committer.write(notes(1))
    entry(folder, 1).write_bytes(there)
    with pytest.raises(OSError, match="notes: version 1 cannot be read"):
        committer.commit([file])
    assert committer.version == 0
    assert entry(folder, 1).read_bytes() == there


def test_an_entry_of_somebody_who_gives_no_nonce_is_somebody_elses(disk: Put, folder: Path) -> None:
    committer = opened(disk)
    file = committer.write(notes(1))
    infos = ('{"operation":"WRITE"}', '{"nonce":7}', "null", '"a text"')
    for actions in ('{"add":{}}', "1", "null", "[1]", *(f'{{"commitInfo":{info}}}' for info in infos)):
        entry(folder, 1).write_text(actions)
        with pytest.raises(CommitConflict, match="version 1 was committed by another process"):
            committer.commit([file])


# -- processes ----------------------------------------------------------------------------------------------


def race(root: str, name: int, versions: int) -> list[int]:
    """The versions this one has won."""
    won: list[int] = []
    store = Store(LocalFiles(root))
    while (committer := open_committer(store, store.open(NOTES))).version < versions:
        try:
            while committer.version < versions:
                committer.commit([committer.write(notes(name * 1000 + committer.version + 1))])
                won.append(committer.version)
        except CommitConflict:
            pass
    return won


@pytest.mark.extended
@pytest.mark.slow
def test_each_version_is_won_by_one_of_many_processes(disk: Put, tmp_path: Path) -> None:
    opened(disk)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        won = pool.starmap(race, [(str(tmp_path), name, 45) for name in range(1, 4)])
    assert sorted(version for versions in won for version in versions) == list(range(1, 46))
    expected = sorted(name * 1000 + version for name, versions in enumerate(won, 1) for version in versions)
    assert stored(disk) == expected


# -- what others read ---------------------------------------------------------------------------------------

TEXTS = st.text(max_size=40) | st.sampled_from(["\n", "\u2028", '"', "\\", "a\r\nb", "%2F", "'", "\0", "\ud7ff"])


@examples(25)
@given(rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | TEXTS), max_size=4))
def test_delta_rs_reads_whatever_is_in_an_entry(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str | None]]
) -> None:
    files = LocalFiles(str(tmp_path_factory.mktemp("texts")))
    committer = opened(files)
    table = NOTES.table([NoteRow(step=step, name=name) for step, name in rows])
    committer.commit([committer.write(table)])
    handle = Store(files).open(NOTES)
    assert handle.read().equals(table)
    if rows:
        steps = [step for step, _ in rows]
        assert handle.read(step=(min(steps), max(steps))).num_rows == len(rows)
        assert handle.read(step=(max(steps) + 1, None)).num_rows == 0 if max(steps) < 2**63 - 1 else True


def test_checkpoints_of_delta_rs_hold_what_the_entries_said(disk: Put, folder: Path) -> None:
    committer = opened(disk)
    for step in range(1, 8):
        append(committer, step)
    parts = Store(disk).open(NOTES).files()
    before = {file.path: file for file in parts}
    committer.commit(
        [merged := committer.write(notes(*range(1, 6)))], [f for f in parts if f.statistics["max.step"] < 6]
    )
    DeltaTable(str(folder)).create_checkpoint()
    append(committer, 8)
    for version in range(8):
        entry(folder, version).unlink()
    handle = Store(disk).open(NOTES)
    assert sorted(handle.read().column("step").to_pylist()) == list(range(1, 9))
    kept = {file.path: file for file in handle.files()}
    known, said = merged.to_stored_file(), kept[merged.path]
    assert (known.size_bytes, known.record_count) == (said.size_bytes, said.record_count)
    assert {name: said.statistics[name] for name in known.statistics} == known.statistics
    assert {path: kept[path] for path in before if path in kept} == {
        path: file for path, file in before.items() if file.statistics["max.step"] >= 6
    }


def test_the_journals_columns_survive(tmp_path: Path) -> None:
    """Segments ride as lists of structs, some null, some empty."""
    files = LocalFiles(str(tmp_path))
    store = Store(files)
    store.create(JOURNAL)
    segment = {f.name: None for f in SEGMENT_STRUCT} | {"topic_id": 1, "partition": 2, "base_offset": 3}
    rows = [
        JournalRow(
            step=step,
            position=0,
            kind="produced",
            subject="t",
            decision='{"a":"ä\\u2028"}',
            segments=segments,
            request_id=None,
            decided_at_ms=7,
            leader_epoch=1,
            format_version=1,
        )
        for step, segments in enumerate([None, [], [segment], [segment, segment]], 1)
    ]
    table = JOURNAL.table(rows)
    committer = open_committer(store, store.open(JOURNAL))
    committer.commit([file := committer.write(table)])
    assert store.open(JOURNAL).read().equals(table)
    assert DeltaTable(store.uri(JOURNAL)).to_pyarrow_table(filesystem=None).num_rows == 4
    path = tmp_path / JOURNAL.name / file.path
    said = duckdb.sql(f"SELECT step, len(segments) FROM read_parquet('{path}') ORDER BY step").fetchall()
    assert said == [(1, None), (2, 0), (3, 1), (4, 2)]
