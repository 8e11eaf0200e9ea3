"""From what is stored to a state: the projections at the watermark, then the journal's tail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from msgspec import MsgspecError

from lakemq.tables.specs.delayed import DELAYED
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import PARTITIONS, TOPICS
from lakemq.tables.specs.watermarks import WATERMARKS, WatermarkRow
from lakemq.tables.storage.changelog import newest
from lakemq.tables.storage.foreign import foreign_commits
from lakemq.tables.storage.store import Store, TableHandle

from ..protocol.errors import StepTooOld, TableDamaged
from ..protocol.projection import RESTORED, restore
from ..protocol.values.state import State

T = TypeVar("T")

_SHOWN = 3

BEGINNING = WatermarkRow(
    step=0,
    floor=0,
    journal_start=1,
    decided_at_ms=0,
    leader="",
    leader_epoch=0,
    lease_ms=0,
    next_topic_id=1,
    next_producer_id=0,
    routing_step=0,
    delay_pointer_ms=0,
)
"""The watermark of a namespace in which nothing was projected yet."""


def read_watermark(store: Store) -> WatermarkRow:
    """The newest watermark."""
    handle = store.open(WATERMARKS)
    files = handle.files()
    last = max((f.statistics["max.step"] or 0 for f in files), default=0)
    if last != handle.last_step():
        raise _damaged(store, f"{WATERMARKS.name} goes up to step {last}, expected {handle.last_step()}")
    if not files:
        return BEGINNING
    newest_row: WatermarkRow = WATERMARKS.rows(WATERMARKS.checked(handle.read(step=(last, None))))[-1]
    return newest_row


def load_state(store: Store, watermark: WatermarkRow, names: Sequence[str] = RESTORED) -> State:
    """The state at the watermark, as these tables have it: all that there are, READERS or MEMBERS.

    Raises StepTooOld when a merge has forgotten meanwhile what keys were then: read the watermark again; TableDamaged.
    """
    tables = {name: _newest(store, BY_NAME[name], watermark.step) for name in names}
    # of a deleted topic a row may be left in one table, and none in the other
    counts = _partition_counts(tables[PARTITIONS.name].filter(~pc.field("removed")))
    if unnamed := counts.keys() - set(tables[TOPICS.name].column("topic_id").to_pylist()):
        raise _damaged(store, f"{TOPICS.name} lacks topic {min(unnamed)}, of which {PARTITIONS.name} has partitions")
    state = restore(watermark, tables)
    for topic in state.topics.values():
        found, expected = counts.get(topic.topic_id, 0), topic.log_count
        if found < expected:  # their offsets would be given out again
            raise _damaged(store, f"{PARTITIONS.name} has {found} partitions of {topic.topic}, expected {expected}")
    return state


def _partition_counts(partitions: pa.Table) -> dict[int, int]:
    counted = pc.value_counts(partitions.column("topic_id").combine_chunks())
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


@contextmanager
def damage_told(store: Store) -> Iterator[None]:
    """What goes wrong in reading the state because the tables hold something else than was written is TableDamaged.

    These are what decoding raises; a TypeError or AttributeError is a mistake of ours, and told as itself.
    """
    try:
        yield
    except (LookupError, ValueError, OverflowError, MsgspecError, pa.ArrowTypeError) as error:
        raise _damaged(store, f"{type(error).__name__}: {error}") from error


def _damaged(store: Store, what: str) -> TableDamaged:
    return TableDamaged(
        f"{what}. Commits of somebody else: {_foreign(store)}.",
        expected="what LakeMQ wrote: restore the namespace from a backup",
    )


def _foreign(store: Store) -> str:
    try:
        foreign = [str(one) for one in islice(foreign_commits(store), _SHOWN)]
    except (OSError, DeltaError):
        return "unknown, for a log cannot be read"
    return "; ".join(foreign) or "none that the logs still have"


def _newest(store: Store, spec: TableSpec, step: int) -> pa.Table:
    handle = store.open(spec)
    if handle.floor() > step:
        raise StepTooOld(f"{spec.name} was compacted.", found=step, expected=f"a step from {handle.floor()} on")
    rows = newest_delayed(handle, step) if spec is DELAYED else handle.read(step=(None, step))
    return newest(spec.checked(rows), spec.keys)


def newest_delayed(handle: TableHandle, step: int | None = None) -> pa.Table:
    """Of `delayed`, up to the step, all rows of the ranges that are there still, and not many of others.

    What has ended stays for days, and may be a hundred times as much: of that only what shares a file is read.
    """
    there = handle.read(where=~pc.field("removed"), step=(None, step))
    files = pc.field("file_id").isin(pc.unique(there.column("file_id")))
    return pa.concat_tables([there, handle.read(where=pc.field("removed") & files, step=(None, step))])
