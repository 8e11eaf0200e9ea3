"""Read the table `samples` as lines over time: for the console, and for `lakemq report`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.namespace.progress import MINUTE_MS, Subject, build_sample, list_subjects
from lakemq.tables.specs.journal import SAMPLES

if TYPE_CHECKING:
    from lakemq.engine.client.operator_tools import Observation
    from lakemq.tables.storage.delta.store import TableHandle

Numbers = npt.NDArray[np.float64]

_MOST_POINTS = 360
"""Points of a line: more would be closer together than a screen shows."""

_VALUES = ("minute_ms", "offsets", "lag", "steps", "step_p50_ms", "step_p99_ms", "late_ms")


@dataclass(frozen=True)
class Samples:
    """Lines over time, with a value for each interval. NaN: there is none.

    Attributes:
        edges_ms: the beginning of the first interval, then the end of each.
        produced: topic -> offsets per second.
        consumed, lag, lag_ms: topic and group -> offsets per second; offsets that are left for the group at the end;
            how long the oldest of these has been there.
        steps: steps per second.
        step_p50_ms, step_p99_ms: how long half, and 99 of 100, of the steps of a minute took at most.
        late_ms: how late a delayed message was released at most.
    """

    edges_ms: Numbers
    produced: Mapping[str, Numbers]
    consumed: Mapping[Subject, Numbers]
    lag: Mapping[Subject, Numbers]
    lag_ms: Mapping[Subject, Numbers]
    steps: Numbers
    step_p50_ms: Numbers
    step_p99_ms: Numbers
    late_ms: Numbers

    @property
    def seconds(self) -> Numbers:
        """The length of each interval."""
        return np.diff(self.edges_ms) / 1000

    def count(self, rates: Iterable[Numbers]) -> int:
        """Return how many there were in all, by their rates."""
        return round(sum(float(np.nansum(rate * self.seconds)) for rate in rates))


def read_samples(
    handle: TableHandle,
    since_ms: int,
    until_ms: int,
    topic: str | None = None,
    group: str | None = None,
    now: Observation | None = None,
) -> Samples:
    """Return the lines of a time.

    Args:
        handle: the table.
        since_ms: the beginning, rounded down to whole intervals.
        until_ms: the end.
        topic: only this topic, and groups in it.
        group: only this group, and all topics.
        now: the namespace at the end of the time, if that is the present: the minute that goes on has no rows yet.
    """
    where = pc.field("minute_ms") < until_ms
    where &= pc.field("topic").isin(["", topic]) if topic is not None else True
    where &= pc.field("group").isin(["", group]) if group is not None else True
    rows = handle.read(("step", "topic", "group", *_VALUES), where)
    if now is not None:
        subjects = (
            s for s in list_subjects(now.state) if topic in (None, s[0]) and (not s[1] or group in (None, s[1]))
        )
        live = SAMPLES.table(build_sample(now.state, subject, until_ms - MINUTE_MS) for subject in subjects)
        rows = pa.concat_tables([rows, live.select(rows.column_names)])
    return _draw(_split_by_subject(rows), _make_edges(since_ms, until_ms))


def add_up(lines: Mapping[Subject, Numbers], by: int, largest: bool = False) -> dict[str, Numbers]:
    """Return the sums per topic (by=0) or group (by=1), those with the largest values first.

    largest: return the largest values and no sums.
    """
    parts: dict[str, list[Numbers]] = {}
    for subject, values in lines.items():
        parts.setdefault(subject[by], []).append(values)
    summed = {name: np.fmax.reduce(own) if largest else _add(own) for name, own in parts.items()}
    return sort_by_size(summed)


def sort_by_size(lines: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Return the lines with the largest values first."""
    return dict(sorted(lines.items(), key=lambda line: -float(np.nan_to_num(line[1]).max(initial=0))))


def _add(lines: list[Numbers]) -> Numbers:
    return np.where(np.isnan(lines).all(axis=0), np.nan, np.nansum(lines, axis=0))


