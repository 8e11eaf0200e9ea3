"""Predicates: conditions on rows that users write in DuckDB's SQL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..namespace.processes.extras import needs
from ..protocol.errors import InvalidRequest, LakeMQError

_NTH = "lakemq_nth_row"


class Predicate:
    """A condition on columns. It runs in a database of its own that can open no file, setting or other table."""

    def __init__(self, text: str, columns: pa.Schema) -> None:
        """columns: those that the predicate may use. Raises InvalidRequest if it cannot be evaluated on them."""
        with needs("sql"):
            import duckdb  # few clients need it

        self._text, self._columns = text, columns
        self._connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET temp_directory = ''")  # DuckDB may read files there in any case
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        self.select_rows(columns.empty_table())

    def select_rows(self, rows: pa.Table) -> pa.Table:
        """Return the rows for which the predicate is true, in order, with all columns. Raises InvalidRequest."""
        import duckdb

        shown = rows.select(self._columns.names).append_column(_NTH, pa.array(np.arange(rows.num_rows)))
        try:
            selected = self._connection.from_arrow(shown).filter(self._text).project(_NTH).to_arrow_table()
        except duckdb.Error as error:
            raise self._refusal(error) from None
        return rows.take(pa.array(np.sort(selected.column(_NTH).to_numpy())))

    def _refusal(self, error: Exception) -> LakeMQError:
        first_line, columns = str(error).partition("\n")[0], ", ".join(self._columns.names)
        return InvalidRequest("The predicate cannot be used.", found=first_line, expected=f"SQL over {columns}")
