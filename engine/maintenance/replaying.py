"""Whether the tables hold what the journal's decisions lead to, as far back as the journal goes."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.dead_letters import DEAD_LETTERS
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.watermarks import WATERMARKS, WatermarkRow
from lakemq.tables.storage.changelog import newest
from lakemq.tables.storage.store import TableHandle

from ..namespace.config import EngineConfig
from ..namespace.load import BEGINNING
from ..namespace.snapshot import Snapshot
from ..protocol import machine
from ..protocol.codec.journal import steps_after
from ..protocol.errors import StepTooOld
from ..protocol.projection import PROJECT, RESTORED, project, restore
from ..protocol.rows.leader import watermark
from ..protocol.values.state import State
from .merging import AGREE
from .trimming import RETENTION, Living, living, trimmed

_SEGMENTS_AGREE = tuple(name for name in AGREE if name not in ("file_id", "file_partition"))
"""What a merge leaves as it was decided."""
_SEGMENTS_SUM_UP = (
    ("base_offset", "min"),
    ("last_offset", "max"),
    ("record_count", "sum"),
    ("min_timestamp_ms", "min"),
    ("max_timestamp_ms", "max"),
    ("decided_at_ms", "max"),
    ("base_sequence", "min"),
    ("first_offset", "min"),
    ("source_offset", "min"),
)
"""What is the same of a step's segments together, however a merge cuts or joins them."""

_LETTERS_AGREE = ("source", "error", "reason", "dead_at_ms")


class Replayed(NamedTuple):
    """after_step, step: what was decided between them was replayed; differing: table -> rows not as decided."""

    after_step: int
    step: int
    differing: dict[str, int]


def compare_with_replay(snapshot: Snapshot, config: EngineConfig) -> Replayed:
    """The tables at the watermark, and those at an earlier one with all that the journal has decided since.

    Where data files are is left out: a merge changes that, and decides nothing. Raises StepTooOld: the journal was cut
    meanwhile.
    """
    base = _base(snapshot)
    last = snapshot.watermark.step
    rows = snapshot.handles[JOURNAL.name].read(step=(base.step + 1, last))
    steps = steps_after(rows, base.step)
    if steps is None or base.step + len(steps) != last:
        raise StepTooOld("The journal was cut meanwhile.", found=base.step, expected="a later step")
    then = {name: _as_of(snapshot.handles[name], base.step) for name in PROJECT}
    state = machine.replay(restore(base, {name: then[name] for name in RESTORED}), steps)
    decided = project(state, steps)
    differing = {
        name: _differing(BY_NAME[name], snapshot, then[name], decided.get(name), state, base.step, config)
        for name in PROJECT
    }
    counters = watermark(state, snapshot.watermark.floor, snapshot.watermark.journal_start)
    differing[WATERMARKS.name] = int(WATERMARKS.rows(counters)[0] != snapshot.watermark)
    return Replayed(base.step, last, differing)


def _base(snapshot: Snapshot) -> WatermarkRow:
    """The earliest watermark whose tables can still be read, and after which the journal is whole."""
    first = min((int(f.statistics["min.step"]) for f in snapshot.handles[JOURNAL.name].files()), default=None)
    if first == 1 and not any(snapshot.handles[name].floor() for name in PROJECT):
        return BEGINNING
    oldest = max(snapshot.watermark.floor, *(handle.floor() for handle in snapshot.handles.values()))
    if first is not None:
        oldest = max(oldest, first - 1)
    rows = snapshot.handles[WATERMARKS.name].read(step=(oldest, snapshot.watermark.step))
    found: WatermarkRow = WATERMARKS.rows(rows.sort_by("step").slice(0, 1))[0] if rows.num_rows else snapshot.watermark
    return found


def _as_of(handle: TableHandle, step: int) -> pa.Table:
    """Of a changelog the newest rows of its keys; of a log none: what is in it was never changed."""
    spec = handle.spec
    if spec.shape != "changelog":
        return spec.empty()
    return newest(spec.checked(handle.read(step=(None, step))), spec.keys)


def _differing(
    spec: TableSpec,
    snapshot: Snapshot,
    then: pa.Table,
    decided: pa.Table | None,
    state: State,
    after: int,
    config: EngineConfig,
) -> int:
    wanted = spec.empty() if decided is None else decided
    handle, last = snapshot.handles[spec.name], snapshot.watermark.step
    if spec.shape == "changelog":
        expected, found = newest(pa.concat_tables([then, wanted]), spec.keys), _as_of(handle, last)
        return _unlike(_told(found), _told(expected), spec.keys)
    found, now = spec.checked(handle.read(step=(after + 1, last))), living(state)
    retention_ms = config.ms(RETENTION[spec.name]) if spec.name in RETENTION else 0
    found, expected = (trimmed(spec, rows, now, retention_ms, whole=True) for rows in (found, wanted))
    if spec is SEGMENTS:
        return _unlike(*_log_ranges(found, expected, now), ("step", *_SEGMENTS_AGREE))
    if spec is DEAD_LETTERS:
        keys = ("step", *_LETTERS_AGREE)
        return _unlike(_counted(found, keys), _counted(expected, keys), keys)
    return _unlike(found, expected, (*spec.keys, "step"))


def _told(rows: pa.Table) -> pa.Table:
    """What keys are; in which pass that was told is of no matter."""
    return rows.filter(~pc.field("removed")).drop_columns("step")


def _counted(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    counted = rows.group_by(list(keys)).aggregate([("record_count", "sum")])
    return counted.select([*keys, "record_count_sum"])


def _log_ranges(found: pa.Table, expected: pa.Table, now: Living) -> tuple[pa.Table, pa.Table]:
    """Both as the ranges of offsets that each step gave out, but for what was deleted, which leaves with some merge."""
    keys = ["step", *_SEGMENTS_AGREE]
    both = [rows.group_by(keys).aggregate([*_SEGMENTS_SUM_UP]) for rows in (found, expected)]
    starts = pa.table(
        {
            "topic_id": pa.array([id for id, topic in now.topics.items() for _ in topic.log_starts], pa.int64()),
            "partition": pa.array([p for topic in now.topics.values() for p in range(topic.log_count)], pa.int32()),
            "log_start": pa.array([int(at) for topic in now.topics.values() for at in topic.log_starts], pa.int64()),
        }
    )
    deleted = (
        both[1].join(starts, ["topic_id", "partition"]).filter(pc.field("base_offset_min") < pc.field("log_start"))
    )
    gone = _keyed(deleted, keys)
    left = (rows.filter(pc.invert(pc.is_in(_key(rows, keys), gone))) for rows in both)
    return next(left), next(left)


def _keyed(rows: pa.Table, keys: list[str]) -> pa.Array:
    return _key(rows, keys).combine_chunks().unique() if rows.num_rows else pa.array([], pa.string())


def _key(rows: pa.Table, keys: list[str]) -> pa.ChunkedArray:
    """The keys as one text."""
    texts = [pc.fill_null(rows.column(name).cast(pa.string()), "\0") for name in keys]
    return pc.binary_join_element_wise(*texts, "\x1f")


def _unlike(found: pa.Table, expected: pa.Table, keys: tuple[str, ...]) -> int:
    """How many rows are in one only."""
    order = [(name, "ascending") for name in keys]
    found, expected = found.sort_by(order), expected.select(found.column_names).sort_by(order)
    if found.cast(expected.schema).combine_chunks().equals(expected.combine_chunks()):
        return 0
    one, other = _texts(found), _texts(expected)
    return ((one - other) + (other - one)).total()


def _texts(rows: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in rows.to_pylist())
