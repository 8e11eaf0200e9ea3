"""A gate before publishing: rows that fail an expectation of the topic's suite are refused, or all of them are.

A row that fails is marked, and published as refused, in the same request: it is a dead letter by reference, with the
expectation. Rows are looked at once, on their way into data files.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...protocol.errors import ExpectationFailed, InvalidConfig, InvalidRecord
from .placing import FIRST_FAILED
from .suites import DUCKDB, Names, Suite, load_suite

_ENDINGS = (".json", ".yaml", ".yml")
_CHUNK_ROWS = 1 << 16
_NTH = "lakemq_nth_row"


class Gate:
    """Of one topic."""

    def __init__(self, destination: str, suite: Suite) -> None:
        self.destination, self.suite = destination, suite

    def asked(self, table: pa.Table, asked: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64] | None:
        """`asked`, the partitions that rows ask for, with a mark for each that fails.

        Raises ExpectationFailed where all are refused, InvalidRecord where the suite is not one of such columns.
        """
        self.check_columns(table.column_names)
        failing, measured = self._looked_at(table)
        marked = np.full(table.num_rows, -1, np.int64) if asked is None else asked.copy()
        for nth in reversed(range(len(failing))):  # the first that a row fails is the one told
            marked[failing[nth]] = FIRST_FAILED - nth
        failed_count = int(np.count_nonzero(marked <= FIRST_FAILED))
        self.judge(table.num_rows, failed_count, measured)
        return marked if failed_count else asked

    def check_columns(self, names: Sequence[str]) -> None:
        """All columns that the suite looks at are there."""
        if missing := [name for name in self.suite.needed if name not in names]:
            raise ExpectationFailed(
                f"The rows for {self.destination} lack columns of its suite.",
                found=list(names),
                expected=", ".join(missing),
            )

    def judge(self, rows: int, failed: int, measured: Sequence[Any]) -> None:
        """Raises ExpectationFailed where all rows are refused. measured: of the suite's `measured`, in that order."""
        suite = self.suite
        counts = measured[: 2 * len(suite.counted)]
        for rule, wrong, of in zip(suite.counted, counts[::2], counts[1::2], strict=True):
            # shares are divided, as a share is written: 0.55 * 100 is above 55
            if of and (int(of) - int(wrong)) / int(of) < (rule.mostly or 0):
                self._refuse_all(f"{wrong} of {of} rows fail {rule.told}", f"that {rule.mostly:g} of them hold")
        for of_all, found in zip(suite.table, measured[len(counts) :], strict=True):
            try:
                is_within = of_all.holds(found)
            except TypeError:
                raise self.unfit(f"{type(found).__name__} for {of_all.told}") from None
            if not is_within:
                self._refuse_all(f"{found} for {of_all.told}", "what is within")
        if rows and failed / rows > suite.most_failed:
            self._refuse_all(f"{failed} of {rows} rows fail", f"at most a share of {suite.most_failed:g}")

    def _refuse_all(self, found: str, expected: str) -> None:
        raise ExpectationFailed(f"Nothing is published to {self.destination}.", found=found, expected=expected)

    def _looked_at(self, table: pa.Table) -> tuple[list[npt.NDArray[np.int64]], Sequence[Any]]:
        """Of each rule of rows which rows fail it; and what the suite measures."""
        import duckdb  # few clients need it

        if len({name.lower() for name in (*self.suite.needed, _NTH)}) <= len(self.suite.needed):
            raise self.unfit("columns that differ by case alone are one in SQL")
        needed = _as_text(table.select(list(self.suite.needed)) if self.suite.needed else _counted_only(table))
        names = Names(DUCKDB, frozenset(f.name for f in needed.schema if _is_bytes(f.type)))
        numbered = needed.append_column(_NTH, pa.array(np.arange(table.num_rows)))
        failing = [f"list({_NTH}) FILTER (WHERE {rule.fails(names)})" for rule in self.suite.rows]
        asked = [f"{sql} AS a{nth}" for nth, sql in enumerate([*failing, *self.suite.measured(names)])]
        if not asked:
            return [], ()
        connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
        with connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET enable_external_access = false")
            # a thread of DuckDB's takes whole chunks
            rows = connection.from_arrow(pa.Table.from_batches(numbered.to_batches(_CHUNK_ROWS), numbered.schema))
            try:
                looked_at = rows.aggregate(", ".join(asked))
            except duckdb.Error as error:
                raise self.unfit(str(error)) from None
            try:
                found = looked_at.to_arrow_table()
            except duckdb.Error as error:
                raise self.unfit_value(type(error).__name__) from None
        lists = [column.chunk(0).flatten().to_numpy() for column in found.columns[: len(failing)]]
        return lists, [column[0].as_py() for column in found.columns[len(failing) :]]

    def unfit(self, why: str) -> InvalidRecord:
        """The error of a suite that cannot be asked of these columns, such as a regular expression of a number."""
        line = why.partition("\n")[0]
        return InvalidRecord(f"The suite of {self.destination} cannot be asked of these rows.", found=line)

    def unfit_value(self, error: str) -> InvalidRecord:
        """The same where a column's values are at fault. error: how the engine calls that; what it says quotes them."""
        return self.unfit(f"a value of another type than an expectation compares it with ({error})")


class Gates:
    """Of a connection: topic -> the gate before it. A suite is read once. Thread-safe."""

    def __init__(self, folder: Path | None) -> None:
        """folder: of the suites, each named after its topic; None: there are none."""
        self._folder, self._known, self._lock = folder, dict[str, "Gate | None"](), threading.Lock()

    def of(self, destination: str) -> Gate | None:
        """Raises InvalidConfig for a suite that cannot be used."""
        if self._folder is None:
            return None
        with self._lock:
            if destination not in self._known:
                self._known[destination] = self._load(self._folder, destination)
            return self._known[destination]

    def told(self, destination: str) -> Sequence[str]:
        """The expectations by the number that rows are marked with."""
        gate = self.of(destination)
        return gate.suite.told if gate else ()

    @staticmethod
    def _load(folder: Path, destination: str) -> Gate | None:
        found = [file for ending in _ENDINGS if (file := folder / f"{destination}{ending}").is_file()]
        if len(found) > 1:
            raise InvalidConfig(f"{destination} has two suites.", found=[file.name for file in found], expected="one")
        return Gate(destination, load_suite(found[0])) if found else None


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _as_text(table: pa.Table) -> pa.Table:
    """Bytes as text where all of a column are: it copies nothing, and DuckDB would decode them one by one."""
    for nth, field in enumerate(table.schema):
        if _is_bytes(field.type):
            with suppress(pa.ArrowInvalid):
                table = table.set_column(nth, field.name, table.column(nth).cast(pa.large_string()))
    return table


def _counted_only(table: pa.Table) -> pa.Table:
    return pa.table({"n": pa.nulls(table.num_rows, pa.bool_())})
