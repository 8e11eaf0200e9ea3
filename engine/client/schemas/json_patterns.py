"""The time that patterns of a JSON Schema take: the letters of a pattern, multiplied by the bytes of its texts.

The engine of jsonschema-rs follows all ways through a pattern at once. So `[ab]{5000}` may take 5000 steps for each
byte of a text. Neither texts nor patterns can be bounded alone: `.{1,1000}` is common, and so are long texts.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...protocol.errors import InvalidConfig
from .budgets import BeyondBudgetError

MAX_STEPS = 100_000_000
"""Steps that the patterns of one value may take: about a second."""

_TOKEN = re.compile(
    r"""\\[pPuUxX]\{[^}]*\} | \\.                         # one letter
      | \[\^?\]?(?:\\.|[^\]\\])*\]                        # a class of letters
      | \(\?(?P<flags>[a-zA-Z-]*)\)                       # flags, which hold no letters
      | (?P<open>\((?:\?(?:P?<[^>]*>|(?P<scope>[a-zA-Z-]*):))?)
      | (?P<close>\))
      | \{\s*(?P<least>\d+)\s*(?:,\s*(?P<most>\d*)\s*)?\}
      | .""",
    re.VERBOSE | re.DOTALL,
)
_NO_LETTERS = frozenset("*+?")


def count_letters(pattern: str) -> int:
    """Return how many letters a pattern has, each counted as often as it is repeated: 81 for `(a{9}){9}`.

    Raises:
        InvalidConfig: the pattern has comments, in which anything may stand.
    """
    sums, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        if "x" in (token["flags"] or token["scope"] or ""):
            raise InvalidConfig(
                "A pattern of the schema has the flag x, which is not of JSON Schema.",
                found=pattern,
                expected="a pattern without comments",
            )
        if token["open"]:
            sums.append(0)
        elif token["close"]:
            last = max(1, sums.pop() if len(sums) > 1 else 0)  # the engine goes through empty groups, too
            sums[-1] += last
        elif token["least"]:
            times = max(1, int(token["most"] or token["least"]))
            sums[-1] += last * (times - 1)
            last *= times
        elif token["flags"] is None and token[0] not in _NO_LETTERS:
            last = 1
            sums[-1] += 1
    return sum(sums)


def list_patterns(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield each keyword of a JSON Schema that may hold a pattern, with the pattern."""
    if isinstance(schema, list):
        for part in schema:
            yield from list_patterns(part)
    elif isinstance(schema, Mapping):
        if isinstance(pattern := schema.get("pattern"), str):
            yield "pattern", pattern
        if isinstance(by_pattern := schema.get("patternProperties"), Mapping):
            yield from (("patternProperties", pattern) for pattern in by_pattern)
        for part in schema.values():
            yield from list_patterns(part)


class PatternBudget(threading.local):
    """Counts the steps of the patterns of one value. Each thread has a budget of its own."""

    def __init__(self) -> None:
        self._steps = 0

    def restart(self) -> None:
        """Begin a value."""
        self._steps = 0

    def spend(self, letters: int, size_bytes: int) -> None:
        """Count the steps of a pattern on a text. Raises BeyondBudgetError: the value takes too many."""
        self._steps += size_bytes * min(letters, size_bytes)
        self.check()

    def check(self) -> None:
        """Raise BeyondBudgetError if too many steps were counted: jsonschema-rs takes that of `spend` for a misfit."""
        if self._steps > MAX_STEPS:
            raise BeyondBudgetError(
                f"found texts that are too long for the patterns of the schema, expected at most {MAX_STEPS} steps,"
                " which are bytes of a text times letters of its pattern"
            )


def build_keyword(budget: PatternBudget, build_matcher: Callable[[str], Any]) -> type:
    """Return the keyword `pattern` for jsonschema-rs, which matches within the budget."""

    class BudgetedPattern:
        def __init__(self, _parent: Any, pattern: str, _path: list[Any]) -> None:
            self._is_match = build_matcher(pattern).is_valid
            self._letters = count_letters(pattern)

        def validate(self, text: object) -> None:
            if isinstance(text, str):
                budget.spend(self._letters, len(text.encode()))
                if not self._is_match(text):
                    raise ValueError("the pattern does not match")

    return BudgetedPattern
