"""The projections in memory: passes add to them, and a state comes back out of them, as recovery does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakemq.engine.protocol.projection import project, watermark
from lakemq.engine.protocol.records import StepDecisions
from lakemq.engine.protocol.snapshot import restore
from lakemq.engine.protocol.state import State
from lakemq.tables.specs.groups import CONSUMER_OFFSETS, ConsumerOffsetRow
from lakemq.tables.specs.producers import PRODUCERS, ProducerRow
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import PARTITIONS, TOPICS, TopicRow
from lakemq.tables.specs.watermarks import WatermarkRow
from lakemq.tables.storage.changelog import newest

Tables = dict[str, pa.Table]


def add_pass(tables: Tables, state: State, steps: Sequence[StepDecisions]) -> None:
    """What a pass over these steps writes; `state` is the fold up to the last of them."""
    for name, rows in project(state, steps).items():
        tables[name] = pa.concat_tables([tables.get(name, BY_NAME[name].empty()), rows])


def restored(mark: pa.Table, tables: Tables) -> State:
    """mark: the watermark that the last pass wrote."""

    def now(spec: TableSpec) -> pa.Table:
        return newest(tables.get(spec.name, spec.empty()), spec.keys)

    def rows(row: Any, spec: TableSpec) -> list[Any]:
        return [row(**values) for values in now(spec).to_pylist()]

    (told,) = mark.to_pylist()
    producers, offsets = rows(ProducerRow, PRODUCERS), rows(ConsumerOffsetRow, CONSUMER_OFFSETS)
    return restore(WatermarkRow(**told), rows(TopicRow, TOPICS), now(PARTITIONS), producers, offsets)


def mark_of(state: State) -> pa.Table:
    return watermark(state, 0, 1)
