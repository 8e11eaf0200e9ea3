"""Results as the journal and `clients` keep them: JSON. A kind that this version does not know is a newer one's."""

from __future__ import annotations

import msgspec

from ..errors import NewerFormat
from ..values.kinds import OUTCOMES, AnyResult


class _Tag(msgspec.Struct):
    outcome: str


class _Tags(msgspec.Struct):
    results: list[_Tag]


_results: msgspec.json.Decoder[list[AnyResult]] = msgspec.json.Decoder(list[AnyResult])
_tags = msgspec.json.Decoder(list[_Tag])
_tags_of_answered = msgspec.json.Decoder(_Tags)


def decode_results(text: str) -> list[AnyResult]:
    """Raises NewerFormat; ValidationError: no results."""
    try:
        return _results.decode(text)
    except msgspec.ValidationError:
        _check_known(_tags.decode(text))
        raise


def check_answered(text: str) -> None:
    """Raises NewerFormat where this JSON of an `answered` has a result that a newer version knows."""
    _check_known(_tags_of_answered.decode(text).results)


def _check_known(tags: list[_Tag]) -> None:
    for tag in tags:
        if tag.outcome not in OUTCOMES:
            raise NewerFormat(found=f"a result {tag.outcome}", expected="one that this version knows") from None
