"""Projections: the rows of all tables from the state, and the state from the rows. Pure."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import WatermarkRow

from .rows import Project, Restore, clients, delays, groups, log, schedules, topics, transactions
from .rows.clients import create_state
from .values.journal import Step, batch_steps
from .values.state import State

# Transactions come after clients and producers: restoring an id sets it on its producer.
SUBJECTS = (topics, log, delays, schedules, clients, transactions, groups)

PROJECT: Project = {name: rows for subject in SUBJECTS for name, rows in subject.PROJECT.items()}
"""The tables in the order in which they are written. None depends on another; `messages` is written before them, and
the watermark after them, which makes the step visible.
"""

RESTORE: Restore = {name: restored for subject in SUBJECTS for name, restored in subject.RESTORE.items()}

RESTORED = tuple(RESTORE)
"""The tables from which a sequencer restores its state."""

READERS = tuple(topics.RESTORE)
"""The tables that a reader needs, which decides nothing."""

MEMBERS = (*topics.RESTORE, *groups.RESTORE)
"""The tables that members of groups need."""


def project(state: State, steps: Sequence[Step]) -> dict[str, pa.Table]:
    """Return the rows of each table that these steps change, except `messages` and `watermarks`.

    Precondition: `state` is the fold up to the last of `steps`. Rows of a changelog carry the number of the last step;
    the values that a key had in between are in the journal.
    """
    batch = batch_steps(steps)
    tables = {name: rows(state, batch) for name, rows in PROJECT.items()}
    return {name: table for name, table in tables.items() if table.num_rows}


def restore(watermark: WatermarkRow, tables: Mapping[str, pa.Table]) -> State:
    """Return the state at the watermark. The rows are the newest ones of their keys at or below its step."""
    state = create_state(watermark)
    state.has_transactions = tables.keys() >= transactions.RESTORE.keys()
    for name, restored in RESTORE.items():
        if name in tables:
            restored(state, tables[name].filter(~pc.field("removed")))
    state.changes.clear()  # the tables hold all of this
    return state
