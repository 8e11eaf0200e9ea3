"""A DataFrame passes the gate in the job that writes it, with the same outcome as an Arrow table."""

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import NumberFormatException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from quality.expectations import OF_ALL, OF_ROWS, TABLE, expect

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.quality.gate import Gate, load_suite
from lakemq.engine.client.quality.spark_gate import SparkGate
from lakemq.engine.client.rows.placing import FIRST_FAILED
from lakemq.errors import ExpectationFailed, InvalidRecord

SUITE = [
    expect("column_values_to_not_be_null", column="k"),
    expect("column_values_to_be_between", column="amount", min_value=0),
    expect("column_values_to_be_between", column="amount", max_value=1000, mostly=0.9),
    expect("column_mean_to_be_between", column="amount", max_value=100),
]


def gate_of(folder: Path, expectations: list[dict[str, Any]]) -> Gate:
    file = folder / "t.json"
    file.write_text(json.dumps({"expectations": expectations, "meta": {"lakemq": {"most_failed": 1}}}))
    return Gate("t", load_suite(file))


@pytest.mark.extended
def test_spark_and_arrow_mark_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Each expectation runs alone, of all kinds. tests/unit compares Arrow's marks with Great Expectations."""
    table = TABLE.append_column("i", pa.array(range(TABLE.num_rows)))
    df = spark.createDataFrame(table).repartition(3)
    gates = [gate_of(tmp_path, [expectation]) for expectation in OF_ROWS]
    marks = [SparkGate(gate, df).mark.alias(f"m{nth}") for nth, gate in enumerate(gates)]
    marked = df.select("i", *marks).orderBy("i").toPandas()
    for nth, gate in enumerate(gates):
        arrow_marks = gate.mark_failed_rows(table, None)
        assert arrow_marks is not None
        assert (marked[f"m{nth}"] == FIRST_FAILED).tolist() == (arrow_marks == FIRST_FAILED).tolist(), OF_ROWS[nth]


@pytest.mark.extended
def test_times_are_compared_alike_in_arrow_and_in_a_session_of_any_zone(spark: SparkSession, tmp_path: Path) -> None:
    """What each engine would read in its own way is refused, such as a time with a zone for a column without zones."""
    midnight = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    times = [midnight + dt.timedelta(hours=hours) for hours in range(-6, 7)]
    local = [time.replace(tzinfo=None) for time in times]
    columns = {"at": pa.array(times, pa.timestamp("us", "UTC")), "local": local, "day": [time.date() for time in times]}
    table = pa.table({"i": range(len(times)), **columns, "text": [time.isoformat() for time in times]})
    with_zone = ["2024-01-01 00:00:00Z", "2024-01-01T02:00:00+02:00", "2023-12-31T22:30-0130", "2024-01-01 00:00 UTC"]
    without = ["2024-01-01", "2024-1-1 0:00", "2024-01-01T00:00:00", "2024-01-01T00:00:00.0000009"]
    unclear = ["2024-01", "now", "infinity", "2024-01-01T24:00:00", " 2024-01-01", "2024-01-01T00:00:00 Europe/Berlin"]
    compared = [("at", bound) for bound in [*without, *with_zone]]
    compared += [(column, bound) for column in ("local", "day") for bound in without]
    suites = [expect("column_values_to_be_between", column=column, min_value=bound) for column, bound in compared]
    suites.append(expect("column_pair_values_to_be_equal", column_A="local", column_B="day"))
    refused = [("local", bound) for bound in with_zone] + [(column, bound) for column in columns for bound in unclear]
    unfit = [expect("column_values_to_be_in_set", column=column, value_set=[bound]) for column, bound in refused]
    unlike = [("at", "local"), ("at", "day"), ("at", "text"), ("day", "text")]
    unfit += [expect("column_pair_values_to_be_equal", column_A=a, column_B=b) for a, b in unlike]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = spark.createDataFrame(table.drop_columns(["local"]))
        df = df.withColumn("local", F.col("text").substr(1, 19).cast("timestamp_ntz"))
        gates = [gate_of(tmp_path, [suite]) for suite in suites]
        marks = [SparkGate(gate, df).mark.alias(f"m{nth}") for nth, gate in enumerate(gates)]
        marked = df.select("i", *marks).orderBy("i").toPandas()
        for suite in unfit:
            for evaluate in (lambda gate: SparkGate(gate, df), lambda gate: gate.mark_failed_rows(table, None)):
                with pytest.raises(InvalidRecord, match=r": write 20|cannot be compared: convert one of them"):
                    evaluate(gate_of(tmp_path, [suite]))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    before = list(range(6))
    for nth, gate in enumerate(gates):
        arrow_marks = gate.mark_failed_rows(table, None)
        failed = [] if arrow_marks is None else np.flatnonzero(arrow_marks == FIRST_FAILED).tolist()
        assert np.flatnonzero(marked[f"m{nth}"] == FIRST_FAILED).tolist() == failed, suites[nth]
        assert failed == (before if nth < len(compared) else [*before, *range(7, 13)]), suites[nth]


@pytest.mark.extended
def test_spark_and_arrow_measure_the_same(spark: SparkSession, tmp_path: Path) -> None:
    expectations = [expectation for expectation in OF_ALL if expectation["kwargs"].get("column") != "gone"]
    gate = gate_of(tmp_path, expectations)
    spark_gate = SparkGate(gate, spark.createDataFrame(TABLE).repartition(3))
    spark_gate.df.count()
    _, arrow_measures = gate._evaluate(TABLE)
    assert [pytest.approx(float(measure)) for measure in arrow_measures] == list(
        map(float, spark_gate._read_measures(TABLE.num_rows))
    )
    assert list(map(float, spark_gate._read_measures(0))) == [
        pytest.approx(float(measure)) for measure in arrow_measures
    ]  # computed again


