"""The rules of a suite: conditions on rows and bounds of aggregates, as SQL for Spark and DuckDB."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SqlSyntax:
    """How a column and a text are written.

    matches: that a text has a match of a regular expression; decoded: bytes as text, null where they are none.
    """

    name: Callable[[str], str]
    literal: Callable[[str], str]
    matches: str
    decoded: str


SPARK = SqlSyntax(
    lambda name: "`" + name.replace("`", "``") + "`",
    lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",
    "regexp_like({}, {})",
    "try_validate_utf8(CAST({} AS STRING))",
)
DUCKDB = SqlSyntax(
    lambda name: '"' + name.replace('"', '""') + '"',
    lambda text: "'" + text.replace("'", "''") + "'",
    "regexp_matches({}, {})",
    "TRY(decode({}))",
)


_TIME_WITHOUT_ZONE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}(?P<of_day>[ T]\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?)?")


class ColumnNames:
    """The columns of a table in a dialect.

    binary: those that hold bytes, which are compared as text. instants: those that hold times with a zone, which Spark
    compares with texts in the session's zone; DuckDB is told to do so in UTC.
    """

    def __init__(
        self, dialect: SqlSyntax, binary: frozenset[str] = frozenset(), instants: frozenset[str] = frozenset()
    ) -> None:
        self.dialect, self._binary, self._instants = dialect, binary, instants

    def column(self, name: str) -> str:
        quoted = self.dialect.name(name)
        return self.dialect.decoded.format(quoted) if name in self._binary else quoted

    def value(self, value: Any, column: str) -> str:
        """Return a value with which a column is compared. A time without a zone is in UTC."""
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if column in self._instants and isinstance(value, str) and (time := _TIME_WITHOUT_ZONE.fullmatch(value)):
            value = f"{value}Z" if time["of_day"] else f"{value} 00:00:00Z"
        return repr(value) if isinstance(value, int | float) else self.dialect.literal(value)


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
