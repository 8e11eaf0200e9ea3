"""Publishes of many bytes: cut into files and row groups of a bounded size, with all rows in their order."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.served import CONFIG, new_topic

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.log_reader import REBASE_MS, Reader
from lakemq.engine.client.fetch.rows import MOST_BYTES
from lakemq.engine.client.publish import arrow
from lakemq.engine.client.publish.arrow import find_last_version
from lakemq.engine.namespace.data_file import file_name
from lakemq.testing import MovableClock


def read_footers(mq: Connection, topic: str) -> list[pq.FileMetaData]:
    file_ids = sorted(set(mq.fetch(topic).plan.segments["file_id"].to_pylist()))
    return [pq.read_metadata(Path(mq.namespace.files.root, file_name(file_id))) for file_id in file_ids]


def read_values(mq: Connection, topic: str) -> dict[int, list[int]]:
    """Return the values of each partition in the order of offsets."""
    values: dict[int, list[int]] = {}
    for row in mq.fetch(topic).to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist():
        values.setdefault(row["partition"], []).append(int(row["value"]))
    return values


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "chunks"), [(1, 7), (4, 1)])
def test_row_groups_do_not_change_order_or_segments(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, partitions: int, chunks: int
) -> None:
    rows = 2_000
    whole, cut = new_topic(mq, partitions), new_topic(mq, partitions)
    values = np.array_split(np.arange(rows), chunks)
    table = pa.concat_tables(
        [
            pa.table({"value": [b"%0100d" % i for i in part], "key": [b"k%d" % (i % 37) for i in part]})
            for part in values
        ]
    )
    mq.publish(whole, table)
    monkeypatch.setattr(arrow, "ROW_GROUP_BYTES", table.nbytes // 5)
    mq.publish(cut, table)
    expected = read_values(mq, whole)
    assert sorted(value for part in expected.values() for value in part) == list(range(rows))
    assert all(part == sorted(part) for part in expected.values())
    assert read_values(mq, cut) == expected
    assert mq.fetch(cut).plan.segments.num_rows == mq.fetch(whole).plan.segments.num_rows == len(expected)
    (whole_footer,), (cut_footer,) = read_footers(mq, whole), read_footers(mq, cut)
    assert whole_footer.num_row_groups == 1
    assert cut_footer.num_row_groups >= 5


@pytest.mark.slow
@pytest.mark.extended
def test_publish_of_more_than_two_gib_is_split_into_files(mq: Connection) -> None:
    """They were sorted together, for which pyarrow would have joined the chunks to a column of more than 2 GiB."""
    topic, value_bytes, rows = new_topic(mq, 3), 1_000_000, 2_200
    part = pa.array([bytes(value_bytes)] * 10, pa.binary())
    keys = pa.array([b"k%d" % i for i in range(rows)])
    table = pa.table({"key": keys, "value": pa.chunked_array([part] * (rows // 10))})
    assert mq.publish(topic, table).record_count == rows
    footers = read_footers(mq, topic)
    assert sum(footer.num_rows for footer in footers) == rows
    for footer in footers:
        assert footer.num_rows * value_bytes <= arrow.SLICE_BYTES
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        assert all(group.num_rows * value_bytes <= MOST_BYTES // 2 for group in groups)


def test_reader_that_moves_to_a_newer_watermark_keeps_versions_that_no_table_has(tmp_path: Path) -> None:
    clock, rows = MovableClock(), pa.table({"value": ["x"]})
    config = {**CONFIG, "project.interval.ms": 600_000}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq, mq.serving():
        mq.topics.create("t")
        reader = Reader(mq.namespace.store, clock)
        for version in range(4):
            mq.publish("t", rows, txn_app_id="app", txn_version=version)
            clock.ahead_ms += 2 * REBASE_MS // 3
            assert find_last_version(mq.namespace.store, reader.refresh(), "app", "t") == version
            assert find_last_version(mq.namespace.store, reader.refresh(), "other", "t") == -1
