"""Acknowledgements that the group refused after the call that made them, kept until a call can raise the error."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ....protocol.errors import FencedMemberEpoch, InvalidRecordState, LakeMQError
from ...spans import Span, Spans

_MOST_SPANS = 10
"""Ranges of offsets that an error names per partition: a reader needs an example, not thousands."""


class Refusals:
    """Keeps each refusal until it is raised, and raises it once. Not thread-safe."""

    def __init__(self) -> None:
        self._fenced: dict[str, None] = {}
        self._invalid: dict[str, Spans] = {}
        self._others: dict[str, LakeMQError] = {}

    def note_fence(self, partitions: Iterable[str]) -> None:
        """Keep that these partitions belonged to another member when the acknowledgements arrived."""
        self._fenced.update(dict.fromkeys(partitions))

    def note_invalid(self, partition: str, spans: Iterable[Span]) -> None:
        """Keep that the member did not have these messages."""
        for span in spans:
            self._invalid.setdefault(partition, Spans()).add(*span)

    def note_error(self, error: LakeMQError) -> None:
        """Keep the error with which a whole request was refused."""
        self._others.setdefault(str(error), error)

    def raise_all(self) -> None:
        """Raise and forget all refusals. Of several errors, each is the `__cause__` of the one before it."""
        fenced = [FencedMemberEpoch(found=[partition]) for partition in self._fenced]
        errors = [*fenced, *self._take_invalid(), *self._others.values()]
        self._fenced, self._others = {}, {}
        raise_chain(errors)

    def raise_invalid(self) -> None:
        """Raise and forget the refusals of messages that the member did not have; keep the others."""
        raise_chain(self._take_invalid())

    def _take_invalid(self) -> list[LakeMQError]:
        invalid, self._invalid = self._invalid, {}
        return [invalid_error(partition, spans) for partition, spans in invalid.items()]


def invalid_error(partition: str, spans: Iterable[Span]) -> InvalidRecordState:
    """Return the error that names these messages of a partition."""
    sorted_spans = sorted(spans)
    names = ", ".join(f"{first} to {end - 1}" for first, end in sorted_spans[:_MOST_SPANS])
    return InvalidRecordState(found=f"{partition}, offsets {names}{', ...' if len(sorted_spans) > _MOST_SPANS else ''}")


def raise_chain(errors: list[LakeMQError]) -> None:
    """Raise the first error, if there is one; each next one is the cause of the one before it."""
    for error, following in pairwise(errors):
        error.__cause__ = following
    if errors:
        raise errors[0]
