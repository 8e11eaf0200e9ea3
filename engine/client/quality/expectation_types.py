"""The expectations of Great Expectations that a gate supports: their arguments, their SQL, and the rules of a suite."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ...protocol.errors import InvalidConfig, show_briefly


@dataclass(frozen=True)
class SqlSyntax:
    """How a column and a text are written.

    matches: that a text has a match of a regular expression; decoded: bytes as text, null where they are none; regex:
    Python's regular expression, by which Great Expectations judges, as this dialect writes it.
    """

    name: Callable[[str], str]
    literal: Callable[[str], str]
    matches: str
    decoded: str
    regex: Callable[[str], str]


def _to_java_regex(regex: str) -> str:
    """Return the same regular expression for Java. Without (?d), characters other than \\n are line breaks, too."""
    return f"(?d){regex}"


def _to_re2_regex(regex: str) -> str:
    """Return the same regular expression for RE2, DuckDB's library, in which `$` does not stand before a last \\n."""
    ends_in_dollar = re.search(r"(?<!\\)(\\\\)*\$$", regex)
    return rf"{regex[:-1]}\n?\z" if ends_in_dollar else regex


SPARK = SqlSyntax(
    lambda name: "`" + name.replace("`", "``") + "`",
    lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",
    "regexp_like({}, {})",
    "try_validate_utf8(CAST({} AS STRING))",
    _to_java_regex,
)
DUCKDB = SqlSyntax(
    lambda name: '"' + name.replace('"', '""') + '"',
    lambda text: "'" + text.replace("'", "''") + "'",
    "regexp_matches({}, {})",
    "TRY(decode({}))",
    _to_re2_regex,
)


class TimeKind(Enum):
    """What a column of times holds, and how a suite writes it. Spark and DuckDB read other forms differently."""

    INSTANT = "times with a zone", "2026-01-31T12:00:00Z"
    LOCAL = "times without a zone", "2026-01-31T12:00:00"
    DAY = "days", "2026-01-31"

    def __init__(self, title: str, example: str) -> None:
        self.title, self.example = title, example


_ZONE = r"(Z|UTC|([+-]\d{2})(?::?(\d{2}))?)"
_TIME = re.compile(
    rf"(\d{{4}}-\d{{1,2}}-\d{{1,2}})(?:[ T](\d{{1,2}}:\d{{1,2}})(:\d{{1,2}})?(?:(\.\d{{1,6}})\d*)? ?{_ZONE}?)?"
)


class ColumnNames:
    """The columns of a table in a dialect.

    binary: those that hold bytes, which are compared as text. times: those that hold times or days, by name.
    """

    def __init__(
        self, dialect: SqlSyntax, binary: frozenset[str] = frozenset(), times: Mapping[str, TimeKind] | None = None
    ) -> None:
        self.dialect, self._binary, self._times = dialect, binary, times or {}

    def column(self, name: str) -> str:
        quoted = self.dialect.name(name)
        return self.dialect.decoded.format(quoted) if name in self._binary else quoted

    def value(self, value: Any, column: str) -> str:
        """Return a value with which a column is compared. Raises ValueError for a time that the column cannot hold."""
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, int | float):
            return repr(value)
        kind = self._times.get(column)
        return self.dialect.literal(value if kind is None else _write_time(value, column, kind))

    def refuse_unlike(self, names: Sequence[str]) -> None:
        """Raise ValueError if columns cannot be compared: Spark would do so in the zone of its session."""
        kinds = {self._times.get(name) for name in names}
        if len(kinds) > 1 and kinds != {TimeKind.LOCAL, TimeKind.DAY}:
            held = {name: kind.title if (kind := self._times.get(name)) else "no times" for name in names}
            shown = " and ".join(f"{name} ({kind})" for name, kind in held.items())
            raise ValueError(f"{shown} cannot be compared: convert one of them before you publish")


