"""The gate for a DataFrame: rows are marked, and aggregates observed, in the job that writes them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pyspark.errors import PySparkException, QueryContextType
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DateType, TimestampNTZType, TimestampType

from ..rows.placing import FIRST_FAILED
from .expectation_types import SPARK, ColumnNames, TimeKind
from .gate import Gate

_ROWS = "n"
_TIME_KINDS: dict[type, TimeKind] = {
    TimestampType: TimeKind.INSTANT,
    TimestampNTZType: TimeKind.LOCAL,
    DateType: TimeKind.DAY,
}


class SparkGate:
    """The gate of one publish. df: the DataFrame to publish instead; mark: column that marks failed rows."""

    def __init__(self, gate: Gate, df: DataFrame) -> None:
        """Raises ExpectationFailed, InvalidRecord."""
        gate.check_columns(df.columns)
        self._gate, self._input = gate, df
        binary = frozenset(f.name for f in df.schema.fields if isinstance(f.dataType, BinaryType))
        times = {f.name: kind for f in df.schema.fields if (kind := _TIME_KINDS.get(type(f.dataType)))}
        self._names = ColumnNames(SPARK, binary, times)
        try:
            self._observed = Observation() if self._measures else None
            self._first_failed = gate.suite.first_failure_sql(self._names)
        except ValueError as error:
            raise gate.build_unfit_error(str(error)) from None
        self.mark: Column = F.lit(FIRST_FAILED) - F.expr(self._first_failed)
        try:
            self.df = df if self._observed is None else df.observe(self._observed, *self._columns)
            self.df.select(self.mark)
        except PySparkException as error:
            raise gate.build_unfit_error(str(error)) from None

    @contextmanager
    def hide_values_in_errors(self) -> Iterator[None]:
        """Run a job that evaluates rows. Raises InvalidRecord, without values, if some are of another type."""
        try:
            yield
        except PySparkException as error:
            contexts = error.getQueryContext() or ()
            fragments = [context.fragment() for context in contexts if context.contextType() == QueryContextType.SQL]
            expressions = (self._first_failed, *self._measures)
            if failing := [sql for sql in fragments if sql and any(sql in expression for expression in expressions)]:
                raise self._gate.build_unfit_value_error(f"{error.getCondition()} in {failing[0]}") from None
            raise

    def judge(self, written: Sequence[Row]) -> None:
        """written: rows of RANGES. Raises ExpectationFailed if all rows are refused.

        Rows of RANGES come from the task attempts that count. The observed aggregates may include other attempts, if
        the work of a lost executor was repeated. Their row count shows this, and they are then computed again.
        """
        first_copies = [row for row in written if row.copy == 0]
        rows = sum(row.record_count for row in first_copies)
        failed = sum(row.record_count for row in first_copies if row.partition <= FIRST_FAILED)
        self._gate.judge(rows, failed, self._read_measures(rows))

    def _read_measures(self, rows: int) -> list[Any]:
        if self._observed is None:
            return []
        values = self._observed.get
        if values[_ROWS] != rows:
            with self.hide_values_in_errors():
                (row,) = self._input.agg(*self._columns).collect()
            values = row.asDict()
        return [values[name] for name in self._measure_names]

    @cached_property
    def _measures(self) -> list[str]:
        return self._gate.suite.aggregates_sql(self._names)

    @property
    def _measure_names(self) -> list[str]:
        return [f"m{nth}" for nth in range(len(self._measures))]

    @property
    def _columns(self) -> list[Column]:
        aggregates = (F.expr(sql).alias(name) for name, sql in zip(self._measure_names, self._measures, strict=True))
        return [F.count(F.lit(1)).alias(_ROWS), *aggregates]
