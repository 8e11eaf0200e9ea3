"""The gate for a DataFrame: rows are marked, and aggregates observed, in the job that writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pyspark.errors import PySparkException, QueryContextType
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

from .gate import Gate
from .placing import FIRST_FAILED
from .suites import SPARK, Names

_ROWS = "n"


class SparkGate:
    """Of one publish. df: to be published in place of the one given; mark: the partition that a failed row asks for."""

    def __init__(self, gate: Gate, df: DataFrame) -> None:
        """Raises ExpectationFailed, InvalidRecord."""
        gate.check_columns(df.columns)
        self._gate, self._given = gate, df
        binary = frozenset(f.name for f in df.schema.fields if isinstance(f.dataType, BinaryType))
        self._names = Names(SPARK, binary)
        self._observed = Observation() if self._measures else None
        self._first_failed = gate.suite.first_failed(self._names)
        self.mark: Column = F.lit(FIRST_FAILED) - F.expr(self._first_failed)
        try:
            self.df = df if self._observed is None else df.observe(self._observed, *self._columns)
            self.df.select(self.mark)
        except PySparkException as error:
            raise gate.unfit(str(error)) from None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around a job that looks at rows. Raises InvalidRecord, without values, where some are of another type."""
        try:
            yield
        except PySparkException as error:
            contexts = error.getQueryContext() or ()
            asked = [one.fragment() for one in contexts if one.contextType() == QueryContextType.SQL]
            mine = (self._first_failed, *self._measures)
            if found := [sql for sql in asked if sql and any(sql in one for one in mine)]:
                raise self._gate.unfit_value(f"{error.getCondition()} in {found[0]}") from None
            raise

    def judge(self, written: Sequence[Row]) -> None:
        """written: rows of RANGES. Raises ExpectationFailed where all rows are refused.

        What tasks tell is of the attempts that count. What was observed may be of more, where a lost executor's work
        was done again: then it is computed anew.
        """
        of_one_copy = [row for row in written if row.copy == 0]
        rows = sum(row.record_count for row in of_one_copy)
        failed = sum(row.record_count for row in of_one_copy if row.partition <= FIRST_FAILED)
        self._gate.judge(rows, failed, self._measured(rows))

    def _measured(self, rows: int) -> list[Any]:
        if self._observed is None:
            return []
        found = self._observed.get
        if found[_ROWS] != rows:
            with self.asking():
                (row,) = self._given.agg(*self._columns).collect()
            found = row.asDict()
        return [found[name] for name in self._named]

    @cached_property
    def _measures(self) -> list[str]:
        return self._gate.suite.measured(self._names)

    @property
    def _named(self) -> list[str]:
        return [f"m{nth}" for nth in range(len(self._measures))]

    @property
    def _columns(self) -> list[Column]:
        measured = (F.expr(sql).alias(name) for name, sql in zip(self._named, self._measures, strict=True))
        return [F.count(F.lit(1)).alias(_ROWS), *measured]
