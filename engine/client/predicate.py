"""Predicates: conditions on rows that users write in DuckDB's SQL."""

import numpy as np
import pyarrow as pa

from lakemq.tables.storage.native_calls import NATIVE_CALLS

from ..namespace.extras import needs
from ..protocol.errors import InvalidRequest, LakeMQError
from .sql.query import hint_at_quotes, limit_time

_NTH = "lakemq_nth_row"
_TIMEOUT_S = 20.0
"""For the rows of a piece, as for a query of the console."""
_MOST_CHARACTERS = 1 << 16
"""The time to plan conditions grows with the square of their number, and no interrupt ends it."""


class Predicate:
    """A condition on columns. It runs in a database of its own that can open no file, setting or other table.

    A condition that cannot be evaluated on bytes, such as LIKE, reads them as UTF-8; null where they are not.
    """

    def __init__(self, text: str, columns: pa.Schema, timeout_s: float = _TIMEOUT_S) -> None:
        """Check the predicate.

        Args:
            text: the condition.
            columns: those that it may use.
            timeout_s: for the rows of one call.

        Raises InvalidRequest: it is too long, or cannot be evaluated on the columns.
        """
        if len(text) > _MOST_CHARACTERS:
            raise InvalidRequest(
                "The predicate is too long.",
                found=f"{len(text)} characters",
                expected=f"at most {_MOST_CHARACTERS}: several calls, each with a part of it",
            )
        with needs("sql"):
            import duckdb  # few clients need it

        self._text, self._columns, self._timeout_s = text, columns, timeout_s
        self._connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
        NATIVE_CALLS.add_interruptible(self._connection)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET temp_directory = ''")  # DuckDB may read files there in any case
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        self._reads_text = False
        try:
            self.select_rows(columns.empty_table())
        except InvalidRequest:
            self._reads_text = True  # LIKE and other functions of texts take no bytes
            try:
                self.select_rows(columns.empty_table())
            except InvalidRequest:
                self._reads_text = False
            if not self._reads_text:
                raise

    @NATIVE_CALLS.guard
    def select_rows(self, rows: pa.Table) -> pa.Table:
        """Return the rows for which the predicate is true, in order, with all columns. Raises InvalidRequest."""
        import duckdb

        shown = rows.select(self._columns.names)
        if self._reads_text:
            shown = _decode_bytes(shown)
        shown = shown.append_column(_NTH, pa.array(np.arange(rows.num_rows)))
        try:
            with limit_time(self._connection, self._timeout_s):
                selected = self._connection.from_arrow(shown).filter(self._text).project(_NTH).to_arrow_table()
        except duckdb.Error as error:
            raise self._refusal(error) from None
        return rows.take(pa.array(np.sort(selected.column(_NTH).to_numpy())))

    def _refusal(self, error: Exception) -> LakeMQError:
        first_line = f"{str(error).partition(chr(10))[0]}{hint_at_quotes(self._text)}"
        columns = ", ".join(self._columns.names)
        return InvalidRequest("The predicate cannot be used.", found=first_line, expected=f"SQL over {columns}")


def _decode_bytes(rows: pa.Table) -> pa.Table:
    """Return the rows with columns of bytes as text; null for bytes that are not UTF-8."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            column = rows.column(index)
            try:
                text = column.cast(pa.string())
            except pa.ArrowInvalid:
                text = pa.chunked_array([pa.array(map(_decode_utf8, column.to_pylist()), pa.string())])
            rows = rows.set_column(index, field.name, text)
    return rows


def _decode_utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
