"""The times of a page's charts, and the samples to draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakemq.engine.client.sequencers import find_store_now_ms
from lakemq.jobs.console import parts as ui
from lakemq.jobs.console.changes import read_number
from lakemq.jobs.console.console import Console
from lakemq.jobs.reports.samples import Samples, read_samples
from lakemq.tables.specs.journal import SAMPLES

_RANGES = {15: "15 min", 60: "1 h", 360: "6 h", 1440: "24 h"}
_MOST_MINUTES = 7 * 24 * 60


def read_minutes(inputs: Mapping[str, Any]) -> int:
    """Return how many minutes the charts of a page reach back."""
    return read_number(inputs, "minutes", 60, low=1, high=_MOST_MINUTES)


def offer_ranges(path: str, **inputs: Any) -> ui.Actions:
    """Return links to the same page with other times."""
    return ui.Actions(
        [ui.Link(text, ui.make_link(path, **inputs, minutes=minutes)) for minutes, text in _RANGES.items()]
    )


def read_last(console: Console, minutes: int, topic: str | None = None, group: str | None = None) -> Samples:
    """Return the samples of the last minutes, up to now: of a topic, of a group, or all."""
    handle, until_ms = console.mq.namespace.store.open(SAMPLES), find_store_now_ms(console.mq.namespace.files)
    with console.observer.look() as now:
        return read_samples(handle, until_ms - 60_000 * minutes, until_ms, topic, group, now)
