"""The statistics of a file in Delta's log are true for every row in it, and every reader can read them."""

import pyarrow as pa
import pytest

from lakemq.engine.namespace.data_file import to_table_file
from lakemq.engine.protocol.values.log import DataFile
from lakemq.tables.storage.delta.commits import compute_statistics

FILE = 0x0123456789ABCDEF
LAST_MS = 253_402_300_799_999


def test_statistics_of_a_file_bound_its_id_rows_and_times() -> None:
    file = to_table_file(DataFile(FILE, 1, 7, 1_000, 2_000, 7))
    assert (file.path, file.statistics["numRecords"]) == ("0123456789abcdef.parquet", 7)
    assert file.statistics["minValues"] == {"file_id": FILE, "row": 0, "timestamp": "1970-01-01T00:00:01.000Z"}
    assert file.statistics["maxValues"] == {"file_id": FILE, "row": 6, "timestamp": "1970-01-01T00:00:02.001Z"}


@pytest.mark.parametrize(("low_ms", "high_ms"), [(-1, 0), (0, LAST_MS), (0, 2**53), (-(2**53), 2**53)])
def test_statistics_leave_out_times_outside_the_calendar(low_ms: int, high_ms: int) -> None:
    """Rows were refused for their timestamp. One of them made the table unreadable."""
    statistics = to_table_file(DataFile(FILE, 1, 7, low_ms, high_ms, 7)).statistics
    assert statistics["minValues"].keys() == statistics["maxValues"].keys() == {"file_id", "row"}


def test_statistics_of_a_merged_file_leave_out_long_texts() -> None:
    """The texts of a client's results or a topic's settings would stand in the log at full length."""
    rows = pa.table({"step": [3, 9], "name": ["b", "a"], "results": ["[" + "x" * 100 + "]", "[]"], "none": [None, "y"]})
    statistics = compute_statistics(rows)
    assert statistics["minValues"] == {"step": 3, "name": "a", "none": "y"}
    assert statistics["maxValues"] == {"step": 9, "name": "b", "none": "y"}
    assert statistics["nullCount"] == {"step": 0, "name": 0, "none": 1}