@pytest.fixture(scope="module")
def gated_mq(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("gated")
    (folder / "conf" / "expectations").mkdir(parents=True)
    (folder / "conf" / "lakemq.yaml").write_text("")
    for topic in ("t", "streamed"):
        (folder / "conf" / "expectations" / f"{topic}.json").write_text(json.dumps({"expectations": SUITE}))
    with (
        lakemq.connect(folder / "gated", spark=spark, create=True, conf=folder / "conf/lakemq.yaml") as connection,
        connection.serving(),
    ):
        for topic in ("t", "streamed"):
            connection.topics.create(topic, partitions=2)
        yield connection


def orders(spark: SparkSession, count: int, bad: int = 0, amount: int = 5) -> DataFrame:
    """Return orders. The first `bad` ones have no key, or a negative amount."""
    return spark.range(0, count, 1, 3).select(
        F.when(~((F.col("id") < bad) & (F.col("id") % 3 == 0)), F.concat(F.lit("k"), "id")).alias("k"),
        F.concat(F.lit("v"), "id").alias("v"),
        F.when(F.col("id") < bad, -1).otherwise(amount).alias("amount"),
        "id",
    )


def test_rows_that_fail_are_refused_in_the_one_job_that_writes(spark: SparkSession, gated_mq: Connection) -> None:
    spark.sparkContext.setJobGroup("gated publish", "")
    published = gated_mq.publish("t", orders(spark, 60, bad=9), key="k", value="v")
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup("gated publish")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert len(jobs) == 1
    assert (published.record_count, published.rejected_count) == (51, 9)
    assert sorted(int(m.value[1:]) for m in gated_mq.fetch("t")) == list(range(9, 60))
    published = gated_mq.publish("t", orders(spark, 60, bad=9), key="k", value="v", order_by="id")
    assert (published.record_count, published.rejected_count) == (51, 9)


@pytest.mark.extended
def test_gate_refuses_whole_dataframe(spark: SparkSession, gated_mq: Connection) -> None:
    before = gated_mq.fetch("t").record_count
    for df, reason in [
        (orders(spark, 60, bad=31), "31 of 60 rows fail"),
        (orders(spark, 60, amount=2000), "max_value=1000"),
        (orders(spark, 60, amount=500), "column_mean"),
        (orders(spark, 60).drop("amount"), "amount"),
    ]:
        with pytest.raises(ExpectationFailed, match=reason):
            gated_mq.publish("t", df, key="k", value="v")
    with pytest.raises(ExpectationFailed, match="Nothing was published"):
        gated_mq.publish("t", orders(spark, 60, bad=1), key="k", value="v", on_error="fail")
    with pytest.raises(InvalidRecord, match="cannot be evaluated"):
        gated_mq.publish("t", orders(spark, 60).withColumn("amount", F.array("id")), key="k", value="v")
    with pytest.raises(InvalidRecord, match=r"CAST_INVALID_INPUT in .*amount") as refusal:
        gated_mq.publish("t", orders(spark, 60).withColumn("amount", F.lit("many")), key="k", value="v")
    assert "'many'" not in str(refusal.value)  # errors show no values of rows
    with pytest.raises(NumberFormatException, match="'mine'"):  # the DataFrame's own errors come through unchanged
        gated_mq.publish(
            "t", orders(spark, 60).withColumn("amount", F.expr("cast('mine' || id AS INT)")), key="k", value="v"
        )
    assert gated_mq.fetch("t").record_count == before


@pytest.mark.extended
def test_floats_are_compared_alike_in_arrow_and_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Great Expectations, with which other tests compare, takes NaN for a null."""
    nearest = np.float32(0.1)
    values = [nearest, np.nextafter(nearest, np.float32(0)), np.nan, None, np.inf, np.float32(1e-7), 16777216, -0.0]
    table = pa.table({"i": range(8), "f": pa.array(values, pa.float32(), from_pandas=False), "n": [16777217] * 8})
    bounds = [0.1, 1e-7, 16777217, 0, 1e308]
    suites = [
        expect("column_values_to_be_between", column="f", **{f"{end}_value": bound, f"strict_{end}": is_strict})
        for bound in bounds
        for end in ("min", "max")
        for is_strict in (False, True)
    ]
    suites += [expect("column_values_to_be_in_set", column="f", value_set=[bound]) for bound in bounds]
    suites.append(expect("column_pair_values_to_be_equal", column_A="f", column_B="n"))
    df = spark.createDataFrame(table)
    gates = [gate_of(tmp_path, [suite]) for suite in suites]
    marks = [SparkGate(gate, df).mark.alias(f"m{nth}") for nth, gate in enumerate(gates)]
    marked = df.select("i", *marks).orderBy("i").toPandas()
    for nth, gate in enumerate(gates):
        arrow_marks = gate.mark_failed_rows(table, None)
        failed = np.zeros(8, bool) if arrow_marks is None else arrow_marks == FIRST_FAILED
        assert (marked[f"m{nth}"] == FIRST_FAILED).tolist() == failed.tolist(), suites[nth]
    at_most_a_tenth = gates[2].mark_failed_rows(table, None)
    assert at_most_a_tenth is not None
    assert np.flatnonzero(at_most_a_tenth == FIRST_FAILED).tolist() == [0, 2, 4, 6]
