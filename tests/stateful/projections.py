"""I12: the tables hold what a replay of the journal makes of them."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from protocol_harness import plain

from lakemq.engine.maintenance.retention import mask_deleted_segments, read_live_state, trim_rows
from lakemq.engine.namespace.data_file import read_file_facts
from lakemq.engine.namespace.load import load_state, read_watermark
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.projection import PROJECT, project
from lakemq.engine.protocol.rows.clients import build_watermark
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.state import State
from lakemq.tables.specs.messages import FINAL_FILES, MESSAGES, file_stem
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.topics import FINAL, FINAL_PENDING
from lakemq.tables.storage.delta.store import Store, select_newest

RETENTION_MS = 7 * 86_400_000

PROJECTED = tuple(PROJECT)


def assert_projections_are_the_replay(store: Store, history: list[Step]) -> None:
    """Check the tables when everything is projected. history: every step from the first."""
    state = machine.replay(State(), history)
    expected = project(state, history)
    for name in PROJECTED:
        spec = BY_NAME[name]
        stored, expected_rows = (
            trim_rows(spec, table, read_live_state(state), RETENTION_MS, whole=True)
            for table in (store.open(spec).read(), expected.get(name, spec.empty()))
        )
        if name == "segments":  # a final file that is rewritten has other ranges; its messages are compared in `finals`
            is_final = pc.field("kind").isin([FINAL, FINAL_PENDING])
            stored, expected_rows = stored.filter(~is_final), expected_rows.filter(~is_final)
        if name in PLACES:
            stored, expected_rows = expand_rows(stored), expand_rows(expected_rows)
        if name == "segments":  # a merge removes deleted segments from the table
            stored, expected_rows = drop_deleted_rows(stored, state), drop_deleted_rows(expected_rows, state)
        assert rows_of(name, stored) == rows_of(name, expected_rows), name
    watermark = read_watermark(store)
    expected_watermark = build_watermark(state, watermark.floor).to_pylist()
    assert [asdict(watermark) | {"versions": []}] == expected_watermark
    assert plain(load_state(store, watermark)) == plain(state)
    assert_files_are_there(store)


def assert_files_are_there(store: Store) -> None:
    """Check that files to which the tables refer are registered and whole."""
    registered = {f.path: f.record_count for f in store.open(MESSAGES).files()}
    for path, count in registered.items():
        file_id = int(path.removesuffix(".parquet"), 16)
        facts = read_file_facts(store.files, file_id)
        assert facts is not None
        assert (facts.record_count, facts.flaw) == (count, ""), path
    for name in PLACES:
        is_published = pc.field("first_row").is_valid() & (pc.field("file_id") < FINAL_FILES)
        rows = store.open(BY_NAME[name]).read(where=is_published)
        for file_id, first_row, count in zip(*(rows.column(c).to_pylist() for c in _RANGE), strict=True):
            assert first_row + count <= registered[f"{file_stem(file_id)}.parquet"]


_RANGE = ("file_id", "first_row", "record_count")

PLACES = {
    "segments": (
        "step",
        *_RANGE,
        "footer_hash",
        "min_timestamp_ms",
        "max_timestamp_ms",
        "decided_at_ms",
        "last_offset",
    ),
    "rejected_rows": _RANGE,
}
"""The tables that say where rows are, and the columns that a merge of data files changes."""


def expand_rows(table: pa.Table) -> pa.Table:
    """Return a row for each message, marker and dead letter, without its location. A merge puts several rows
    together.
    """
    counts = np.maximum(table.column("record_count").to_numpy(), 1)
    nth = pa.array(np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
    rows = table.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    for name in {"base_offset", "base_sequence"} & set(rows.column_names):
        rows = rows.set_column(rows.column_names.index(name), name, pc.add(rows.column(name), nth))
    name = "segments" if "base_offset" in rows.column_names else "rejected_rows"
    return rows.drop_columns(list(PLACES[name]))


def drop_deleted_rows(messages: pa.Table, state: State) -> pa.Table:
    """Return the messages that are not below the log start."""
    live_state = read_live_state(state)
    return messages.filter(
        pa.array(~mask_deleted_segments(messages.append_column("last_offset", messages["base_offset"]), live_state))
    )


def rows_of(name: str, table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows that count: all of a log; of a changelog the newest of each key, without the step of its pass."""
    spec = BY_NAME[name]
    if spec.shape == "changelog":
        table = select_newest(table, spec.keys)
        if "removed" in table.column_names:
            table = table.filter(pc.invert(table.column("removed")))
        table = table.drop_columns("step")
    order = [(key, "ascending") for key in (*spec.keys, "step", *table.column_names) if key in table.column_names]
    order = [pair for pair in order if not pa.types.is_nested(table.schema.field(pair[0]).type)]
    return list(table.sort_by(order).to_pylist())
