"""Suites of Great Expectations as conditions in SQL, for Spark and for DuckDB: a publish looks at its rows once.

A suite is a file in the format of Great Expectations 1, which is not loaded for it. What is not known here is refused
when the suite is loaded: no expectation is passed over silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from ...protocol.errors import InvalidConfig

DEFAULT_MOST_FAILED = 0.5
"""Share of the rows that may fail unless a suite says otherwise: more is a mistake of who publishes."""

Kwargs: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Dialect:
    """How a column and a text are written.

    matches: that a text has a match of a regular expression; decoded: bytes as text, null where they are none.
    """

    name: Callable[[str], str]
    literal: Callable[[str], str]
    matches: str
    decoded: str


SPARK = Dialect(
    lambda name: "`" + name.replace("`", "``") + "`",
    lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",
    "regexp_like({}, {})",
    "try_validate_utf8(CAST({} AS STRING))",
)
DUCKDB = Dialect(
    lambda name: '"' + name.replace('"', '""') + '"',
    lambda text: "'" + text.replace("'", "''") + "'",
    "regexp_matches({}, {})",
    "TRY(decode({}))",
)


class Names:
    """The columns of a table in a dialect. binary: those that hold bytes, which are compared as text."""

    def __init__(self, dialect: Dialect, binary: frozenset[str] = frozenset()) -> None:
        self.dialect, self._binary = dialect, binary

    def column(self, name: str) -> str:
        quoted = self.dialect.name(name)
        return self.dialect.decoded.format(quoted) if name in self._binary else quoted

    def value(self, value: Any) -> str:
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        return repr(value) if isinstance(value, int | float) else self.dialect.literal(value)


@dataclass(frozen=True)
class RowRule:
    """columns: it looks at; mostly: of the rows that count, the share that must not fail.

    counts: the condition of a row that is not passed over; holds: of one that does not fail, or null.
    """

    told: str
    columns: tuple[str, ...]
    counts: Callable[[Names], str]
    holds: Callable[[Names], str]
    mostly: float | None

    def fails(self, names: Names) -> str:
        """Never null."""
        return f"{self.counts(names)} AND NOT coalesce({self.holds(names)}, FALSE)"


@dataclass(frozen=True)
class TableRule:
    """measured: an aggregate of all rows, which must be within the bounds; is_open: without the bounds themselves."""

    told: str
    columns: tuple[str, ...]
    measured: Callable[[Names], str]
    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    is_high_open: bool = False

    def holds(self, found: Any) -> bool:
        """Of no rows nothing is measured, and nothing is wrong; NaN lies within no bounds.

        Raises TypeError: what was measured is no number.
        """
        if found is None or (self.low is None and self.high is None):
            return True
        if isinstance(found, str | bytes):
            raise TypeError("a text")
        value = float(found)
        if math.isnan(value):
            return False
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        is_low = value <= low if self.is_low_open else value < low
        return not (is_low or (value >= high if self.is_high_open else value > high))


@dataclass(frozen=True)
class Suite:
    """What must hold of what is published to a topic. most_failed: share of rows that may fail, else all is refused."""

    rows: tuple[RowRule, ...] = ()
    table: tuple[TableRule, ...] = ()
    needed: tuple[str, ...] = ()
    most_failed: float = DEFAULT_MOST_FAILED
    told: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", tuple(rule.told for rule in self.rows))

    def first_failed(self, names: Names) -> str:
        """The number of the first rule of rows that a row fails, in SQL; null: none."""
        cases = " ".join(f"WHEN {rule.fails(names)} THEN {nth}" for nth, rule in enumerate(self.rows))
        return f"CASE {cases} END" if cases else "CAST(NULL AS INT)"

    def measured(self, names: Names) -> list[str]:
        """Aggregates of all rows: of each rule of rows that has a `mostly`, how many fail it, and how many count; then
        of the table rules.
        """
        conditions = [sql for rule in self.counted for sql in (rule.fails(names), rule.counts(names))]
        counts = [f"sum(CASE WHEN {sql} THEN 1 ELSE 0 END)" for sql in conditions]
        return counts + [rule.measured(names) for rule in self.table]

    @property
    def counted(self) -> list[RowRule]:
        return [rule for rule in self.rows if rule.mostly is not None]


def load_suite(file: Path) -> Suite:
    """Raises InvalidConfig, which names the file and what is wrong in it."""
    try:
        text = file.read_text(encoding="utf-8")
        loaded = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
        return _suite(loaded)
    except InvalidConfig as error:
        raise InvalidConfig(f"{file}: {error.detail}", found=error.found, expected=error.expected) from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise InvalidConfig(f"Cannot read {file}: {why}", expected="a suite of Great Expectations") from error


def _suite(loaded: Any) -> Suite:
    if not isinstance(loaded, dict) or not isinstance(loaded.get("expectations"), list):
        raise InvalidConfig("It holds no suite.", expected="an object with a list of expectations, of version 1")
    rows: list[RowRule] = []
    table: list[TableRule] = []
    needed: list[str] = []
    for one in loaded["expectations"]:
        if not isinstance(one, dict) or not isinstance(one.get("type"), str):
            raise InvalidConfig("An expectation has no type.", found=one)
        kwargs = _object(f"kwargs of {one['type']}", one.get("kwargs"))
        if not _stops(one):
            continue  # a warning stops nobody: it is for a checkpoint to tell
        rule = _rule(one["type"], {k: v for k, v in kwargs.items() if v is not None})
        if isinstance(rule, RowRule):
            rows.append(rule)
        elif isinstance(rule, TableRule):
            table.append(rule)
        needed += [rule] if isinstance(rule, str) else rule.columns
    most_failed = _most_failed(_object("meta", loaded.get("meta")))
    return Suite(tuple(rows), tuple(table), tuple(dict.fromkeys(needed)), most_failed)


def _stops(expectation: Kwargs) -> bool:
    severity = expectation.get("severity") or "critical"
    if severity not in _SEVERITIES:
        raise InvalidConfig("A severity is not known.", found=severity, expected=" or ".join(_SEVERITIES))
    return severity == "critical"


def _object(name: str, value: Any) -> Kwargs:
    """Empty where there is none."""
    if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise InvalidConfig(f"{name} is not valid.", found=value, expected="an object")
    return value or {}


def _most_failed(meta: Kwargs) -> float:
    ours = _object("meta.lakemq", meta.get("lakemq"))
    if unknown := ours.keys() - {"most_failed"}:
        raise InvalidConfig("meta.lakemq has what is not known.", found=sorted(unknown)[0], expected="most_failed")
    return _share("meta.lakemq.most_failed", ours.get("most_failed", DEFAULT_MOST_FAILED))


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidConfig(f"{name} is not valid.", found=value, expected="a share from 0 to 1")
    return float(value)


def _rule(type: str, kwargs: Kwargs) -> RowRule | TableRule | str:
    """A rule, or the name of a column that must be there."""
    if type not in _KINDS:
        raise InvalidConfig("An expectation is not one that a gate knows.", found=type, expected=", ".join(_KINDS))
    kind = _KINDS[type]
    if unknown := kwargs.keys() - set(kind.takes):
        raise InvalidConfig(f"{type} has what a gate does not know.", found=sorted(unknown)[0], expected=kind.takes)
    if lacking := [name for name in kind.takes[: kind.needs] if name not in kwargs]:
        raise InvalidConfig(f"{type} lacks {lacking[0]}.", expected=", ".join(kind.takes[: kind.needs]))
    if unclear := [name for name in kwargs.keys() & _FLAGS if not isinstance(kwargs[name], bool)]:
        raise InvalidConfig(f"{type} has no yes or no.", found=f"{unclear[0]}={kwargs[unclear[0]]!r}", expected="true")
    columns = tuple(kwargs[name] for name in ("column", "column_A", "column_B") if name in kwargs)
    if any(not isinstance(column, str) for column in columns):
        raise InvalidConfig(f"{type} names a column that is no text.", found=columns)
    said = ", ".join(f"{k}={v!r}" for k, v in kwargs.items() if k != "mostly")
    try:
        return kind.make(_Given(f"{type}({said})"[:_LONGEST], columns, kwargs))
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidConfig(f"{type} is not usable: {error}", found=dict(kwargs)) from None


_LONGEST = 500
_FLAGS = {"strict_min", "strict_max", "or_equal"}
_SEVERITIES = ("critical", "warning", "info")


class _Given(NamedTuple):
    told: str
    columns: tuple[str, ...]
    kwargs: Kwargs

    def rows(self, counts: Callable[[Names], str], holds: Callable[[Names], str]) -> RowRule:
        mostly = self.kwargs.get("mostly")
        return RowRule(self.told, self.columns, counts, holds, None if mostly is None else _share("mostly", mostly))

    def table(self, measured: Callable[[Names], str]) -> TableRule:
        low, high = (_number(self.kwargs.get(name)) for name in ("min_value", "max_value"))
        opened = (bool(self.kwargs.get(name, False)) for name in ("strict_min", "strict_max"))
        return TableRule(self.told, self.columns, measured, low, high, *opened)


class _Kind(NamedTuple):
    """takes: the arguments it knows, of which the first `needs` must be given."""

    make: Callable[[_Given], RowRule | TableRule | str]
    takes: tuple[str, ...]
    needs: int = 1


def _number(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"found {value!r}, expected a number")
    return None if value is None else _plain(value)


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"found {value!r}, expected a number or text")
    return value


def _of_column(given: _Given, holds: Callable[[Names, str], str]) -> RowRule:
    """A null is passed over, as Great Expectations does."""
    (name,) = given.columns
    return given.rows(
        lambda names: f"{names.dialect.name(name)} IS NOT NULL", lambda names: holds(names, names.column(name))
    )


def _null(given: _Given, holds: str) -> RowRule:
    (name,) = given.columns
    return given.rows(lambda names: "TRUE", lambda names: f"{names.dialect.name(name)} IS {holds}")


def _bounds(given: _Given, low: str = "min_value", high: str = "max_value") -> Callable[[Names, str], str]:
    kwargs = given.kwargs
    above, below = (">" if kwargs.get("strict_min") else ">="), ("<" if kwargs.get("strict_max") else "<=")
    found = [(op, _plain(kwargs[name])) for op, name in ((above, low), (below, high)) if name in kwargs]
    if not found:
        raise ValueError(f"found neither {low} nor {high}")
    return lambda names, what: " AND ".join(f"{what} {op} {names.value(bound)}" for op, bound in found)


def _between(given: _Given) -> RowRule:
    return _of_column(given, _bounds(given))


def _lengths(given: _Given) -> RowRule:
    within = _bounds(given)
    return _of_column(given, lambda names, column: within(names, f"length({column})"))


def _length(given: _Given) -> RowRule:
    wanted = _number(given.kwargs["value"])
    return _of_column(given, lambda names, column: f"length({column}) = {wanted}")


def _in_set(given: _Given, word: str) -> RowRule:
    value_set = given.kwargs["value_set"]
    if not isinstance(value_set, list) or not value_set:  # a text would be a set of its letters
        raise ValueError(f"found {value_set!r}, expected a list of values")
    values = [_plain(value) for value in value_set]
    return _of_column(given, lambda names, column: f"{column} {word} ({', '.join(map(names.value, values))})")


def _regex(given: _Given, word: str) -> RowRule:
    regex = given.kwargs["regex"]
    if not isinstance(regex, str):
        raise ValueError(f"found {regex!r}, expected text")
    return _of_column(given, lambda names, column: f"{word} {names.dialect.matches.format(column, names.value(regex))}")


def _pair(given: _Given, op: str) -> RowRule:
    """A row passes in which both are null."""
    if given.kwargs.get("ignore_row_if", "both_values_are_missing") != "both_values_are_missing":
        raise ValueError("ignore_row_if can only be both_values_are_missing")
    op = f"{op}=" if given.kwargs.get("or_equal") else op

    def counts(names: Names) -> str:
        a, b = (names.dialect.name(name) for name in given.columns)
        return f"NOT ({a} IS NULL AND {b} IS NULL)"

    return given.rows(counts, lambda names: f" {op} ".join(names.column(name) for name in given.columns))


def _aggregate(given: _Given, function: str) -> TableRule:
    return given.table(lambda names: function.format(names.column(given.columns[0])))


def _row_count(given: _Given) -> TableRule:
    if "value" in given.kwargs:
        wanted = _number(given.kwargs["value"])
        return TableRule(given.told, (), lambda names: "count(*)", wanted, wanted)
    return given.table(lambda names: "count(*)")


def _proportion(given: _Given) -> TableRule:
    (name,) = given.columns
    return given.table(lambda names: f"avg(CASE WHEN {names.dialect.name(name)} IS NULL THEN 0.0 ELSE 1.0 END)")


_BOUNDS = ("min_value", "max_value", "strict_min", "strict_max")
_AGGREGATE = ("column", *_BOUNDS)
_PAIR = ("column_A", "column_B", "mostly", "ignore_row_if")

_KINDS: dict[str, _Kind] = {
    "expect_column_to_exist": _Kind(lambda given: given.columns[0], ("column",)),
    "expect_column_values_to_not_be_null": _Kind(lambda given: _null(given, "NOT NULL"), ("column", "mostly")),
    "expect_column_values_to_be_null": _Kind(lambda given: _null(given, "NULL"), ("column", "mostly")),
    "expect_column_values_to_be_between": _Kind(_between, ("column", *_BOUNDS, "mostly")),
    "expect_column_values_to_be_in_set": _Kind(lambda g: _in_set(g, "IN"), ("column", "value_set", "mostly"), 2),
    "expect_column_values_to_not_be_in_set": _Kind(
        lambda g: _in_set(g, "NOT IN"), ("column", "value_set", "mostly"), 2
    ),
    "expect_column_values_to_match_regex": _Kind(lambda g: _regex(g, ""), ("column", "regex", "mostly"), 2),
    "expect_column_values_to_not_match_regex": _Kind(lambda g: _regex(g, "NOT"), ("column", "regex", "mostly"), 2),
    "expect_column_value_lengths_to_be_between": _Kind(_lengths, ("column", *_BOUNDS, "mostly")),
    "expect_column_value_lengths_to_equal": _Kind(_length, ("column", "value", "mostly"), 2),
    "expect_column_pair_values_to_be_equal": _Kind(lambda given: _pair(given, "="), _PAIR, 2),
    "expect_column_pair_values_a_to_be_greater_than_b": _Kind(lambda given: _pair(given, ">"), (*_PAIR, "or_equal"), 2),
    "expect_table_row_count_to_be_between": _Kind(_row_count, _BOUNDS, 0),
    "expect_table_row_count_to_equal": _Kind(_row_count, ("value",)),
    "expect_column_min_to_be_between": _Kind(lambda given: _aggregate(given, "min({})"), _AGGREGATE),
    "expect_column_max_to_be_between": _Kind(lambda given: _aggregate(given, "max({})"), _AGGREGATE),
    "expect_column_mean_to_be_between": _Kind(lambda given: _aggregate(given, "avg({})"), _AGGREGATE),
    "expect_column_sum_to_be_between": _Kind(lambda given: _aggregate(given, "sum({})"), _AGGREGATE),
    "expect_column_stdev_to_be_between": _Kind(lambda given: _aggregate(given, "stddev_samp({})"), _AGGREGATE),
    "expect_column_proportion_of_non_null_values_to_be_between": _Kind(_proportion, _AGGREGATE),
}
"""The expectations that a gate knows. Uniqueness is none: it is of all rows that ever were, or costs a shuffle."""

KINDS = tuple(_KINDS)
