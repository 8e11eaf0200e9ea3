"""An audit of a topic: its suite over `final_messages` and `log_committed`, judged by Great Expectations with Spark."""

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from finals import are_all_final
from pyspark.sql import SparkSession
from quality.expectations import expect
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.quality.topic_audit import TABLES
from lakemq.jobs.audit import main

pytestmark = pytest.mark.extended

CONFIG = {"project.interval.ms": 50, "final.interval.ms": 200}
SUITE = [
    expect("column_values_to_not_be_null", column="customer"),
    expect("column_values_to_be_between", column="amount", min_value=0),
    expect("column_values_to_match_regex", column="key", regex="^k"),
    expect("column_mean_to_be_between", column="amount", max_value=500),
    expect("column_values_to_be_unique", column="id") | {"severity": "warning"},
    expect("column_values_to_not_be_null", column="note", mostly=0.001),
    expect("table_row_count_to_be_between", min_value=1),
]
ROWS = 3000
SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, note STRING, offset BIGINT"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the settings file, with the suite of the topic's gate."""
    folder = tmp_path_factory.mktemp("audits")
    (folder / "lakemq.yaml").touch()
    write_suite(folder / "expectations" / "orders.json", SUITE)
    return folder


def write_suite(file: Path, expectations: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"name": "orders", "expectations": expectations}))
    return file


def publish(mq: Connection, topic: str, rows: list[dict[str, Any]]) -> None:
    mq.publish(topic, pa.table({"key": [f"k{row['id']}" for row in rows], "value": [json.dumps(row) for row in rows]}))


@pytest.fixture(scope="module")
def audited(spark: SparkSession, folder: Path) -> Iterator[Connection]:
    """A namespace with a sound topic and an empty one, and without a sequencer."""
    path = str(folder / "audited")
    sound = [{"id": i, "customer": "c", "amount": i % 900, "note": "n" if i % 500 == 0 else None} for i in range(ROWS)]
    with lakemq.connect(path, spark=spark, create=True, config=CONFIG) as mq:
        with mq.serving():
            for topic in ("orders", "empty"):
                mq.topics.create(topic, 2, config={"schema": SCHEMA})
            publish(mq, "orders", sound)
            until(lambda: are_all_final(mq))
        yield mq


class Ended:
    """An audit that has ended: its code, its last line and its log."""

    def __init__(self, capsys: pytest.CaptureFixture[str], mq: Connection, folder: Path, *options: str) -> None:
        self.code = main(["--path", mq.namespace.path, "--conf", str(folder / "lakemq.yaml"), *options])
        captured = capsys.readouterr()
        self.end, self.err = json.loads(captured.out.splitlines()[-1]), captured.err
        self.logged = [
            record for record in map(json.loads, captured.err.splitlines()) if record["logger"] == "lakemq.audit"
        ]
        print(captured.out[-2000:], captured.err[-6000:])


def audit(capsys: pytest.CaptureFixture[str], mq: Connection, folder: Path, topic: str, *options: str) -> Ended:
    return Ended(capsys, mq, folder, "--topic", topic, *options)


@pytest.mark.timeout(300)
def test_audit_of_a_topic_finds_bad_messages_and_can_be_repeated(
    audited: Connection, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = audit(capsys, audited, folder, "orders", "--docs", str(tmp_path / "docs"))
    assert sound.code == 0
    offsets = {str(partition): [0, end] for partition, end in audited.end_offsets("orders").items()}
    assert (sound.end["offsets"], sound.end["messages"], sound.end["rules"]) == (offsets, ROWS, len(SUITE))
    pages = html.unescape("".join(page.read_text() for page in (tmp_path / "docs").rglob("*.html")))
    assert f"final_messages version {sound.end['version']}" in pages

    bad: list[dict[str, Any]] = [
        {"id": 0, "customer": None, "amount": 1},
        {"id": ROWS, "customer": "secret", "amount": -5},
    ]
    with audited.serving():
        publish(audited, "orders", bad)  # this connection has no gate
        until(lambda: are_all_final(audited))
    for table in TABLES:
        broken = audit(capsys, audited, folder, "orders", "--table", table)
        assert (broken.code, broken.end["error"]) == (5, "EXPECTATION_FAILED")
        findings = {rule: record for record in broken.logged[1:] if (rule := record["message"].partition(", in ")[0])}
        assert {rule: record["level"] for rule, record in findings.items()} == {
            "orders.expect_column_values_to_not_be_null": "ERROR",
            "orders.expect_column_values_to_be_between": "ERROR",
            "orders.expect_column_values_to_be_unique": "WARNING",
        }
        place = ", ".join(
            f"orders-{m.partition}: {m.offset}" for m in audited.fetch("orders") if b"secret" in (m.value or b"")
        )
        message = findings["orders.expect_column_values_to_be_between"]["message"]
        assert f"in 1 of {ROWS + 2}" in message
        assert place in message
        assert "secret" not in broken.err
    again = audit(capsys, audited, folder, "orders", "--table", TABLES[1], "--offsets", json.dumps(offsets))
    assert again.code == 0
    assert (again.end["offsets"], again.end["messages"]) == (offsets, ROWS)


def test_audit_of_a_topic_refuses_what_it_cannot_judge(
    audited: Connection, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        (expect("column_values_to_not_be_null", column="custmer"), 5, "EXPECTATION_FAILED", "custmer"),
        (expect("column_values_to_be_beautiful", column="customer"), 3, "INVALID_CONFIG", "does not know"),
        (expect("column_values_to_be_between", column="amount", least=0), 3, "INVALID_CONFIG", "least"),
        (expect("column_values_to_be_in_set", column="customer", value_set=[1]), 5, "INVALID_RECORD", "customer"),
        (expect("column_values_to_be_between", column="customer", min_value=1), 5, "INVALID_RECORD", "customer"),
    ]
    for expectation, code, error, named in cases:
        suite = write_suite(tmp_path / "suite.json", [expectation])
        ended = audit(capsys, audited, folder, "orders", "--suite", str(suite))
        assert (ended.code, ended.end["error"]) == (code, error)
        assert named in ended.end["message"]
        assert "CAST_INVALID" not in ended.err
    assert audit(capsys, audited, folder, "empty").end["error"] == "INVALID_CONFIG", "it has no suite"
    options = ["--suite", str(write_suite(tmp_path / "suite.json", SUITE[:3]))]
    assert audit(capsys, audited, folder, "lost", *options).end["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    empty = audit(capsys, audited, folder, "empty", *options)
    assert (empty.code, empty.end["offsets"], empty.end["messages"]) == (0, {}, 0)
    with lakemq.connect(audited.namespace.path, config={"final.interval.ms": 0}) as mq, mq.serving():
        mq.topics.create("late", config={"schema": SCHEMA})
        publish(mq, "late", [{"id": 1, "customer": "c", "amount": 1}])
    late = audit(capsys, audited, folder, "late", *options)
    assert (late.code, late.end["error"]) == (1, "ILLEGAL_STATE")
    late = audit(capsys, audited, folder, "late", *options, "--table", "log_committed")
    assert (late.code, late.end["offsets"], late.end["messages"]) == (0, {"0": [0, 1]}, 1)
