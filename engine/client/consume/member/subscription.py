"""The subscription of a member: topics that the user named, or all whose names match a pattern."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ....protocol.errors import InvalidRegularExpression
from ....protocol.values.consuming.groups import MAX_PATTERN
from ....protocol.values.state import State
from ...arguments import describe_value, parse_text


class Pattern:
    """A regular expression that must match a whole name.

    It is written in RE2's syntax, and pyarrow's RE2 runs it. RE2 takes time in proportion to the length of the name for
    every pattern, so no pattern can hold up a poll. That is why it has no look-around and no back-references.
    """

    def __init__(self, pattern: object) -> None:
        """Compile the pattern. Raises InvalidRegularExpression."""
        self.text = parse_text("pattern", pattern, InvalidRegularExpression)
        if not 1 <= len(self.text) <= MAX_PATTERN:
            expected = f"1 to {MAX_PATTERN} characters"
            raise InvalidRegularExpression(found=f"{len(self.text)} characters", expected=expected)
        self._anchored = rf"\A(?:{self.text})\z"
        # The pattern must be valid by itself, too: `a)|(b` is so only within parentheses. pyarrow compiles a pattern
        # only if there is a name to match.
        try:
            for expression in (self.text, self._anchored):
                pc.match_substring_regex(pa.array(["t"]), expression)
        except pa.ArrowInvalid as error:
            raise InvalidRegularExpression(
                str(error), found=describe_value(self.text), expected="RE2's syntax"
            ) from None

    def find_matches(self, names: Sequence[str]) -> list[str]:
        """Return the names that match, sorted."""
        candidates = pa.array(sorted(names), pa.string())
        matches: list[str] = candidates.filter(pc.match_substring_regex(candidates, self._anchored)).to_pylist()
        return matches


class Subscription:
    """The topics of one member. Not thread-safe: the consumer of the membership holds its lock."""

    def __init__(self, topics: Sequence[str], pattern: Pattern | None) -> None:
        """topics: sorted names; pattern: instead of topics."""
        self.topics, self._pattern = sorted(set(topics)), pattern
        self._matched_mark: tuple[int, int] | None = None

    @property
    def pattern(self) -> str | None:
        """The text of the pattern, if there is one."""
        return None if self._pattern is None else self._pattern.text

    def follow(self, state: State) -> None:
        """Match the pattern against the topics of this state, if these have changed since the last call."""
        # No topic id is used twice, so a topic that came changes the first number, and one that went the second.
        mark = state.next_topic_id, len(state.topic_ids)
        if self._pattern is not None and mark != self._matched_mark:
            self.topics, self._matched_mark = self._pattern.find_matches([*state.topic_ids]), mark
