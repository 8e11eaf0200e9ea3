"""The projections in memory: passes add rows to them, and a state is restored from them as recovery does."""

from collections.abc import Sequence

import pyarrow as pa

from lakemq.engine.protocol.projection import RESTORED, project, restore
from lakemq.engine.protocol.rows.clients import build_watermark
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.state import State
from lakemq.tables.specs.journal import WatermarkRow
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.store import select_newest

Tables = dict[str, pa.Table]


def add_pass(tables: Tables, state: State, steps: Sequence[Step]) -> None:
    """Add the rows that a pass over these steps writes. `state` is the state after the last of them."""
    for name, rows in project(state, steps).items():
        tables[name] = pa.concat_tables([tables.get(name, BY_NAME[name].empty()), rows])


def restored(mark: pa.Table, tables: Tables, left_in: Sequence[str] = RESTORED) -> State:
    """Restore a state. mark: the watermark that the last pass wrote."""

    def read_newest(spec: TableSpec) -> pa.Table:
        return select_newest(tables.get(spec.name, spec.empty()), spec.keys)

    (columns,) = mark.to_pylist()
    return restore(WatermarkRow(**columns), {name: read_newest(BY_NAME[name]) for name in left_in})


def mark_of(state: State) -> pa.Table:
    return build_watermark(state, 0)
