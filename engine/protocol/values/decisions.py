"""Decisions: what the journal holds, step by step, and what deciding one request is given and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import msgspec

from . import clients, leader
from .base import Record
from .kinds import SUBJECTS, AnyResult
from .segments import NO_SEGMENTS, Segments

RECORDS: tuple[type[Record], ...] = tuple(kind for subject in (*SUBJECTS, clients, leader) for kind in subject.RECORDS)

if TYPE_CHECKING:
    AnyRecord = Record
else:
    AnyRecord = Union[RECORDS]  # noqa: UP007


FORMAT_VERSION = 1


class Decided(msgspec.Struct, frozen=True):
    """A record with the segments that belong to it."""

    record: AnyRecord
    segments: Segments = NO_SEGMENTS
    request_id: str | None = None


class StepDecisions(msgspec.Struct, frozen=True):
    """All that one step decided: one commit of the journal.

    rows: an Arrow stream of the message rows that ride in it, of which its `rows_journaled` tells; None where it has
    none, or where they were not read.
    """

    step: int
    decided_at_ms: int
    leader_epoch: int
    decisions: list[Decided]
    rows: bytes | None = None


@dataclass(frozen=True)
class Decision:
    """No record means that nothing changes."""

    result: AnyResult
    decided: tuple[Decided, ...] = ()
