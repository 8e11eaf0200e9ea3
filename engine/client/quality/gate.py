"""The gate before a publish: rows that fail an expectation of the topic's suite are rejected, or all rows are.

A row that fails is marked, and is rejected in the same request: `rejected_rows` refers to it, with the
expectation. Rows are looked at once, on their way into data files.
"""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...namespace.config import parse_yaml
from ...protocol.errors import ExpectationFailed, InvalidConfig, InvalidRecord
from ..rows.placing import FIRST_FAILED, RequestedPartitions
from .expectation_types import (
    DUCKDB,
    ColumnNames,
    Kwargs,
    RowRule,
    TableRule,
    TimeKind,
    build_rule,
    parse_share,
)

# Suites of Great Expectations as conditions in SQL, for Spark and for DuckDB: a publish looks at its rows once.
#
# A suite is a file in the format of Great Expectations 1, which is not loaded for it. An unsupported expectation is
# refused when the suite is loaded: none is skipped silently.


DEFAULT_MOST_FAILED = 0.5
"""Share of the rows that may fail unless a suite says otherwise. If more fail, the publisher has made a mistake."""

_CRITICAL = "critical"
_SEVERITIES = (_CRITICAL, "warning", "info")


@dataclass(frozen=True)
class Suite:
    """The expectations for a topic. most_failed: share of rows that may fail; above it all rows are refused."""

    rows: tuple[RowRule, ...] = ()
    table: tuple[TableRule, ...] = ()
    needed: tuple[str, ...] = ()
    most_failed: float = DEFAULT_MOST_FAILED
    descriptions: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptions", tuple(rule.description for rule in self.rows))

    def first_failure_sql(self, names: ColumnNames) -> str:
        """Return SQL for the number of the first row rule that a row fails; null if it fails none."""
        cases = " ".join(f"WHEN {rule.failure_sql(names)} THEN {nth}" for nth, rule in enumerate(self.rows))
        return f"CASE {cases} END" if cases else "CAST(NULL AS INT)"

    def aggregates_sql(self, names: ColumnNames) -> list[str]:
        """Return SQL for aggregates of all rows: per row rule with `mostly` the rows that fail and those that it
        looks at, then one value per table rule.
        """
        conditions = [
            sql for rule in self.rules_with_mostly for sql in (rule.failure_sql(names), rule.applies_sql(names))
        ]
        counts = [f"sum(CASE WHEN {sql} THEN 1 ELSE 0 END)" for sql in conditions]
        return counts + [rule.aggregate_sql(names) for rule in self.table]

    @property
    def rules_with_mostly(self) -> list[RowRule]:
        return [rule for rule in self.rows if rule.mostly is not None]


_T = TypeVar("_T")


def load_suite(file: Path) -> Suite:
    """Read the suite of a gate. Raises InvalidConfig, which names the file and the mistake."""
    return read_suite(file, _parse_suite)


def read_suite(file: Path, parse: Callable[[Kwargs], _T]) -> _T:
    """Read a suite, and parse it. Raises InvalidConfig, which names the file and the mistake."""
    try:
        text = file.read_text(encoding="utf-8")
        is_json = file.suffix == ".json"
        return parse(_parse_file(json.loads(text, object_pairs_hook=_build_object) if is_json else parse_yaml(text)))
    except InvalidConfig as error:
        raise InvalidConfig(f"{file}: {error.detail}", found=error.found, expected=error.expected) from None
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise InvalidConfig(f"Cannot read {file}: {why}", expected="a suite of Great Expectations") from error


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidConfig("A key stands twice.", found=next(name for name in values if names.count(name) > 1))
    return values


def _parse_file(loaded: Any) -> Kwargs:
    if not isinstance(loaded, dict) or not isinstance(loaded.get("expectations"), list):
        raise InvalidConfig(
            "The file does not contain a suite.", expected="an object with a list of expectations, of version 1"
        )
    for expectation in loaded["expectations"]:
        if not isinstance(expectation, dict) or not isinstance(expectation.get("type"), str):
            raise InvalidConfig("An expectation has no type.", found=expectation)
        _parse_object(f"kwargs of {expectation['type']}", expectation.get("kwargs"))
        if (severity := expectation.get("severity") or _CRITICAL) not in _SEVERITIES:
            raise InvalidConfig("The severity is unknown.", found=severity, expected=" or ".join(_SEVERITIES))
    return loaded


