"""What a member asks for: the topics that it was given, or all whose names match its pattern."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.errors import InvalidRegularExpression
from ...protocol.values.groups import MAX_PATTERN
from ...protocol.values.state import State
from ..arguments import repeated, text


class Pattern:
    """A regular expression that a whole name matches.

    It is RE2's, which pyarrow brings: the time that it takes grows with the name, and with nothing that it is written
    in, so that no pattern holds up a poll. Hence there is no looking around, and no reference back.
    """

    def __init__(self, written: object) -> None:
        """Raises InvalidRegularExpression."""
        self.text = text("pattern", written, InvalidRegularExpression)
        if not 1 <= len(self.text) <= MAX_PATTERN:
            expected = f"1 to {MAX_PATTERN} characters"
            raise InvalidRegularExpression(found=f"{len(self.text)} characters", expected=expected)
        self._whole = rf"\A(?:{self.text})\z"
        try:  # by itself, too: else `a)|(b` would be one; without a name nothing is compiled
            for pattern in (self.text, self._whole):
                pc.match_substring_regex(pa.array(["t"]), pattern)
        except pa.ArrowInvalid as error:
            raise InvalidRegularExpression(str(error), found=repeated(self.text), expected="RE2's syntax") from None

    def matching(self, names: Sequence[str]) -> list[str]:
        """Those of the names that match, in order of name."""
        told = pa.array(sorted(names), pa.string())
        found: list[str] = told.filter(pc.match_substring_regex(told, self._whole)).to_pylist()
        return found


class Subscription:
    """Not thread-safe: its membership's consumer has the lock."""

    def __init__(self, topics: Sequence[str], pattern: Pattern | None) -> None:
        """pattern: None, or instead of topics."""
        self.topics, self._pattern = sorted(set(topics)), pattern
        self._seen: tuple[int, int] | None = None

    @property
    def pattern(self) -> str | None:
        return None if self._pattern is None else self._pattern.text

    def follow(self, state: State) -> None:
        """`topics` are those of this state. Names are looked through only where there are others than last time."""
        # no id is given twice: one that came is seen by the first, one that has gone by the second
        mark = state.next_topic_id, len(state.topic_ids)
        if self._pattern is not None and mark != self._seen:
            self.topics, self._seen = self._pattern.matching([*state.topic_ids]), mark
