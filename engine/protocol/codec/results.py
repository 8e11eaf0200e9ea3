"""Results as the journal and `clients` store them: JSON. An unknown kind of result means a newer version."""

from __future__ import annotations

import msgspec

from ..errors import NewerFormat
from ..values.kinds import OUTCOMES, AnyResult


class _OutcomeTag(msgspec.Struct):
    outcome: str


class _AnsweredTags(msgspec.Struct):
    results: list[_OutcomeTag]


_results: msgspec.json.Decoder[list[AnyResult]] = msgspec.json.Decoder(list[AnyResult])
_tags = msgspec.json.Decoder(list[_OutcomeTag])
_tags_of_answered = msgspec.json.Decoder(_AnsweredTags)


def decode_results(text: str) -> list[AnyResult]:
    """Return the results. Raises NewerFormat; ValidationError for other text."""
    try:
        return _results.decode(text)
    except msgspec.ValidationError:
        _check_outcomes(_tags.decode(text))
        raise


def check_answer(text: str) -> None:
    """Raise NewerFormat if this JSON of an `answered` record has a kind of result that only a newer version knows."""
    _check_outcomes(_tags_of_answered.decode(text).results)


def _check_outcomes(tags: list[_OutcomeTag]) -> None:
    for tag in tags:
        if tag.outcome not in OUTCOMES:
            raise NewerFormat(found=f"a result {tag.outcome}", expected="one that this version knows") from None
