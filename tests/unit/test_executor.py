"""A Spark task's work on its rows, without Spark."""

from pathlib import Path

import pyarrow as pa

from lakemq.engine.client.publish.executor import Destination, WriteMessages
from lakemq.engine.client.rows.placing import Copy

TYPES = {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.timestamp("us", "UTC")}


def rows(keys: list[bytes | None]) -> pa.RecordBatch:
    columns = {"key": keys, "value": [b"v"] * len(keys), "timestamp": [0] * len(keys)}
    return pa.RecordBatch.from_arrays([pa.array(columns[n], t) for n, t in TYPES.items()], names=list(TYPES))


def make_writer(root: Path, partition_count: int) -> WriteMessages:
    (root / "messages").mkdir(exist_ok=True)
    return WriteMessages(str(root), {}, (Destination("t", (Copy(partition_count, "xxhash64", 1000, (0,)),)),))


def test_keyless_rows_take_turns_in_partitions_across_batches(tmp_path: Path) -> None:
    (ranges,) = make_writer(tmp_path, 4)(iter([rows([None] * 6), rows([None] * 6)]))
    assert ranges.column("partition").to_pylist() == [0, 1, 2, 3]
    assert ranges.column("record_count").to_pylist() == [3] * 4
