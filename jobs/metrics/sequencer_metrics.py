"""Metrics of the sequencer: who leads and who stands by, how fast it steps, what waits for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakemq.engine.client.leadership import find_store_now_ms, read_leadership
from lakemq.engine.namespace.loading.load import read_watermark
from lakemq.engine.namespace.processes.extras import needs
from lakemq.engine.sequencer.step_durations import BOUNDS_S
from lakemq.jobs.metrics.families import FamilyBuilder
from lakemq.tables.storage.coordination.mailbox import LETTERS

with needs("metrics"):
    from prometheus_client.core import HistogramMetricFamily, Metric

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.observer import Observation
    from lakemq.engine.sequencer.serving import Serving

MOST_LETTERS = 10_000
"""How many waiting letters are counted at most: a listing of more takes too long for a scrape."""


def read_sequencer(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield who leads and who stands by, and how old the last step is."""
    leadership = read_leadership(mq.namespace.files, observation.state)
    is_led = bool(leadership.leader) and not leadership.has_died
    yield build.counter(
        "lakemq_steps_total", "Steps that were decided since the namespace exists.", (), [((), leadership.step)]
    )
    yield build.value(
        "lakemq_last_step_timestamp_seconds",
        "When the last step was put, by the store's clock.",
        leadership.put_ms / 1000,
    )
    yield build.value(
        "lakemq_last_step_age_seconds",
        "Time since the last step, by the store's clock.",
        leadership.silent_ms / 1000,
    )
    yield build.value(
        "lakemq_sequencer_present", "1 if a sequencer leads and its process is not known to be dead.", is_led
    )
    yield build.info("lakemq_leader", "The sequencer that leads; empty if none does.", {"sequencer": leadership.leader})
    yield build.value("lakemq_leader_epoch", "Epoch of the lease. It grows with each take-over.", leadership.epoch)
    yield build.value(
        "lakemq_lease_seconds",
        "How long a standby waits without a step before it takes over.",
        leadership.lease_ms / 1000,
    )
    yield build.gauge(
        "lakemq_standby_present",
        "1 for each sequencer that `lakemq serve` has standing by.",
        ("sequencer",),
        (((name,), 1) for name in leadership.standbys),
    )


def read_waiting(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the letters that wait, and how far the tables are behind the steps."""
    letters = mq.namespace.mailbox.list_waiting(MOST_LETTERS)
    put_ms = mq.namespace.files.modified_ms(f"{LETTERS}/{letters[0].name}") if letters else None
    age_ms = 0 if put_ms is None else max(0, find_store_now_ms(mq.namespace.files) - put_ms)
    watermark = read_watermark(mq.namespace.store)
    yield build.value(
        "lakemq_letters_waiting", f"Letters that wait for the sequencer, counted up to {MOST_LETTERS}.", len(letters)
    )
    yield build.value("lakemq_oldest_letter_age_seconds", "Age of the oldest waiting letter.", age_ms / 1000)
    yield build.value("lakemq_projected_step", "Step up to which all tables are complete.", watermark.step)
    yield build.value(
        "lakemq_projection_lag_steps",
        "Steps that the tables do not hold yet, up to the last one that changed more than the lease.",
        max(0, observation.decided_step - watermark.step),
    )


def read_serving(serving: Serving, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield what only the serving process itself knows: whether it leads, and how long its steps take."""
    sequencer = serving.sequencer
    yield build.gauge(
        "lakemq_sequencer_leads",
        "1 if the sequencer of this process leads, 0 if it stands by.",
        ("sequencer",),
        [((sequencer.name,), sequencer.leads)],
    )
    durations = serving.durations.read()
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, map(float, itertools.accumulate(durations.counts)), strict=True))
    yield HistogramMetricFamily(
        "lakemq_step_duration_seconds",
        "Duration of the steps of this process, from taking letters to sending replies.",
        buckets=buckets,
        sum_value=durations.sum_s,
        unit="seconds",
    )
    yield build.counter(
        "lakemq_letters_decided_total", "Letters that this process has decided.", (), [((), durations.letters)]
    )
