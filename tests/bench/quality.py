"""The cost of a gate of expectations: the same rows are published with a suite and without, in turn; and an audit."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Figure, measure_in_turn, median, seconds
from pyspark.sql import functions as F
from serving import run_sequencer
from without_jvm import rows

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.audit import audit
from lakemq.spark import spark_session

EXPECTATIONS = [
    ("column_values_to_not_be_null", {"column": "key"}),
    ("column_values_to_match_regex", {"column": "key", "regex": "^k\\d+$"}),
    ("column_values_to_be_between", {"column": "amount", "min_value": 10}),
    ("column_values_to_be_in_set", {"column": "currency", "value_set": ["EUR", "USD", "CHF"], "mostly": 0.9}),
    ("column_mean_to_be_between", {"column": "amount", "min_value": 100, "max_value": 900}),
    ("table_row_count_to_be_between", {"min_value": 1}),
]
"""Expectations of rows and of all rows. About one row of a hundred fails."""


def run(count: int, rounds: int) -> Iterator[Figure]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lakemq-bench-"))
        conf = Path(folder, "conf/lakemq.yaml")
        (conf.parent / "expectations").mkdir(parents=True)
        conf.write_text("")
        suite = [{"type": f"expect_{type}", "kwargs": kwargs} for type, kwargs in EXPECTATIONS]
        (conf.parent / "expectations/gated.json").write_text(json.dumps({"expectations": suite}))
        path = f"{folder}/mq"
        stack.enter_context(run_sequencer(path))
        mq = stack.enter_context(lakemq.connect(path, conf=conf))
        for topic in ("plain", "gated"):
            mq.topics.create(topic, partitions=8)
        table = _with_amounts(rows(count))
        yield _ratio("Arrow", count, rounds, lambda topic: _publish(mq, topic, table))
        yield from _audit(path, count)
        spark = spark_session("quality bench", "local[2]")
        stored = f"{folder}/rows.parquet"
        pq.write_table(table, stored)
        with lakemq.connect(path, spark=spark, conf=conf) as with_spark:
            df = spark.read.parquet(stored).repartition(2).cache()
            df.agg(F.count("*")).collect()
            yield _ratio("DataFrame", count, rounds, lambda topic: _publish(with_spark, topic, df))
        spark.stop()


def _with_amounts(table: pa.Table) -> pa.Table:
    random = np.random.default_rng(11)
    amounts = random.integers(0, 1000, table.num_rows)
    currencies = np.array(["EUR", "USD", "CHF"])[random.integers(0, 3, table.num_rows)]
    return table.append_column("amount", pa.array(amounts)).append_column("currency", pa.array(currencies.tolist()))


def _publish(mq: Connection, topic: str, data: object) -> None:
    published = mq.publish(topic, data, key="key", value="value")
    assert (published.rejected_count > 0) == (topic == "gated")


def _ratio(kind: str, count: int, rounds: int, publish: Callable[[str], None]) -> Figure:
    plain, gated = measure_in_turn([lambda: publish("plain"), lambda: publish("gated")], rounds + 1)
    ratios = [plain_s / gated_s for plain_s, gated_s in zip(plain[1:], gated[1:], strict=True)]
    note = f"{count / min(gated[1:]) / 1e6:.2f} M messages/s with it, {count / min(plain[1:]) / 1e6:.2f} without"
    return Figure(f"a gate of 6 expectations, {kind}, over none", median(ratios), "of the rate", 0.7, ">=", note)


def _audit(path: str, count: int) -> Iterator[Figure]:
    with lakemq.connect(path) as mq:
        message_count = sum(sum(mq.end_offsets(topic).values()) for topic in ("plain", "gated"))
        took_s = seconds(lambda: audit(mq.namespace))
        yield Figure(
            "an audit, for 1 M messages", took_s / message_count * 1e6, "s", 30, "<=", f"{message_count:,} messages"
        )
