"""What the journal holds: steps, each of them a list of entries, each of them a record and what belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import msgspec

from . import clients, leader
from .base import Record
from .kinds import SUBJECTS
from .segments import NO_SEGMENTS, Segments

RECORDS: tuple[type[Record], ...] = tuple(kind for subject in (*SUBJECTS, clients, leader) for kind in subject.RECORDS)

if TYPE_CHECKING:
    AnyRecord = Record
else:
    AnyRecord = Union[RECORDS]  # noqa: UP007


FORMAT_VERSION = 1


class JournalEntry(msgspec.Struct, frozen=True):
    """One row of the journal: a record, its segments, and the request it was decided for; None: time brought it."""

    record: AnyRecord
    segments: Segments = NO_SEGMENTS
    request_id: str | None = None


class Step(msgspec.Struct, frozen=True):
    """One commit of the journal: all that a sequencer decided in one turn, in order. `step`: its number.

    rows: an Arrow stream of the message rows that ride in it, of which its `rows_journaled` tells; None where it has
    none, or where they were not read.
    """

    step: int
    decided_at_ms: int
    leader_epoch: int
    entries: list[JournalEntry]
    rows: bytes | None = None
