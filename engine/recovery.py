"""From what is stored to a state: the projections at the watermark, then the journal's tail."""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa

from lakemq.tables.changelog import newest
from lakemq.tables.groups import CONSUMER_OFFSETS, ConsumerOffsetRow
from lakemq.tables.producers import PRODUCERS, ProducerRow
from lakemq.tables.spec import TableSpec
from lakemq.tables.store import Store
from lakemq.tables.topics import PARTITIONS, TOPICS, TopicRow
from lakemq.tables.watermarks import WATERMARKS, WatermarkRow

from .protocol.errors import StepTooOld
from .protocol.snapshot import restore
from .protocol.state import State

T = TypeVar("T")

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
    subscriptions_step=0,
)
"""The watermark of a namespace in which nothing was projected yet."""


def read_watermark(store: Store) -> WatermarkRow:
    """The newest watermark."""
    handle = store.open(WATERMARKS)
    files = handle.files()
    if not files:
        return BEGINNING
    last = max(f.statistics["max.step"] for f in files)
    return _rows(WatermarkRow, handle.read(step=(last, None)))[-1]


def load_state(store: Store, watermark: WatermarkRow, with_clients: bool) -> State:
    """The state at the watermark. A reader leaves out what clients have: producers, transactions, offsets of groups.

    Raises StepTooOld when a merge has forgotten meanwhile what keys were then: read the watermark again.
    """
    return restore(
        watermark,
        _rows(TopicRow, _newest(store, TOPICS, watermark.step)),
        _newest(store, PARTITIONS, watermark.step),
        _rows(ProducerRow, _newest(store, PRODUCERS, watermark.step)) if with_clients else [],
        _rows(ConsumerOffsetRow, _newest(store, CONSUMER_OFFSETS, watermark.step)) if with_clients else [],
    )


def _newest(store: Store, spec: TableSpec, step: int) -> pa.Table:
    handle = store.open(spec)
    if handle.floor() > step:
        raise StepTooOld(f"{spec.name} was compacted.", found=step, expected=f"a step from {handle.floor()} on")
    return newest(handle.read(step=(None, step)), spec.keys)


def _rows(row: type[T], table: pa.Table) -> list[T]:
    made: Any = row
    return [made(**values) for values in table.to_pylist()]
