"""Charts as numbers for a small SVG template: bars over time, and bars of owners per partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

WIDTH, HEIGHT = 720, 120
"""The size of a chart in its own units; the page scales it to the width of the screen."""

_ROW_HEIGHT, _LABEL_WIDTH = 18, 140
_COLOURS = 8
"""How many classes of colours the style sheet has."""


@dataclass(frozen=True)
class Bar:
    """A rectangle with a text that appears beside the pointer."""

    x: float
    y: float
    width: float
    height: float
    title: str
    colour: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart. description: what it shows, for readers that do not see it. labels: x, y, text, and `start` or `end`."""

    title: str
    description: str
    bars: list[Bar]
    width: int
    height: int
    labels: list[tuple[float, float, str, str]]


def draw_bars(title: str, values: Sequence[tuple[str, float]], unit: str, are_rates: bool = False) -> Chart:
    """Return a chart with one bar per value. values: (label, value), in order. are_rates: their sum means nothing."""
    most = max((value for _, value in values), default=0)
    step = WIDTH / max(1, len(values))
    bars = [
        Bar(
            x=round(number * step + step * 0.1, 2),
            y=round(HEIGHT - HEIGHT * value / most, 2),
            width=round(step * 0.8, 2),
            height=round(HEIGHT * value / most, 2),
            title=f"{label}: {value:,g} {unit}",
        )
        for number, (label, value) in enumerate(values)
        if value > 0
    ]
    bottom = HEIGHT + 14.0
    labels = [(0.0, bottom, values[0][0], "start"), (float(WIDTH), bottom, values[-1][0], "end")] if values else []
    total = sum(value for _, value in values)
    summary = f"{total / max(1, len(values)):,.4g} on average" if are_rates else f"{total:,.10g} in all"
    description = f"{title}: at most {most:,g} {unit}, {summary}"
    return Chart(title, description, bars, WIDTH, HEIGHT + 20, labels)


@dataclass(frozen=True)
class OwnershipPeriod:
    """A time in which a member had a partition. until: None: it has it still."""

    partition: str
    owner: str
    since: datetime
    until: datetime | None
    reason: str


def draw_ownership(title: str, periods: Sequence[OwnershipPeriod], begin: datetime, end: datetime) -> Chart:
    """Return a chart with one row per partition, in which each owner has its colour."""
    rows = {partition: row for row, partition in enumerate(sorted({period.partition for period in periods}))}
    colours = _choose_colours(periods)
    span_s = max(1.0, (end - begin).total_seconds())
    scale = (WIDTH - _LABEL_WIDTH) / span_s
    bars = []
    for period in periods:
        since, until = max(period.since, begin), min(period.until or end, end)
        if until <= since:
            continue
        bars.append(
            Bar(
                x=round(_LABEL_WIDTH + (since - begin).total_seconds() * scale, 2),
                y=rows[period.partition] * _ROW_HEIGHT + 2,
                width=max(1.0, round((until - since).total_seconds() * scale, 2)),
                height=_ROW_HEIGHT - 4,
                title=f"{period.partition}: {period.owner} from {since:%H:%M:%S} to {until:%H:%M:%S}, {period.reason}",
                colour=colours[period.owner],
            )
        )
    labels = [(0.0, (row + 1) * _ROW_HEIGHT - 5.0, partition, "start") for partition, row in rows.items()]
    height = len(rows) * _ROW_HEIGHT
    bottom = height + 14.0
    labels += [(_LABEL_WIDTH, bottom, f"{begin:%H:%M:%S}", "start"), (WIDTH, bottom, f"{end:%H:%M:%S}", "end")]
    return Chart(title, f"{title}: {len(periods)} periods of {len(rows)} partitions", bars, WIDTH, height + 20, labels)


def _choose_colours(periods: Sequence[OwnershipPeriod]) -> Mapping[str, int]:
    owners = dict.fromkeys(period.owner for period in periods)
    return {owner: number % _COLOURS for number, owner in enumerate(owners)}