def _parse_suite(loaded: Kwargs) -> Suite:
    rows: list[RowRule] = []
    table: list[TableRule] = []
    needed: list[str] = []
    for expectation in loaded["expectations"]:
        if (expectation.get("severity") or _CRITICAL) != _CRITICAL:
            continue  # a warning rejects no row: an audit of the topic reports it
        kwargs = expectation.get("kwargs") or {}
        rule = build_rule(expectation["type"], {k: v for k, v in kwargs.items() if v is not None})
        if isinstance(rule, RowRule):
            rows.append(rule)
        elif isinstance(rule, TableRule):
            table.append(rule)
        needed += [rule] if isinstance(rule, str) else rule.columns
    most_failed = _parse_most_failed(_parse_object("meta", loaded.get("meta")))
    return Suite(tuple(rows), tuple(table), tuple(dict.fromkeys(needed)), most_failed)


def _parse_object(name: str, value: Any) -> Kwargs:
    """Return a mapping; empty for None."""
    if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise InvalidConfig(f"{name} is not valid.", found=value, expected="an object")
    return value or {}


def _parse_most_failed(meta: Kwargs) -> float:
    settings = _parse_object("meta.lakemq", meta.get("lakemq"))
    if unknown := settings.keys() - {"most_failed"}:
        raise InvalidConfig("meta.lakemq has an unknown key.", found=sorted(unknown)[0], expected="most_failed")
    return parse_share("meta.lakemq.most_failed", settings.get("most_failed", DEFAULT_MOST_FAILED))


_ENDINGS = (".json", ".yaml", ".yml")
_CHUNK_ROWS = 1 << 16
_NTH = "lakemq_nth_row"


class Gate:
    """The gate of one topic."""

    def __init__(self, destination: str, suite: Suite) -> None:
        self.destination, self.suite = destination, suite

    def mark_failed_rows(self, table: pa.Table, requested: RequestedPartitions) -> RequestedPartitions:
        """Return the explicit partitions, with a mark for each row that fails.

        Raises ExpectationFailed if all rows are refused, InvalidRecord if the suite does not fit the columns.
        """
        self.check_columns(table.column_names)
        failing, measured = self._evaluate(table)
        marked = np.full(table.num_rows, -1, np.int64) if requested is None else np.array(requested, np.int64)
        for nth in reversed(range(len(failing))):  # the mark names the first rule that a row fails
            marked[failing[nth]] = FIRST_FAILED - nth
        failed_count = int(np.count_nonzero(marked <= FIRST_FAILED))
        self.judge(table.num_rows, failed_count, measured)
        return marked if failed_count else requested

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ExpectationFailed if a column that the suite uses is missing."""
        if missing := [name for name in self.suite.needed if name not in names]:
            raise ExpectationFailed(
                f"The rows for {self.destination} lack columns of its suite.",
                found=list(names),
                expected=", ".join(missing),
            )

    def judge(self, rows: int, failed: int, measured: Sequence[Any]) -> None:
        """Raise ExpectationFailed if all rows are refused. measured: values of `Suite.aggregates_sql`, in order."""
        suite = self.suite
        counts = measured[: 2 * len(suite.rules_with_mostly)]
        for rule, wrong, checked in zip(suite.rules_with_mostly, counts[::2], counts[1::2], strict=True):
            # shares are divided, as a share is written: 0.55 * 100 is above 55
            if checked and (int(checked) - int(wrong)) / int(checked) < (rule.mostly or 0):
                self._refuse_all(
                    f"{wrong} of {checked} rows fail {rule.description}", f"that {rule.mostly:g} of them hold"
                )
        for table_rule, measured_value in zip(suite.table, measured[len(counts) :], strict=True):
            try:
                is_within = table_rule.is_within_bounds(measured_value)
            except TypeError:
                raise self.build_unfit_error(f"{type(measured_value).__name__} for {table_rule.description}") from None
            if not is_within:
                self._refuse_all(f"{measured_value} for {table_rule.description}", "what is within")
        if rows and failed / rows > suite.most_failed:
            self._refuse_all(f"{failed} of {rows} rows fail", f"at most a share of {suite.most_failed:g}")

    def _refuse_all(self, found: str, expected: str) -> None:
        raise ExpectationFailed(f"Nothing is published to {self.destination}.", found=found, expected=expected)

    def _evaluate(self, table: pa.Table) -> tuple[list[npt.NDArray[np.int64]], Sequence[Any]]:
        """Return the failing rows per row rule, and the values of the aggregates."""
        import duckdb  # few clients need it

        if len({name.lower() for name in (*self.suite.needed, _NTH)}) <= len(self.suite.needed):
            raise self.build_unfit_error("columns that differ by case alone are one in SQL")
        needed = _cast_columns(table.select(list(self.suite.needed)) if self.suite.needed else _row_count_table(table))
        times = {field.name: kind for field in needed.schema if (kind := _find_time_kind(field.type))}
        names = ColumnNames(DUCKDB, frozenset(f.name for f in needed.schema if _is_bytes(f.type)), times)
        numbered = needed.append_column(_NTH, pa.array(np.arange(table.num_rows)))
        try:
            failing = [f"list({_NTH}) FILTER (WHERE {rule.failure_sql(names)})" for rule in self.suite.rows]
            columns = [f"{sql} AS a{nth}" for nth, sql in enumerate([*failing, *self.suite.aggregates_sql(names)])]
        except ValueError as error:
            raise self.build_unfit_error(str(error)) from None
        if not columns:
            return [], ()
        connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
        with connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET enable_external_access = false")
            # a thread of DuckDB's takes whole chunks
            rows = connection.from_arrow(pa.Table.from_batches(numbered.to_batches(_CHUNK_ROWS), numbered.schema))
            try:
                aggregates = rows.aggregate(", ".join(columns))
            except duckdb.Error as error:
                raise self.build_unfit_error(str(error)) from None
            try:
                result = aggregates.to_arrow_table()
            except duckdb.Error as error:
                raise self.build_unfit_value_error(type(error).__name__) from None
        lists = [column.chunk(0).flatten().to_numpy() for column in result.columns[: len(failing)]]
        return lists, [column[0].as_py() for column in result.columns[len(failing) :]]

    def build_unfit_error(self, why: str) -> InvalidRecord:
        """Build the error of a suite that does not fit the columns, such as a regular expression on a number."""
        line = why.partition("\n")[0]
        return InvalidRecord(f"The suite of {self.destination} cannot be evaluated on these rows.", found=line)

    def build_unfit_value_error(self, error: str) -> InvalidRecord:
        """Build the error of values that do not fit. error: the name only, because the engine's text quotes values."""
        return self.build_unfit_error(f"a value of another type than an expectation compares it with ({error})")


