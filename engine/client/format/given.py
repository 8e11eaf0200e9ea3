"""Options as Spark hands them over, taken one by one: text under names whose case does not count.

Every option is taken by whoever knows it, and what is left at the end is refused. Each function raises InvalidConfig
with the option's name, what was found and expected; values of options that may be secret are never repeated.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...protocol.errors import InvalidConfig
from ..arguments import file_path, one_of, refused, whole_number

KAFKAS = "kafka."
"""Options of that prefix are Kafka's own in Spark's Kafka source; those that say something here may keep it."""

STORAGE = "storage."
"""Options of that prefix are for the object store, as `storage_options` of lakemq.connect."""

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d{1,12})\s*(ms|s|min|m|h|d)\s*")


class Given:
    """The options of one read or write. `names`: those that there are, as the docs spell them."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        self._names = {name.lower(): name for name in names}
        self._values: dict[str, str] = {}
        self.storage_options: dict[str, str] = {}
        for name, value in options.items():
            key = name.lower()
            if key.startswith(STORAGE):
                self.storage_options[key.removeprefix(STORAGE).upper()] = value
            else:
                self._take_in(key, value)

    def _take_in(self, key: str, value: str) -> None:
        plain = key.removeprefix(KAFKAS)
        if plain != key and plain not in ("group.id", "isolation.level"):
            raise InvalidConfig("This is an option of Kafka's client, which there is none of.", found=key)
        if plain not in self._names:
            near = difflib.get_close_matches(plain, self._names, n=1, cutoff=0.5)
            if near:
                meant = f"Unknown option of the format lakemq; did you mean {self._names[near[0]]}?"
                raise InvalidConfig(meant, found=key)
            expected = ", ".join(sorted(self._names.values()))
            raise InvalidConfig("Unknown option of the format lakemq.", found=key, expected=expected)
        if plain in self._values:
            raise InvalidConfig("An option is given twice.", found=self._names[plain])
        self._values[plain] = value

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def path(self) -> str:
        """Of the namespace."""
        if not self.get("path"):
            raise InvalidConfig("The format lakemq needs an option path.", expected="the path or URI of a namespace")
        return file_path("path", self.get("path"), InvalidConfig)

    def word(self, name: str, choices: tuple[str, ...]) -> str:
        """One of these, whatever its case; the first where it is not given."""
        value = self.get(name)
        return choices[0] if value is None else one_of(name, value.strip().lower(), choices, InvalidConfig)

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str, low: int = 1) -> int | None:
        value = self.get(name)
        return None if value is None else _number(name, value, low)

    def duration_ms(self, name: str, default_ms: int) -> int:
        """As `15m`, `30s`, `500ms`."""
        value = self.get(name)
        if value is None:
            return default_ms
        found = _DURATION.fullmatch(value.lower())
        if found is None:
            raise refused(name, value, "a duration such as 15m, 30s or 500ms", InvalidConfig)
        return int(found[1]) * _UNIT_MS[found[2]]

    def topics(self, name: str) -> tuple[str, ...]:
        """Separated by commas; at least one, and each once."""
        found = tuple(dict.fromkeys(part.strip() for part in (self.get(name) or "").split(",") if part.strip()))
        if not found:
            raise refused(name, self.get(name), "topics, separated by commas", InvalidConfig)
        return found

    def partitions(self, name: str) -> dict[str, tuple[int, ...]]:
        """As JSON, {"topic": [0, 1]}."""
        wanted = '{"topic": [partition, ...], ...}'
        found = _decoded(name, self.get(name), wanted)
        if not found or not all(isinstance(listed, list) and listed for listed in found.values()):
            raise refused(name, self.get(name), wanted, InvalidConfig)
        return {
            topic: tuple(sorted({whole_number(name, p, 0, 2**31 - 1, InvalidConfig) for p in listed}))
            for topic, listed in found.items()
        }

    def by_partition(self, name: str, low: int) -> dict[str, dict[int, int]]:
        """As JSON, {"topic": {"0": number}}."""
        wanted = '{"topic": {"partition": number, ...}, ...}'
        found = _decoded(name, self.get(name), wanted)
        if not found or not all(isinstance(numbers, dict) and numbers for numbers in found.values()):
            raise refused(name, self.get(name), wanted, InvalidConfig)
        return {
            topic: {
                _number(name, p, 0): whole_number(name, number, low, error=InvalidConfig)
                for p, number in numbers.items()
            }
            for topic, numbers in found.items()
        }

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raises InvalidConfig if one of these is given."""
        for name in names:
            if self.has(name):
                raise InvalidConfig(why, found=name)


def _number(name: str, value: str, low: int) -> int:
    text = value.strip()
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise refused(name, value, f"a whole number of at least {low}", InvalidConfig)
    return whole_number(name, int(text), low, error=InvalidConfig)


def _decoded(name: str, value: str | None, wanted: str) -> dict[str, Any]:
    try:
        found = json.loads(value or "")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise refused(name, value, f"JSON: {wanted}", InvalidConfig)
    return found
