"""Metrics of the place where a namespace is: its disk, and the sequencers that stand by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakemq.engine.namespace.processes.extras import needs
from lakemq.jobs.metrics.families import FamilyBuilder
from lakemq.jobs.metrics.sequencer_metrics import store_now_ms
from lakemq.jobs.state.free_space import read_free_space
from lakemq.tables.storage.coordination.standby_signs import StandbySigns

with needs("metrics"):
    from prometheus_client.core import Metric

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.observer import Observation


def read_store(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the room on the disk, and who stands by."""
    space = read_free_space(mq.namespace.files)
    sizes = [] if space is None else [((), space.size_bytes)]
    free = [] if space is None else [((), space.free_bytes)]
    yield build.gauge("lakemq_store_size_bytes", "Size of the disk; missing for an object store.", (), sizes)
    yield build.gauge("lakemq_store_free_bytes", "Free bytes of the disk; missing for an object store.", (), free)
    standbys = StandbySigns(mq.namespace.files).list_present(store_now_ms(mq))
    yield build.gauge(
        "lakemq_standby_present",
        "1 for each sequencer that `lakemq serve` has standing by.",
        ("sequencer",),
        (((name,), 1) for name in standbys),
    )
