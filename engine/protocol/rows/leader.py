"""The table `watermarks`: the leader, and the next numbers."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.watermarks import WATERMARKS, WatermarkRow

from ..values.delayed.waiting import Delays
from ..values.state import State


def build_watermark(state: State, floor: int) -> pa.Table:
    """Return the row that declares all tables complete up to the state's step. Whoever writes it adds the versions."""
    row = WatermarkRow(
        step=state.step,
        floor=floor,
        decided_at_ms=state.now_ms,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        lease_ms=state.lease_ms,
        next_topic_id=state.next_topic_id,
        next_producer_id=state.next_producer_id,
        routing_step=state.routing_step,
        delay_pointer_ms=state.delays.pointer_ms,
        versions=[],
    )
    return WATERMARKS.table([row])


def create_state(watermark: WatermarkRow) -> State:
    """Return a state with nothing but the watermark."""
    return State(
        step=watermark.step,
        now_ms=watermark.decided_at_ms,
        leader=watermark.leader,
        leader_epoch=watermark.leader_epoch,
        lease_ms=watermark.lease_ms,
        next_topic_id=watermark.next_topic_id,
        next_producer_id=watermark.next_producer_id,
        routing_step=watermark.routing_step,
        delays=Delays(watermark.delay_pointer_ms),
    )