def _make_edges(since_ms: int, until_ms: int) -> Numbers:
    length_ms = MINUTE_MS * max(1, math.ceil((until_ms - since_ms) / MINUTE_MS / _MOST_POINTS))
    edges = np.arange(since_ms // length_ms * length_ms, until_ms, length_ms, dtype=np.float64)
    # The last interval is not shorter than the others: the rows of a minute come late, and would make a peak in it.
    return np.concatenate([edges[:1], edges[1:][edges[1:] <= until_ms - length_ms], [until_ms]])


def _split_by_subject(rows: pa.Table) -> dict[Subject, dict[str, Numbers]]:
    """Return the values of each subject, in order of steps. A week may have a million rows, hence as columns."""
    if not rows.num_rows:
        return {}
    topics, groups = (rows.column(name).combine_chunks().dictionary_encode() for name in ("topic", "group"))
    places = topics.indices.to_numpy().astype(np.int64) * len(groups.dictionary) + groups.indices.to_numpy()
    order = np.lexsort((rows.column("step").to_numpy(), places))
    values = {name: rows.column(name).to_numpy()[order].astype(np.float64) for name in _VALUES}
    firsts = np.flatnonzero(np.diff(places[order], prepend=-1))
    return {
        (topics[row].as_py(), groups[row].as_py()): {name: column[first:end] for name, column in values.items()}
        for row, first, end in zip(order[firsts].tolist(), firsts, [*firsts[1:], len(order)], strict=True)
    }


def _draw(histories: Mapping[Subject, Mapping[str, Numbers]], edges: Numbers) -> Samples:
    seconds, produced = np.diff(edges) / 1000, dict[str, Numbers]()
    consumed, lags, lags_ms = dict[Subject, Numbers](), dict[Subject, Numbers](), dict[Subject, Numbers]()
    own = _draw_own_lines(histories.get(("", "")), edges)
    for (topic, group), values in sorted(histories.items()):
        ends = np.minimum(values["minute_ms"] + MINUTE_MS, edges[-1])
        if topic and not group:
            totals = _find_values(edges, ends, values["offsets"], 0.0)
            rates = np.maximum(np.diff(np.nan_to_num(totals)), 0) / seconds
            produced[topic] = np.where(np.isnan(totals[1:]), np.nan, rates)
        elif topic:
            done = np.diff(_find_values(edges, ends, values["offsets"], np.nan))
            lag = _find_values(edges, ends, values["lag"], np.nan)[1:]
            consumed[topic, group] = np.fmax(done, 0) / seconds
            lags[topic, group] = lag
            lags_ms[topic, group] = _find_ages(edges, histories.get((topic, "")), lag)
    return Samples(edges, produced, consumed, lags, lags_ms, own.pop("steps") / seconds, **own)


def _find_values(edges: Numbers, ends: Numbers, values: Numbers, before: float) -> Numbers:
    """Return the value at each edge: that of the last row up to it, as a minute without a row has changed nothing."""
    index = np.searchsorted(ends, edges, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], before)


def _find_ages(edges: Numbers, topic: Mapping[str, Numbers] | None, lag: Numbers) -> Numbers:
    """Return how long ago the topic had as many offsets as the group is done with now: the age of the next one."""
    if topic is None:
        return np.full(len(lag), np.nan)
    ends = np.minimum(topic["minute_ms"] + MINUTE_MS, edges[-1])
    totals = np.maximum.accumulate(np.nan_to_num(topic["offsets"]))
    # between two rows the topic did not grow before the minute of the second
    times = np.maximum.accumulate(np.column_stack([ends - MINUTE_MS, ends]).ravel())
    counts = np.column_stack([np.concatenate([[0.0], totals[:-1]]), totals]).ravel()
    done = _find_values(edges, ends, totals, 0.0)[1:] - lag
    return np.where(lag > 0, np.maximum(edges[1:] - np.interp(done, counts, times), 0), lag * 0)


def _draw_own_lines(values: Mapping[str, Numbers] | None, edges: Numbers) -> dict[str, Any]:
    count = len(edges) - 1
    lines = {name: np.full(count, np.nan) for name in ("step_p50_ms", "step_p99_ms", "late_ms")}
    if values is None:
        return {"steps": np.zeros(count), **lines}
    values = {name: column[values["steps"] != 0] for name, column in values.items()}  # 0: a time without a step
    at = np.searchsorted(edges, np.minimum(values["minute_ms"] + MINUTE_MS, edges[-1])) - 1
    inside = at >= 0
    for name, line in lines.items():
        np.fmax.at(line, at[inside], values[name][inside])
    return {"steps": np.bincount(at[inside], np.nan_to_num(values["steps"][inside]), count), **lines}
