"""Metrics of the disk that holds a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakemq.engine.namespace.processes.extras import needs
from lakemq.jobs.metrics.families import FamilyBuilder
from lakemq.jobs.state.free_space import read_free_space

with needs("metrics"):
    from prometheus_client.core import Metric

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.observer import Observation


def read_store(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the room on the disk."""
    space = read_free_space(mq.namespace.files)
    sizes = [] if space is None else [((), space.size_bytes)]
    free = [] if space is None else [((), space.free_bytes)]
    yield build.gauge(
        "lakemq_store_size_bytes", "Bytes of the disk that are taken or free; missing for an object store.", (), sizes
    )
    yield build.gauge("lakemq_store_free_bytes", "Free bytes of the disk; missing for an object store.", (), free)
