"""I12: what the tables hold is what a replay of the journal says they hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.maintenance.trimming import living, trimmed
from lakemq.engine.namespace.load import load_state, read_watermark
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.projection import PROJECT, files_added, project, watermark
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.log import RowsJournaled
from lakemq.engine.protocol.values.state import State
from lakemq.tables.specs.messages import MESSAGES, file_stem
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.storage.changelog import newest
from lakemq.tables.storage.store import Store

RETENTION_MS = 7 * 86_400_000

PROJECTED = tuple(PROJECT)


def plain(state: State) -> dict[str, Any]:
    """A state that compares: arrays as lists; who else has its topics does not matter."""
    fields = dict(vars(state))
    del fields["lent"]
    fields["topics"] = {
        topic_id: {**vars(t), "high_watermarks": t.high_watermarks.tolist(), "log_starts": t.log_starts.tolist()}
        for topic_id, t in state.topics.items()
    }
    return fields


def assert_projections_are_the_replay(store: Store, history: list[Step]) -> None:
    """Holds when everything is projected. history: every step from the first."""
    state = machine.replay(State(), history)
    expected = project(state, history)
    for name in PROJECTED:
        spec = BY_NAME[name]
        stored, wanted = (
            trimmed(spec, table, living(state), RETENTION_MS, whole=True)
            for table in (store.open(spec).read(), expected.get(name, spec.empty()))
        )
        assert rows_of(name, stored) == rows_of(name, wanted), name
    found = read_watermark(store)
    told = watermark(state, found.floor, found.journal_start).to_pylist()
    assert [asdict(found)] == told
    assert plain(load_state(store, found)) == plain(state)
    registered = sorted((f.path, f.record_count) for f in store.open(MESSAGES).files())
    named = {f.file_id: f.record_count for f in files_added(history)}
    for journaled in (one.record for step in history for one in step.entries):
        if isinstance(journaled, RowsJournaled):
            # each step's rows follow those of the one before it that names the file
            assert named.get(journaled.file_id, 0) == journaled.first_row
            named[journaled.file_id] = journaled.first_row + journaled.record_count
    assert registered == sorted((f"{file_stem(file_id)}.parquet", count) for file_id, count in named.items())


def rows_of(name: str, table: pa.Table) -> list[dict[str, Any]]:
    """The rows that say something: of a log all, of a changelog what keys are now (whose step is that of a pass)."""
    spec = BY_NAME[name]
    if spec.shape == "changelog":
        table = newest(table, spec.keys)
        if "removed" in table.column_names:
            table = table.filter(pc.invert(table.column("removed")))
        table = table.drop_columns("step")
    order = [(key, "ascending") for key in (*spec.keys, *(() if spec.shape == "changelog" else ("step",)))]
    return list(table.sort_by(order).to_pylist())
