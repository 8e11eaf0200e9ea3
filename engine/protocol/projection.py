"""Projections: the tables as the rows of all subjects make them, and the state as they hold it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.watermarks import WatermarkRow

from .rows import clients, delays, groups, log, offsets, producers, topics, transactions
from .rows.leader import state_at, watermark
from .rows.log import JournaledRows, files_added, files_named, rows_journaled
from .rows.steps import Project, Restore, Steps
from .values.state import State

__all__ = [
    "MEMBERS",
    "READERS",
    "RESTORED",
    "JournaledRows",
    "files_added",
    "files_named",
    "project",
    "restore",
    "rows_journaled",
    "watermark",
]

# transactional ids after the producers that hold them
SUBJECTS = (topics, log, delays, producers, transactions, offsets, groups, clients)

PROJECT: Project = {name: rows for subject in SUBJECTS for name, rows in subject.PROJECT.items()}
"""In the order in which tables are written. None of them needs another; `messages` goes before, the watermark after."""

RESTORE: Restore = {name: restored for subject in SUBJECTS for name, restored in subject.RESTORE.items()}

RESTORED = tuple(RESTORE)
"""The tables from which a sequencer's state is restored."""

READERS = tuple(topics.RESTORE)
"""Those which are enough for a reader, who decides nothing."""

MEMBERS = (*topics.RESTORE, *offsets.RESTORE, *groups.RESTORE)
"""Those which are enough for members of groups."""


def project(state: State, steps: Steps) -> dict[str, pa.Table]:
    """Rows per table, for all tables these steps change but `messages` and `watermarks`.

    Holds: `state` is the fold up to the last of `steps`. Rows of a changelog bear that last step: what a key was in
    between is in the journal.
    """
    tables = {name: rows(state, steps) for name, rows in PROJECT.items()}
    return {name: table for name, table in tables.items() if table.num_rows}


def restore(watermark: WatermarkRow, tables: Mapping[str, pa.Table]) -> State:
    """The state at the watermark. All rows are the newest of their key at or below its step."""
    state = state_at(watermark)
    for name, restored in RESTORE.items():
        if name in tables:
            restored(state, tables[name].filter(~pc.field("removed")))
    return state
