"""Charts of the table `samples`: rates, lag in messages and in time, steps, lateness of delayed messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakemq.engine.client.sequencers import find_store_now_ms
from lakemq.jobs.console.changes import read_number
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.parts import Actions, LineChart, Link, Part, make_link
from lakemq.jobs.reports.samples import Numbers, Samples, add_up, read_samples, sort_by_size
from lakemq.tables.specs.journal import SAMPLES

_RANGES = {15: "15 min", 60: "1 h", 360: "6 h", 1440: "24 h"}
_MOST_MINUTES = 7 * 24 * 60


def read_minutes(inputs: Mapping[str, Any]) -> int:
    """Return how many minutes the charts of a page reach back."""
    return read_number(inputs, "minutes", 60, low=1, high=_MOST_MINUTES)


def offer_ranges(path: str, **inputs: Any) -> Actions:
    """Return links to the same page with other times."""
    return Actions([Link(text, make_link(path, **inputs, minutes=minutes)) for minutes, text in _RANGES.items()])


def read_last(console: Console, minutes: int, topic: str | None = None, group: str | None = None) -> Samples:
    """Return the samples of the last minutes, up to now: of a topic, of a group, or all."""
    handle, until_ms = console.mq.namespace.store.open(SAMPLES), find_store_now_ms(console.mq.namespace.files)
    with console.observer.look() as now:
        return read_samples(handle, until_ms - 60_000 * minutes, until_ms, topic, group, now)


def draw_topics(samples: Samples) -> list[Part]:
    """Return what came into topics."""
    return [_draw("Produced per topic", "messages/s", samples, sort_by_size(samples.produced))]


def draw_groups(samples: Samples, by: int = 1) -> list[Part]:
    """Return what groups consumed and what is left for them, with a line per topic (by=0) or group (by=1)."""
    name = ("topic", "group")[by]
    ages = {key: age_ms / 1000 for key, age_ms in add_up(samples.lag_ms, by, largest=True).items()}
    return [
        _draw(f"Consumed per {name}", "messages/s", samples, add_up(samples.consumed, by)),
        _draw(f"Lag per {name}", "messages", samples, add_up(samples.lag, by)),
        _draw(f"Lag in time per {name}: age of the oldest message that is left", "s", samples, ages),
    ]


def draw_sequencer(samples: Samples) -> list[Part]:
    """Return how many steps there were, how long they took, and how late delayed messages were."""
    times = {"p50": samples.step_p50_ms, "p99": samples.step_p99_ms}
    return [
        _draw("Steps", "steps/s", samples, {"steps": samples.steps}),
        _draw("Step time", "ms", samples, times),
        _draw("Lateness of delayed messages", "ms", samples, {"latest": samples.late_ms}),
    ]


def _draw(title: str, unit: str, samples: Samples, lines: Mapping[str, Numbers]) -> LineChart:
    values = {name: line.tolist() for name, line in lines.items()}
    return LineChart(title, unit, samples.edges_ms[1:].tolist(), values)
