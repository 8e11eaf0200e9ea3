"""The Spark code and the queries of docs/transactions.md run unchanged after its other examples."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from unit.pages import read_blocks

PAGE = "transactions.md"


@pytest.fixture(scope="module")
def names(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that all examples define. Those of Spark ran last, on the same namespace."""
    spark.sql("DROP DATABASE IF EXISTS bank CASCADE")
    defined: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("bank"))
        with redirect_stdout(io.StringIO()):
            for code in read_blocks(PAGE, "python"):
                exec(compile(code, PAGE, "exec"), defined)
            defined["mq"].close()
            for code in read_blocks(PAGE, "python spark"):
                exec(compile(code, PAGE, "exec"), defined)
        yield defined
        defined["mq"].close()
    spark.sql("USE default")
    spark.sql("DROP DATABASE IF EXISTS bank CASCADE")


def messages(names: dict[str, Any], topic: str) -> list[tuple[str | None, str]]:
    return sorted(
        (None if message.key is None else message.key.decode(), message.value.decode())
        for message in names["mq"].fetch(topic)
    )


@pytest.mark.extended
def test_offsets_of_source_are_committed_with_dataframe(names: dict[str, Any]) -> None:
    assert messages(names, "totals") == [("ann", "10"), ("cleo", "5")]
    assert sum(row.lag for row in names["mq"].groups.lag("totals")) == 0
    next_batch = names["mq"].consumer("totals", assign=["transfers"]).poll()
    assert next_batch.to_spark().count() == 0


@pytest.mark.extended
def test_stream_continues_at_committed_offsets_without_its_checkpoint(names: dict[str, Any], tmp_path: Path) -> None:
    landing, checkpoint = tmp_path / "landing", tmp_path / "checkpoint"
    landing.mkdir()

    def land(number: int) -> None:
        file = landing / f"{number}.json"
        file.write_text(json.dumps({"account": f"a{number}", "amount": f"+{number}"}))
        os.utime(file, (number, number))  # files are taken in the order of their times

    for number in range(2):
        land(number)
    names["run"](str(landing), str(checkpoint))
    land(2)
    shutil.rmtree(checkpoint)
    names["run"](str(landing), str(checkpoint))
    booked = [
        (key, value) for key, value in messages(names, "accounts") if key and key.startswith("a") and key != "ann"
    ]
    assert booked == [("a0", "+0"), ("a1", "+1"), ("a2", "+2")]
    notes = [value for _, value in messages(names, "transfers") if value.startswith("seen ")]
    assert sorted(notes) == ["seen +0", "seen +1", "seen +2"]
    assert names["mq"].transactions.describe("etl").batch_id == 2


@pytest.mark.extended
def test_queries_of_transactions_run_in_spark(spark: SparkSession, names: dict[str, Any]) -> None:
    names["mq"].close()  # everything is projected then
    spark.sql("USE bank")
    history, still_open, lag = (spark.sql(query).collect() for query in read_blocks(PAGE, "sql"))
    assert [(row.transactional_id, row.state) for row in history][:2] == [
        ("teller-1", "CompleteCommit"),
        ("teller-1", "CompleteAbort"),
    ]
    assert still_open == []
    assert {row.group for row in lag} == {"audit", "ledger", "totals"}
