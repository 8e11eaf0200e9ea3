"""Load the state from what is stored: the projections at the watermark. The caller replays the newer steps on it."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import WATERMARKS, WatermarkRow
from lakemq.tables.specs.messages import DELAYED
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import PARTITIONS, TOPICS
from lakemq.tables.storage.delta.store import NotATable, Store, TableHandle, select_newest

from ..protocol.errors import StepTooOld
from ..protocol.projection import RESTORED, restore
from ..protocol.rows.delays import restore_pieces
from ..protocol.values.state import State
from .store_errors import build_removal_error, find_removal, make_damage_error
from .waiting_rows import WaitingRows

BEGINNING = WatermarkRow(
    step=0,
    floor=0,
    decided_at_ms=0,
    leader="",
    leader_epoch=0,
    lease_ms=0,
    next_topic_id=1,
    next_producer_id=0,
    routing_step=0,
    delay_pointer_ms=0,
    versions=[],
)
"""The watermark of a namespace in which nothing is projected yet."""


def read_watermark(store: Store) -> WatermarkRow:
    """Return the newest watermark. Raises NamespaceError: the namespace is gone."""
    try:
        handle = store.open(WATERMARKS)
    except NotATable as error:
        if find_removal(store.files):
            raise build_removal_error(store.files.root) from error
        raise
    return read_newest_watermark(store, handle)


def read_newest_watermark(store: Store, handle: TableHandle) -> WatermarkRow:
    """Return the newest row of `watermarks`. Raises TableDamaged: it has lost rows."""
    files = handle.files()
    last = max((f.statistics["max.step"] or 0 for f in files), default=0)
    if last != handle.last_step():
        raise make_damage_error(store, f"{WATERMARKS.name} goes up to step {last}, expected {handle.last_step()}")
    if not files:
        return BEGINNING
    newest_row: WatermarkRow = WATERMARKS.rows(WATERMARKS.validate(handle.read(step=(last, None))))[-1]
    return newest_row


def load_state(store: Store, watermark: WatermarkRow, names: Sequence[str] = RESTORED) -> State:
    """Return the state at the watermark, from the named tables: all of RESTORED, READERS or MEMBERS.

    Raises:
        StepTooOld: a merge has removed the keys' older rows meanwhile. Read the watermark again.
        TableDamaged: a table lacks rows that LakeMQ wrote.
    """
    # open all tables before reading any. An opened version stays readable for long, however slow this is; a later
    # merge may remove the rows that keys had at the watermark
    handles = {name: _open_at_step(store, BY_NAME[name], watermark.step) for name in names}
    check_versions(store, watermark, handles)
    tables = {name: _read_newest(handle, watermark.step) for name, handle in handles.items() if name != DELAYED.name}
    # a deleted topic may have a row in one table and none in the other
    counts = _partition_counts(tables[PARTITIONS.name].filter(~pc.field("removed")))
    if unnamed := counts.keys() - set(tables[TOPICS.name].column("topic_id").to_pylist()):
        raise make_damage_error(
            store, f"{TOPICS.name} lacks topic {min(unnamed)}, of which {PARTITIONS.name} has partitions"
        )
    state = restore(watermark, tables)
    for topic in state.topics.values():
        count, expected = counts.get(topic.topic_id, 0), topic.log_count
        if count < expected:  # their offsets would be given out again
            raise make_damage_error(
                store, f"{PARTITIONS.name} has {count} partitions of {topic.topic}, expected {expected}"
            )
    if DELAYED.name in handles:
        restore_pieces(state, WaitingRows(handles[DELAYED.name], watermark.step).read())
    return state


def check_versions(store: Store, watermark: WatermarkRow, handles: Mapping[str, TableHandle]) -> None:
    """Raise TableDamaged if a table is older than the watermark says: the newest entries of its log are lost.

    Else fewer rows would be shown, and offsets given out again. handles: opened after the watermark was read.
    """
    for name, version in least_versions(watermark).items():
        if name in handles and handles[name].version < version:
            raise make_damage_error(store, f"{name} is at version {handles[name].version}, expected {version} or later")


def least_versions(watermark: WatermarkRow) -> dict[str, int]:
    """Return for each table's name the least version of its log that holds the watermark's step."""
    return {entry["table"]: entry["version"] for entry in watermark.versions}


def _partition_counts(partitions: pa.Table) -> dict[int, int]:
    counted = pc.value_counts(partitions.column("topic_id").combine_chunks())
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def _read_newest(handle: TableHandle, step: int) -> pa.Table:
    # `where` and not a bound, which would skip a file whose statistics in Delta's log are damaged
    return select_newest(handle.spec.validate(handle.read(where=pc.field("step") <= step)), handle.spec.keys)


def _open_at_step(store: Store, spec: TableSpec, step: int) -> TableHandle:
    handle = store.open(spec)
    if handle.floor() > step:
        raise StepTooOld(f"{spec.name} was merged.", found=step, expected=f"a step from {handle.floor()} on")
    return handle


def read_delayed_rows(handle: TableHandle, step: int | None = None) -> pa.Table:
    """Return all rows of ranges that still wait at the step, and few other rows of `delayed`.

    Rows of ended ranges stay for days, and may be a hundred times as many. Of these, only rows of the same files are
    read.
    """
    there = handle.read(where=~pc.field("removed"), step=(None, step))
    files = pc.field("file_id").isin(pc.unique(there.column("file_id")))
    return pa.concat_tables([there, handle.read(where=pc.field("removed") & files, step=(None, step))])
