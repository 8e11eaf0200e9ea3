"""Parse the options of Spark: text under names whose case does not matter.

Each option is parsed where it is used, and an unknown option is refused. Every function raises InvalidConfig with the
option's name, the value found and the value expected. Values of options that may be secret are never repeated.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...protocol.errors import InvalidConfig
from ..arguments import invalid_argument, parse_choice, parse_path, parse_whole_number

KAFKAS = "kafka."
"""Prefix of Kafka client options in Spark's Kafka source. Options that also exist here may keep it."""

STORAGE = "storage."
"""Prefix of options for the object store, as `storage_options` of lakemq.connect."""

NO_TABLES = (
    "Spark passes none of a table's options to a source in Python: instead of CREATE TABLE ... USING lakemq use CREATE"
    " TEMPORARY VIEW, from which you SELECT and into which you INSERT."
)

_QUERY_NAME = "queryname"
"""Spark adds this to the options of a stream that has a name."""

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d{1,12})\s*(ms|s|min|m|h|d)\s*")


class OptionParser:
    """The options of one read or write.

    names: the options that exist, as the docs spell them. others: those of other reads and writes, which are ignored: a
    view is read and written with the same options.
    """

    def __init__(self, options: Mapping[str, str], names: Iterable[str], others: Iterable[str]) -> None:
        self._names = {name.lower(): name for name in names}
        self._values: dict[str, str] = {}
        self.storage_options: dict[str, str] = {}
        ignored = {_QUERY_NAME, *(name.lower() for name in others)} - self._names.keys()
        for name, value in options.items():
            key = name.lower()
            if key.startswith(STORAGE):
                self.storage_options[key.removeprefix(STORAGE).upper()] = value
            elif key not in ignored:
                self._add(key, value)

    def _add(self, key: str, value: str) -> None:
        plain = key.removeprefix(KAFKAS)
        if plain != key and plain not in ("group.id", "isolation.level"):
            raise InvalidConfig("This is an option of Kafka's client, which is not used here.", found=key)
        if plain not in self._names:
            near = difflib.get_close_matches(plain, self._names, n=1, cutoff=0.5)
            if near:
                text = f"Unknown option of the format lakemq; did you mean {self._names[near[0]]}?"
                raise InvalidConfig(text, found=key)
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
        """Return the path or URI of the namespace."""
        if not self.get("path"):
            text = f"The format lakemq needs an option path. {NO_TABLES}"
            raise InvalidConfig(text, expected="the path or URI of a namespace")
        return parse_path("path", self.get("path"), InvalidConfig)

    def word(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, whatever its case. The first is the default."""
        value = self.get(name)
        return choices[0] if value is None else parse_choice(name, value.strip().lower(), choices, InvalidConfig)

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str, low: int = 1) -> int | None:
        value = self.get(name)
        return None if value is None else _parse_number(name, value, low)

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Parse a duration such as `15m`, `30s` or `500ms`."""
        value = self.get(name)
        if value is None:
            return default_ms
        match = _DURATION.fullmatch(value.lower())
        if match is None:
            raise invalid_argument(name, value, "a duration such as 15m, 30s or 500ms", InvalidConfig)
        return int(match[1]) * _UNIT_MS[match[2]]

    def topics(self, name: str) -> tuple[str, ...]:
        """Parse topics separated by commas: at least one, each once."""
        names = tuple(dict.fromkeys(part.strip() for part in (self.get(name) or "").split(",") if part.strip()))
        if not names:
            raise invalid_argument(name, self.get(name), "topics, separated by commas", InvalidConfig)
        return names

    def partitions(self, name: str) -> dict[str, tuple[int, ...]]:
        """Parse JSON, {"topic": [0, 1]}."""
        expected = '{"topic": [partition, ...], ...}'
        parsed = _parse_json_object(name, self.get(name), expected)
        if not parsed or not all(isinstance(listed, list) and listed for listed in parsed.values()):
            raise invalid_argument(name, self.get(name), expected, InvalidConfig)
        return {
            topic: tuple(sorted({parse_whole_number(name, p, 0, 2**31 - 1, InvalidConfig) for p in listed}))
            for topic, listed in parsed.items()
        }

    def by_partition(self, name: str, low: int) -> dict[str, dict[int, int]]:
        """Parse JSON, {"topic": {"0": number}}."""
        expected = '{"topic": {"partition": number, ...}, ...}'
        parsed = _parse_json_object(name, self.get(name), expected)
        if not parsed or not all(isinstance(numbers, dict) and numbers for numbers in parsed.values()):
            raise invalid_argument(name, self.get(name), expected, InvalidConfig)
        return {
            topic: {
                _parse_number(name, p, 0): parse_whole_number(name, number, low, error=InvalidConfig)
                for p, number in numbers.items()
            }
            for topic, numbers in parsed.items()
        }

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise InvalidConfig if one of these options is set."""
        for name in names:
            if self.has(name):
                raise InvalidConfig(why, found=name)


def _parse_number(name: str, value: str, low: int) -> int:
    text = value.strip()
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise invalid_argument(name, value, f"a whole number of at least {low}", InvalidConfig)
    return parse_whole_number(name, int(text), low, error=InvalidConfig)


def _parse_json_object(name: str, value: str | None, expected: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value or "")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise invalid_argument(name, value, f"JSON: {expected}", InvalidConfig)
    return parsed
