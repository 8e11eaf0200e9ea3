"""A condition of a user's over rows, in DuckDB's SQL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..namespace.extras import needs
from ..protocol.errors import InvalidRequest, LakeMQError

_NTH = "lakemq_nth_row"


class Predicate:
    """It is asked of columns alone: it reaches no file, no setting and no table."""

    def __init__(self, text: str, columns: pa.Schema) -> None:
        """columns: what it may look at. Raises InvalidRequest: it is none of these."""
        with needs("sql"):
            import duckdb  # few clients need it

        self._text, self._columns = text, columns
        self._connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        self.chosen(columns.empty_table())

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Those of the rows for which it holds, in their order, with all their columns. Raises InvalidRequest."""
        import duckdb

        shown = rows.select(self._columns.names).append_column(_NTH, pa.array(np.arange(rows.num_rows)))
        try:
            found = self._connection.from_arrow(shown).filter(self._text).project(_NTH).to_arrow_table()
        except duckdb.Error as error:
            raise self._refusal(error) from None
        return rows.take(pa.array(np.sort(found.column(_NTH).to_numpy())))

    def _refusal(self, error: Exception) -> LakeMQError:
        found, columns = str(error).partition("\n")[0], ", ".join(self._columns.names)
        return InvalidRequest("The predicate cannot be used.", found=found, expected=f"SQL over {columns}")