class Gates:
    """The gates of a connection, by topic. Each suite is read once. Thread-safe."""

    def __init__(self, folder: Path | None) -> None:
        """folder: of the suites, each named after its topic; None: there are none."""
        self._folder, self._known, self._lock = folder, dict[str, "Gate | None"](), threading.Lock()

    def of(self, destination: str) -> Gate | None:
        """Return the gate of a topic; None: it has none. Raises InvalidConfig for a suite that cannot be used."""
        if self._folder is None:
            return None
        with self._lock:
            if destination not in self._known:
                self._known[destination] = self._load(self._folder, destination)
            return self._known[destination]

    @staticmethod
    def _load(folder: Path, destination: str) -> Gate | None:
        file = find_suite(folder, destination)
        return Gate(destination, load_suite(file)) if file else None


def find_suite(folder: Path, destination: str) -> Path | None:
    """Return the file of a topic's suite; None: it has none. Raises InvalidConfig if it has two."""
    files = [file for ending in _ENDINGS if (file := folder / f"{destination}{ending}").is_file()]
    if len(files) > 1:
        raise InvalidConfig(f"{destination} has two suites.", found=[file.name for file in files], expected="one")
    return files[0] if files else None


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _find_time_kind(type: pa.DataType) -> TimeKind | None:
    if pa.types.is_timestamp(type):
        return TimeKind.INSTANT if type.tz else TimeKind.LOCAL
    return TimeKind.DAY if pa.types.is_date(type) else None


def _cast_columns(table: pa.Table) -> pa.Table:
    """Cast byte columns to text if all values are text: it copies nothing, while DuckDB decodes value by value.

    Cast floats of 32 bits to 64, as which Spark and Great Expectations compare them. DuckDB would round some bounds.
    """
    for nth, column in enumerate(table.schema):
        if pa.types.is_float32(column.type):
            table = table.set_column(nth, column.name, table.column(nth).cast(pa.float64()))
        if _is_bytes(column.type):
            with suppress(pa.ArrowInvalid):
                table = table.set_column(nth, column.name, table.column(nth).cast(pa.large_string()))
    return table


def _row_count_table(table: pa.Table) -> pa.Table:
    return pa.table({"n": pa.nulls(table.num_rows, pa.bool_())})
