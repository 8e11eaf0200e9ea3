"""Steps: each is a list of entries, and an entry is a record with its segments.

A step is one object of the step log. Later its entries also become rows of the table `journal`, without message rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import msgspec
import pyarrow as pa

from lakemq.tables.specs.topics import SEGMENT_SCHEMA

from . import clients
from .base import Record
from .kinds import SUBJECTS
from .segments import NO_SEGMENTS, Segments, segments_to_table

RECORDS: tuple[type[Record], ...] = tuple(kind for subject in (*SUBJECTS, clients) for kind in subject.RECORDS)

if TYPE_CHECKING:
    AnyRecord = Record
else:
    AnyRecord = Union[RECORDS]  # noqa: UP007


FORMAT_VERSION = 1
"""Of step objects and of the table `journal`. No other version is read."""


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    """A decision: a record, its segments, and the request that led to it; None if a timer did."""

    record: AnyRecord
    segments: Segments = NO_SEGMENTS
    request_id: str | None = None


MANY_SEGMENTS = 1000
"""Above this number the segments of a step are worth columns of their own. Fewer become columns together with those of
other steps.
"""


class Step(msgspec.Struct, frozen=True, dict=True):
    """Everything that a sequencer decided in one turn, in order. `step` is its number.

    rows: the message rows that the step object holds (`codec/steps.py`); the step's record `rows_journaled` says
    which rows of which data file they will be. None without such rows, or if they were not read.
    """

    step: int
    decided_at_ms: int
    leader_epoch: int
    entries: list[JournalEntry]
    rows: bytes | None = None

    @cached_property
    def has_many_segments(self) -> bool:
        return sum(len(entry.segments) for entry in self.entries) > MANY_SEGMENTS

    @cached_property
    def segments(self) -> pa.Table:
        """All segments, in order, as a table of SEGMENT_SCHEMA. It is kept: the step's object and its rows need it."""
        return segments_to_table(entry.segments for entry in self.entries)


class PlacedEntry(NamedTuple):
    """An entry, with its step and its position in it."""

    step: Step
    position: int
    entry: JournalEntry


class StepBatch(Sequence[Step]):
    """Steps in order. Their entries are sorted by kind, and their segments become columns, once for all tables."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    def find_entries(self, *kinds: type[Record]) -> list[PlacedEntry]:
        """Return the entries with records of these kinds, in order."""
        parts = [self._entries_by_kind[kind] for kind in kinds if kind in self._entries_by_kind]
        if len(parts) == 1:
            return parts[0]
        return sorted(chain.from_iterable(parts), key=lambda placed: (placed.step.step, placed.position))

    @cached_property
    def _entries_by_kind(self) -> dict[type[Record], list[PlacedEntry]]:
        by_kind: dict[type[Record], list[PlacedEntry]] = {}
        for step in self._steps:
            for position, entry in enumerate(step.entries):
                by_kind.setdefault(type(entry.record), []).append(PlacedEntry(step, position, entry))
        return by_kind

    @cached_property
    def segment_counts(self) -> list[list[int]]:
        """The number of segments of each entry, by step."""
        return [[len(entry.segments) for entry in step.entries] for step in self._steps]

    @cached_property
    def segments(self) -> pa.Table:
        """All segments, in order, as a table of SEGMENT_SCHEMA."""
        tables = [SEGMENT_SCHEMA.empty_table()]
        for has_many, steps in groupby(self._steps, key=lambda step: step.has_many_segments):
            if has_many:
                tables += [step.segments for step in steps]
            else:
                tables.append(segments_to_table(entry.segments for step in steps for entry in step.entries))
        return pa.concat_tables(tables)


def batch_steps(steps: Sequence[Step]) -> StepBatch:
    """Return the steps as a batch, which they may be already."""
    return steps if isinstance(steps, StepBatch) else StepBatch(steps)


def is_renewal(step: Step) -> bool:
    """Return whether a step only names its leader. Followers read that from the step itself."""
    return all(isinstance(entry.record, clients.LeaderElected) for entry in step.entries)
