"""A small table of notes, for tests of the store: its rows, its files, and their age."""

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from obstore.store import LocalStore

from lakemq.tables.specs.spec import INT64, TEXT, TableSpec, column, optional
from lakemq.tables.storage.delta.commits import NewFile
from lakemq.tables.storage.object_stores.files import LocalFiles, ObjectFiles


@dataclass(frozen=True, kw_only=True)
class NoteRow:
    step: int = column(INT64, "When.")
    name: str | None = optional(TEXT, "Who.")


NOTES = TableSpec(
    name="notes",
    row=NoteRow,
    shape="log",
    keys=("step",),
    comment="Notes.",
    log_retention_ms=60_000,
    is_open_to_writers=True,
)

KINDS = {
    "local": lambda root: LocalFiles(root),
    "obstore": lambda root: ObjectFiles(LocalStore(root), f"file://{root}"),
}


def make_notes(*steps: int) -> pa.Table:
    return NOTES.table([NoteRow(step=step, name=f"n{step}") for step in steps])


def list_steps(table: pa.Table) -> list[int]:
    return sorted(table.column("step").to_pylist())


def new_file(folder: Path, name: str, rows: pa.Table) -> NewFile:
    pq.write_table(rows, folder / name)
    bounds = pc.min_max(rows.column("step")).as_py()
    statistics = {
        "numRecords": rows.num_rows,
        "minValues": {"step": bounds["min"]},
        "maxValues": {"step": bounds["max"]},
        "nullCount": {"step": 0},
    }
    return NewFile(name, (folder / name).stat().st_size, 0, statistics)


def age(folder: Path, seconds: float = 100_000) -> None:
    """Make everything in the folder older by the store's clock."""
    for path in folder.iterdir():
        if path.is_file():
            long_ago = path.stat().st_mtime - seconds
            os.utime(path, (long_ago, long_ago))