def _write_time(text: str, column: str, kind: TimeKind) -> str:
    """Return a time as Spark and DuckDB read it alike. A time without a zone is in UTC, if the column has zones."""
    parsed = _TIME.fullmatch(text)
    try:
        if parsed is None:
            raise ValueError
        day, clock, seconds, fraction, zone, hours, minutes = parsed.groups()
        shown = f"{day} {clock or '0:0'}{seconds or ':0'}{fraction or '.0'}"
        time = datetime.strptime(shown, "%Y-%m-%d %H:%M:%S.%f")
    except ValueError:
        raise ValueError(f"{column} has {kind.title}: write {kind.example}, not {text}") from None
    if kind is TimeKind.DAY:
        return time.date().isoformat()
    if kind is TimeKind.INSTANT:
        offset = timedelta(hours=int(hours or 0), minutes=int(f"{(hours or '+')[0]}{minutes or 0}"))
        return f"{(time - offset).isoformat(' ')}Z"
    if zone:
        raise ValueError(f"{column} has {kind.title}: write {time.isoformat()}, not {text}")
    return time.isoformat(" ")


@dataclass(frozen=True)
class RowRule:
    """An expectation about each row.

    Attributes:
        description: the expectation with its arguments, for errors.
        columns: the columns that it uses.
        applies_sql: builds the condition for rows that the expectation looks at.
        passes_sql: builds the condition for rows that pass; null counts as failed.
        mostly: share of the rows looked at that must pass; None: a failing row is rejected alone.
    """

    description: str
    columns: tuple[str, ...]
    applies_sql: Callable[[ColumnNames], str]
    passes_sql: Callable[[ColumnNames], str]
    mostly: float | None

    def failure_sql(self, names: ColumnNames) -> str:
        """Return the condition for rows that fail. It is never null."""
        return f"{self.applies_sql(names)} AND NOT coalesce({self.passes_sql(names)}, FALSE)"


@dataclass(frozen=True)
class TableRule:
    """An expectation about an aggregate of all rows: its value must be within bounds.

    is_low_open, is_high_open: the bound itself is not allowed.
    """

    description: str
    columns: tuple[str, ...]
    aggregate_sql: Callable[[ColumnNames], str]
    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    is_high_open: bool = False

    def is_within_bounds(self, measured_value: Any) -> bool:
        """Return whether the value is within the bounds. None (there are no rows) is, NaN is not.

        Raises TypeError if the value is not a number.
        """
        if measured_value is None or (self.low is None and self.high is None):
            return True
        if isinstance(measured_value, str | bytes):
            raise TypeError("a text")
        value = float(measured_value)
        if math.isnan(value):
            return False
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        is_low = value <= low if self.is_low_open else value < low
        return not (is_low or (value >= high if self.is_high_open else value > high))


# The supported expectations, each with its arguments and its SQL.


Kwargs: TypeAlias = Mapping[str, Any]


