"""The journal: steps, which are lists of entries, which are records with their segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union

import msgspec
import pyarrow as pa

from . import clients, leader
from .base import Record
from .kinds import SUBJECTS
from .segments import NO_SEGMENTS, Segments, segments_to_table

RECORDS: tuple[type[Record], ...] = tuple(kind for subject in (*SUBJECTS, clients, leader) for kind in subject.RECORDS)

if TYPE_CHECKING:
    AnyRecord = Record
else:
    AnyRecord = Union[RECORDS]  # noqa: UP007


FORMAT_VERSION = 2
"""Of steps and of the journal. Version 1 has all message rows of a step as an Arrow stream; both are read."""


class JournalEntry(msgspec.Struct, frozen=True):
    """A row of the journal: a record, its segments, and the request that led to it; None if a timer did."""

    record: AnyRecord
    segments: Segments = NO_SEGMENTS
    request_id: str | None = None


class Step(msgspec.Struct, frozen=True):
    """A commit of the journal: everything that a sequencer decided in one turn, in order. `step` is its number.

    rows: the message rows that travel in the step (`codec/step_rows.py`), described by its `rows_journaled`. None
    without such rows, or if they were not read.
    """

    step: int
    decided_at_ms: int
    leader_epoch: int
    entries: list[JournalEntry]
    rows: bytes | None = None


class StepBatch(Sequence[Step]):
    """Steps in order. Their segments become columns once, however many tables need them."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @cached_property
    def segment_counts(self) -> list[list[int]]:
        """The number of segments of each entry, by step."""
        return [[len(entry.segments) for entry in step.entries] for step in self._steps]

    @cached_property
    def segments(self) -> pa.Table:
        """All segments, in order, as a table of SEGMENT_SCHEMA."""
        return segments_to_table(entry.segments for step in self._steps for entry in step.entries)


def batch_steps(steps: Sequence[Step]) -> StepBatch:
    """Return the steps as a batch, which they may be already."""
    return steps if isinstance(steps, StepBatch) else StepBatch(steps)


def is_renewal(step: Step) -> bool:
    """Return whether a step only names its leader. Followers read that from the step itself."""
    return all(isinstance(entry.record, leader.LeaderElected) for entry in step.entries)
