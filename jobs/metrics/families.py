"""Build metric families: bounded in their number of series, with units in their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakemq.engine.namespace.processes.extras import needs

with needs("metrics"):
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        InfoMetricFamily,
        Metric,
        StateSetMetricFamily,
    )

MAX_SERIES = 10_000
"""The most series of one metric. A scrape of more costs Prometheus and this process more than the detail is worth."""

Row = tuple[Sequence[object], float]
"""The values of the labels, and the value."""

_UNITS = ("seconds", "bytes")


class FamilyBuilder:
    """Makes families, and counts the series that it left out because a metric has too many.

    Attributes:
        dropped: metric -> number of series that were left out.
    """

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self.dropped: dict[str, int] = {}

    def gauge(self, name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
        """Return a metric whose value goes up and down."""
        family = GaugeMetricFamily(name, meaning, labels=labels, unit=_find_unit(name))
        self._add_rows(name, family, rows)
        return family

    def counter(self, name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
        """Return a metric whose value only grows. `name` ends in `_total`."""
        family = CounterMetricFamily(name, meaning, labels=labels)
        self._add_rows(name, family, rows)
        return family

    def value(self, name: str, meaning: str, value: float) -> Metric:
        """Return a gauge without labels."""
        return self.gauge(name, meaning, (), [((), value)])

    def info(self, name: str, meaning: str, labels: Mapping[str, str]) -> Metric:
        """Return a metric that is 1 and says something with its labels. `name` has no suffix `_info`."""
        return InfoMetricFamily(name, meaning, value=dict(labels))

    def states(
        self, name: str, meaning: str, label: str, states: Sequence[str], rows: Iterable[tuple[str, str]]
    ) -> Metric:
        """Return a metric with one series per object and state, which is 1 for the state that the object has."""
        family = StateSetMetricFamily(name, meaning, labels=[label])
        for number, (subject, state) in enumerate(rows):
            if number * len(states) >= self._max_series:
                self._drop(name, len(states))
                continue
            family.add_metric([subject], {known_state: known_state == state for known_state in states})
        return family

    def _add_rows(self, name: str, family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> None:
        for number, (labels, value) in enumerate(rows):
            if number >= self._max_series:
                self._drop(name, 1)
                continue
            family.add_metric([str(label) for label in labels], value)

    def _drop(self, name: str, count: int) -> None:
        self.dropped[name] = self.dropped.get(name, 0) + count


def _find_unit(name: str) -> str:
    """Return the unit that OpenMetrics must know: the end of the name."""
    return next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")