def parse_share(name: str, value: Any) -> float:
    """Return a share of the rows. Raises InvalidConfig."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidConfig(f"{name} is not valid.", found=value, expected="a share from 0 to 1")
    return float(value)


def build_rule(type: str, kwargs: Kwargs) -> RowRule | TableRule | str:
    """Return a rule, or the name of a column that must be there. Raises InvalidConfig."""
    if type not in _EXPECTATION_TYPES:
        raise InvalidConfig(
            "A gate does not support this expectation.", found=type, expected=", ".join(_EXPECTATION_TYPES)
        )
    kind = _EXPECTATION_TYPES[type]
    if unknown := kwargs.keys() - set(kind.takes):
        raise InvalidConfig(
            f"{type} has an argument that a gate does not support.", found=sorted(unknown)[0], expected=kind.takes
        )
    if lacking := [name for name in kind.takes[: kind.needs] if name not in kwargs]:
        raise InvalidConfig(f"{type} lacks {lacking[0]}.", expected=", ".join(kind.takes[: kind.needs]))
    if unclear := [name for name in kwargs.keys() & _BOOLEAN_ARGUMENTS if not isinstance(kwargs[name], bool)]:
        raise InvalidConfig(
            f"{type} has an argument that is not true or false.",
            found=f"{unclear[0]}={show_briefly(kwargs[unclear[0]])}",
            expected="true",
        )
    columns = tuple(kwargs[name] for name in ("column", "column_A", "column_B") if name in kwargs)
    if any(not isinstance(column, str) for column in columns):
        raise InvalidConfig(f"{type} names a column that is not text.", found=columns)
    shown = ", ".join(f"{k}={show_briefly(v)}" for k, v in kwargs.items() if k != "mostly")
    try:
        return kind.make(_ExpectationArguments(f"{type}({shown})"[:_LONGEST], columns, kwargs))
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidConfig(f"{type} is not usable: {error}", found=dict(kwargs)) from None


_LONGEST = 500
_BOOLEAN_ARGUMENTS = {"strict_min", "strict_max", "or_equal"}


class _ExpectationArguments(NamedTuple):
    description: str
    columns: tuple[str, ...]
    kwargs: Kwargs

    def rows(self, applies_sql: Callable[[ColumnNames], str], passes_sql: Callable[[ColumnNames], str]) -> RowRule:
        mostly = self.kwargs.get("mostly")
        return RowRule(
            self.description,
            self.columns,
            applies_sql,
            passes_sql,
            None if mostly is None else parse_share("mostly", mostly),
        )

    def table(self, aggregate_sql: Callable[[ColumnNames], str]) -> TableRule:
        low, high = (_parse_number(self.kwargs.get(name)) for name in ("min_value", "max_value"))
        opened = (bool(self.kwargs.get(name, False)) for name in ("strict_min", "strict_max"))
        return TableRule(self.description, self.columns, aggregate_sql, low, high, *opened)


class _ExpectationType(NamedTuple):
    """takes: the supported arguments. The first `needs` of them are required."""

    make: Callable[[_ExpectationArguments], RowRule | TableRule | str]
    takes: tuple[str, ...]
    needs: int = 1


def _parse_number(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"found {show_briefly(value)}, expected a number")
    return None if value is None else _parse_scalar(value)


def _parse_scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"found {show_briefly(value)}, expected a number or text")
    return value


def _column_rule(arguments: _ExpectationArguments, passes_sql: Callable[[ColumnNames, str], str]) -> RowRule:
    """A null is passed over, as Great Expectations does."""
    (name,) = arguments.columns
    return arguments.rows(
        lambda names: f"{names.dialect.name(name)} IS NOT NULL", lambda names: passes_sql(names, names.column(name))
    )


def _null_rule(arguments: _ExpectationArguments, null_or_not: str) -> RowRule:
    (name,) = arguments.columns
    return arguments.rows(lambda names: "TRUE", lambda names: f"{names.dialect.name(name)} IS {null_or_not}")


def _build_bounds_sql(arguments: _ExpectationArguments) -> Callable[[ColumnNames, str], str]:
    kwargs = arguments.kwargs
    above, below = (">" if kwargs.get("strict_min") else ">="), ("<" if kwargs.get("strict_max") else "<=")
    limits = ((above, "min_value"), (below, "max_value"))
    bounds = [(op, _parse_scalar(kwargs[name])) for op, name in limits if name in kwargs]
    if not bounds:
        raise ValueError("found neither min_value nor max_value")
    return lambda names, what: " AND ".join(
        f"{what} {op} {names.value(bound, arguments.columns[0])}" for op, bound in bounds
    )


def _between_rule(arguments: _ExpectationArguments) -> RowRule:
    return _column_rule(arguments, _build_bounds_sql(arguments))


def _length_between_rule(arguments: _ExpectationArguments) -> RowRule:
    within = _build_bounds_sql(arguments)
    return _column_rule(arguments, lambda names, column: within(names, f"length({column})"))


def _length_rule(arguments: _ExpectationArguments) -> RowRule:
    length = _parse_number(arguments.kwargs["value"])
    return _column_rule(arguments, lambda names, column: f"length({column}) = {length}")


def _in_set_rule(arguments: _ExpectationArguments, word: str) -> RowRule:
    value_set = arguments.kwargs["value_set"]
    if not isinstance(value_set, list) or not value_set:  # a text would be a set of its letters
        raise ValueError(f"found {show_briefly(value_set)}, expected a list of values")
    values = [_parse_scalar(value) for value in value_set]
    (name,) = arguments.columns
    return _column_rule(
        arguments, lambda names, column: f"{column} {word} ({', '.join(names.value(value, name) for value in values)})"
    )


def _regex_rule(arguments: _ExpectationArguments, word: str) -> RowRule:
    regex = arguments.kwargs["regex"]
    if not isinstance(regex, str):
        raise ValueError(f"found {show_briefly(regex)}, expected text")

    def has_match(names: ColumnNames, column: str) -> str:
        syntax = names.dialect
        return f"{word} {syntax.matches.format(column, syntax.literal(syntax.regex(regex)))}"

    return _column_rule(arguments, has_match)


def _pair_rule(arguments: _ExpectationArguments, op: str) -> RowRule:
    """A row passes in which both are null."""
    if arguments.kwargs.get("ignore_row_if", "both_values_are_missing") != "both_values_are_missing":
        raise ValueError("ignore_row_if can only be both_values_are_missing")
    op = f"{op}=" if arguments.kwargs.get("or_equal") else op

    def has_a_value(names: ColumnNames) -> str:
        a, b = (names.dialect.name(name) for name in arguments.columns)
        return f"NOT ({a} IS NULL AND {b} IS NULL)"

    def compare(names: ColumnNames) -> str:
        names.refuse_unlike(arguments.columns)
        return f" {op} ".join(names.column(name) for name in arguments.columns)

    return arguments.rows(has_a_value, compare)


def _aggregate_rule(arguments: _ExpectationArguments, function: str) -> TableRule:
    return arguments.table(lambda names: f"{function}({names.column(arguments.columns[0])})")


def _row_count_rule(arguments: _ExpectationArguments) -> TableRule:
    if "value" in arguments.kwargs:
        row_count = _parse_number(arguments.kwargs["value"])
        return TableRule(arguments.description, (), lambda names: "count(*)", row_count, row_count)
    return arguments.table(lambda names: "count(*)")


def _proportion_rule(arguments: _ExpectationArguments) -> TableRule:
    (name,) = arguments.columns
    return arguments.table(lambda names: f"avg(CASE WHEN {names.dialect.name(name)} IS NULL THEN 0.0 ELSE 1.0 END)")


_BOUNDS = ("min_value", "max_value", "strict_min", "strict_max")
_AGGREGATE = ("column", *_BOUNDS)
_AGGREGATE_FUNCTIONS = {"min": "min", "max": "max", "mean": "avg", "sum": "sum", "stdev": "stddev_samp"}
_PAIR = ("column_A", "column_B", "mostly", "ignore_row_if")

_EXPECTATION_TYPES: dict[str, _ExpectationType] = {
    "expect_column_to_exist": _ExpectationType(lambda arguments: arguments.columns[0], ("column",)),
    "expect_column_values_to_not_be_null": _ExpectationType(
        lambda arguments: _null_rule(arguments, "NOT NULL"), ("column", "mostly")
    ),
    "expect_column_values_to_be_null": _ExpectationType(
        lambda arguments: _null_rule(arguments, "NULL"), ("column", "mostly")
    ),
    "expect_column_values_to_be_between": _ExpectationType(_between_rule, ("column", *_BOUNDS, "mostly")),
    "expect_column_values_to_be_in_set": _ExpectationType(
        lambda g: _in_set_rule(g, "IN"), ("column", "value_set", "mostly"), 2
    ),
    "expect_column_values_to_not_be_in_set": _ExpectationType(
        lambda g: _in_set_rule(g, "NOT IN"), ("column", "value_set", "mostly"), 2
    ),
    "expect_column_values_to_match_regex": _ExpectationType(
        lambda g: _regex_rule(g, ""), ("column", "regex", "mostly"), 2
    ),
    "expect_column_values_to_not_match_regex": _ExpectationType(
        lambda g: _regex_rule(g, "NOT"), ("column", "regex", "mostly"), 2
    ),
    "expect_column_value_lengths_to_be_between": _ExpectationType(_length_between_rule, ("column", *_BOUNDS, "mostly")),
    "expect_column_value_lengths_to_equal": _ExpectationType(_length_rule, ("column", "value", "mostly"), 2),
    "expect_column_pair_values_to_be_equal": _ExpectationType(lambda arguments: _pair_rule(arguments, "="), _PAIR, 2),
    "expect_column_pair_values_a_to_be_greater_than_b": _ExpectationType(
        lambda arguments: _pair_rule(arguments, ">"), (*_PAIR, "or_equal"), 2
    ),
    "expect_table_row_count_to_be_between": _ExpectationType(_row_count_rule, _BOUNDS, 0),
    "expect_table_row_count_to_equal": _ExpectationType(_row_count_rule, ("value",)),
    **{
        f"expect_column_{name}_to_be_between": _ExpectationType(partial(_aggregate_rule, function=function), _AGGREGATE)
        for name, function in _AGGREGATE_FUNCTIONS.items()
    },
    "expect_column_proportion_of_non_null_values_to_be_between": _ExpectationType(_proportion_rule, _AGGREGATE),
}
"""The supported expectations. Uniqueness is missing: it concerns all rows ever published, or costs a shuffle."""

EXPECTATION_TYPES = tuple(_EXPECTATION_TYPES)
