"""A gate refuses rows, or a whole publish, that Great Expectations finds wrong, and suites that it does not support."""

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from quality.expectations import OF_ALL, OF_ROWS, TABLE, expect
from unit.pages import read_blocks
from unit.served import CONFIG

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.quality import create_ephemeral_context, import_great_expectations
from lakemq.engine.client.quality.expectation_types import EXPECTATION_TYPES
from lakemq.engine.client.quality.gate import Gate, Gates, load_suite
from lakemq.engine.client.rows.placing import FIRST_FAILED
from lakemq.engine.client.sql.query import run_query
from lakemq.errors import ExpectationFailed, InvalidConfig, InvalidRecord

pytestmark = pytest.mark.slow

NAN, INF = float("nan"), float("inf")


def suite_of(folder: Path, *expectations: dict[str, Any], topic: str = "t", **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{topic}.json").write_text(json.dumps({"name": topic, "expectations": expectations, **more}))
    return folder


def gate_of(tmp_path: Path, *expectations: dict[str, Any], **more: Any) -> Gate:
    gate = Gates(suite_of(tmp_path / "expectations", *expectations, **more)).of("t")
    assert gate is not None
    return gate


def find_failed_rows(gate: Gate, table: pa.Table) -> list[int]:
    """Return the rows that a gate marks."""
    partitions = gate.mark_failed_rows(table, None)
    return (
        []
        if partitions is None
        else [row for row, partition in enumerate(partitions.tolist()) if partition <= FIRST_FAILED]
    )


# -- the same as Great Expectations ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def validate_with_gx(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that returns Great Expectations' own answer for an expectation over TABLE."""
    context = create_ephemeral_context()
    from great_expectations.core.expectation_suite import ExpectationSuite

    batches = context.data_sources.add_pandas("p").add_dataframe_asset("t").add_batch_definition_whole_dataframe("t")

    def answer(expectation: dict[str, Any], table: pa.Table = TABLE) -> Any:
        frame = table.to_pandas()
        for name in ("s", 'odd name`"'):
            frame[name] = frame[name].astype(object)
        (gx_expectation,) = ExpectationSuite(name="one", expectations=[expectation]).expectations
        return batches.get_batch({"dataframe": frame}).validate(gx_expectation, result_format="COMPLETE")

    return answer


@pytest.mark.parametrize("expectation", OF_ROWS, ids=lambda e: json.dumps(e["kwargs"]) + e["type"])
def test_gate_rejects_the_rows_that_great_expectations_rejects(
    expectation: dict[str, Any], validate_with_gx: Any, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path, expectation, meta={"lakemq": {"most_failed": 1}})
    expected = validate_with_gx(expectation).result["unexpected_index_list"]
    assert find_failed_rows(gate, TABLE) == sorted(expected or [])
    assert 0 < len(expected) < 200


@pytest.mark.parametrize("rows", ["one", "nulls", "few"])
def test_gate_and_great_expectations_mark_the_same_rows_of_odd_tables(
    rows: str, validate_with_gx: Any, tmp_path: Path
) -> None:
    """The tables have one row, nothing but nulls, or a few rows that partly hold."""
    nulls = pa.table({f.name: pa.nulls(5, f.type) for f in TABLE.schema})
    table = {"one": TABLE.slice(3, 1), "nulls": nulls, "few": TABLE.slice(90, 7)}[rows]
    for nth, expectation in enumerate(OF_ROWS):
        gate = gate_of(tmp_path / str(nth), expectation, meta={"lakemq": {"most_failed": 1}})
        expected = sorted(validate_with_gx(expectation, table).result["unexpected_index_list"] or [])
        assert find_failed_rows(gate, table) == expected, expectation


@pytest.mark.parametrize("expectation", OF_ALL, ids=lambda e: json.dumps(e["kwargs"]) + e["type"])
def test_gate_refuses_all_rows_when_great_expectations_fails(
    expectation: dict[str, Any], validate_with_gx: Any, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path, expectation, meta={"lakemq": {"most_failed": 1}})
    if validate_with_gx(expectation).success:
        gate.mark_failed_rows(TABLE, None)
    else:
        with pytest.raises(ExpectationFailed):
            gate.mark_failed_rows(TABLE, None)


def test_every_kind_of_expectation_is_compared() -> None:
    assert {expectation["type"] for expectation in (*OF_ROWS, *OF_ALL)} == set(EXPECTATION_TYPES)


def test_bytes_are_checked_as_text(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, expect("column_values_to_match_regex", column="value", regex="^v"), meta={})
    assert find_failed_rows(gate, pa.table({"value": [b"v1", None, b"w", b"v2", b"\xff\xfe"]})) == [2, 4]


def test_a_date_may_be_compared_with_text(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, expect("column_values_to_be_between", column="at", min_value="2024-01-01"))
    times = [dt.datetime(2025, 1, 1), dt.datetime(2023, 1, 1), dt.datetime(2024, 1, 1)]
    assert find_failed_rows(gate, pa.table({"at": times})) == [1]


@pytest.mark.parametrize("percent", [7, 14, 29, 55, 57, 58])
def test_share_equal_to_mostly_passes(percent: int, tmp_path: Path) -> None:
    share, table = percent / 100, pa.table({"n": [-1] * percent + [1] * (100 - percent)})
    positive = expect("column_values_to_be_between", column="n", min_value=0)
    gate = gate_of(tmp_path / "failed", positive, meta={"lakemq": {"most_failed": share}})
    assert len(find_failed_rows(gate, table)) == percent
    with pytest.raises(ExpectationFailed):
        gate.mark_failed_rows(pa.table({"n": [-1] * (percent + 1) + [1] * (99 - percent)}), None)
    mostly = expect("column_values_to_be_between", column="n", max_value=0, mostly=share)
    gate = gate_of(tmp_path / "mostly", mostly, meta={"lakemq": {"most_failed": 1}})
    assert len(find_failed_rows(gate, table)) == 100 - percent


@pytest.mark.parametrize("measured", ["mean", "sum", "stdev", "max"])
def test_nan_is_outside_all_bounds(measured: str, tmp_path: Path) -> None:
    gate = gate_of(tmp_path, expect(f"column_{measured}_to_be_between", column="n", max_value=1e9))
    gate.mark_failed_rows(pa.table({"n": [1.0, 2.0]}), None)
    with pytest.raises(ExpectationFailed, match="nan for"):
        gate.mark_failed_rows(pa.table({"n": [1.0, NAN, 2.0]}), None)


@pytest.mark.parametrize("values", [["1", "2"], [b"1"], [dt.datetime(2025, 1, 1)]], ids=["text", "bytes", "times"])
def test_bounds_of_a_column_without_numbers_are_a_mistake_in_the_suite(values: list[Any], tmp_path: Path) -> None:
    gate = gate_of(tmp_path, expect("column_max_to_be_between", column="c", max_value=5))
    with pytest.raises(InvalidRecord, match="cannot be evaluated on these rows"):
        gate.mark_failed_rows(pa.table({"c": values}), None)


def test_columns_that_sql_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    rules = [
        expect("column_values_to_not_be_null", column="n"),
        expect("column_values_to_be_between", column="N", min_value=0),
    ]
    with pytest.raises(InvalidRecord, match="differ by case alone"):
        gate_of(tmp_path, *rules).mark_failed_rows(pa.table({"n": [1, 2], "N": [-5, -5]}), None)


# -- suites ---------------------------------------------------------------------------------------------


def one(expectation: dict[str, Any]) -> str:
    return json.dumps({"expectations": [expectation]})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Cannot read"),
        ("[]", "does not contain a suite"),
        (one(expect("column_values_to_be_unique", column="n")), "does not support this expectation"),
        (one(expect("column_to_exist")), "lacks column"),
        (one(expect("column_values_to_be_between", column="n")), "neither"),
        (one(expect("column_values_to_be_in_set", column="n", value_set=[])), "a list of"),
        (
            one({**expect("column_to_exist", column="n"), "severity": "CRITICAL"}),
            "severity is unknown. Found 'CRITICAL'",
        ),
        (one(expect("column_values_to_not_be_null", column="n", mostly=2)), "mostly is not valid"),
        (one(expect("column_to_exist", column="n", row_condition="x > 1")), "does not support. Found 'row_condition'"),
        (json.dumps({"expectations": [], "meta": {"lakemq": {"most_faled": 1}}}), "most_faled"),
        ('{"expectations": [], "expectations": []}', "A key stands twice. Found 'expectations'"),
    ],
)
def test_unknown_expectation_is_refused_on_load(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(InvalidConfig) as refusal:
        load_suite(file)
    assert complaint in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_suite_of_yaml_is_read_without_its_warnings(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "expectations:\n"
        "- {type: expect_column_values_to_not_be_null, kwargs: {column: key}, severity: warning}\n"
        "- {type: expect_column_values_to_not_be_null, kwargs: {column: value, mostly: null}}\n"
        "meta: {great_expectations_version: 1.24.1, lakemq: {most_failed: 0.9}}\n"
    )
    suite = load_suite(tmp_path / "t.yaml")
    assert [rule.columns for rule in suite.rows] == [("value",)]
    assert suite.most_failed == 0.9
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(InvalidConfig, match="two suites"):
        Gates(tmp_path).of("t")


def test_suite_saved_by_great_expectations_is_read(tmp_path: Path) -> None:
    gx = import_great_expectations()

    suite = gx.ExpectationSuite(
        name="t",
        expectations=[
            gx.expectations.ExpectColumnValuesToBeBetween(column="n", min_value=1),
            gx.expectations.ExpectColumnMaxToBeBetween(column="n", max_value=9, severity="critical"),
        ],
    )
    file = tmp_path / "t.json"
    file.write_text(json.dumps(suite.to_json_dict()))
    loaded = load_suite(file)
    assert ([r.columns for r in loaded.rows], [r.high for r in loaded.table]) == ([("n",)], [9])


# -- publishing -----------------------------------------------------------------------------------------


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    """A served namespace with a suite for `t`: positive amounts, mostly small; a key; at least one row."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "lakemq.yaml").write_text("")
    suite_of(
        conf / "expectations",
        expect("column_values_to_not_be_null", column="key"),
        expect("column_values_to_be_between", column="amount", min_value=0),
        expect("column_values_to_be_between", column="amount", max_value=1000, mostly=0.9),
        expect("table_row_count_to_be_between", min_value=1, max_value=10_000),
    )
    with lakemq.connect(tmp_path / "mq", create=True, conf=conf / "lakemq.yaml", config=CONFIG) as connection:
        connection.serving()
        for topic in ("t", "other"):
            connection.topics.create(topic, 2)
        yield connection


def orders(count: int, bad: int = 0) -> pa.Table:
    """Return orders. The first `bad` ones fail: every third has no key, the others have a negative amount."""
    return pa.table(
        {
            "key": [None if i < bad and i % 3 == 0 else f"k{i}" for i in range(count)],
            "value": [f"v{i}" for i in range(count)],
            "amount": [-1 if i < bad else 5 for i in range(count)],
        }
    )


DEAD = """SELECT decode(m.value) AS v, d.error, d.reason FROM rejected_rows d JOIN messages m
          ON m.file_id = d.file_id AND m.row >= d.first_row AND m.row < d.first_row + d.record_count"""


def read_rejections(mq: Connection) -> dict[str, tuple[str, str]]:
    """Return value -> error and reason, for all rejected rows that are projected."""
    with lakemq.connect(mq.namespace.path) as fresh:
        return {value: (error, reason) for value, error, reason in run_query(fresh.namespace, DEAD)[1]}


@pytest.mark.parametrize("count", [30, 3000])  # rows in the letter, and rows in a file
def test_rows_that_fail_are_rejected_with_the_expectation(mq: Connection, count: int) -> None:
    published = mq.publish("t", orders(count, bad=9))
    assert (published.record_count, published.rejected_count) == (count - 9, 9)
    assert sorted(int(m.value[1:]) for m in mq.fetch("t")) == list(range(9, count))
    mq.close()
    expected = {
        f"v{i}": (
            "EXPECTATION_FAILED",
            "expect_column_values_to_not_be_null(column='key')"
            if i % 3 == 0
            else "expect_column_values_to_be_between(column='amount', min_value=0)",
        )
        for i in range(9)
    }
    assert read_rejections(mq) == expected


def test_publish_is_refused_when_more_rows_fail_than_the_threshold(mq: Connection) -> None:
    with pytest.raises(ExpectationFailed, match="16 of 30 rows fail"):
        mq.publish("t", orders(30, bad=16))
    assert mq.publish("t", orders(30, bad=15)).rejected_count == 15
    dear = orders(30).set_column(2, "amount", pa.array([2000] * 4 + [5] * 26))
    with pytest.raises(ExpectationFailed, match=r"4 of 30 rows fail .*max_value=1000"):
        mq.publish("t", dear)
    with pytest.raises(ExpectationFailed, match="10001 for expect_table_row_count"):
        mq.publish("t", orders(10_001))
    with pytest.raises(ExpectationFailed, match="0 for expect_table_row_count"):
        mq.publish("t", orders(0))
    assert mq.fetch("t").record_count == 15


def test_on_error_fail_refuses_all_rows(mq: Connection) -> None:
    with pytest.raises(ExpectationFailed, match="Nothing was published, because 1 row is rejected"):
        mq.publish("t", orders(30, bad=1), on_error="fail")
    transaction = mq.transaction("tx")
    with pytest.raises(ExpectationFailed), transaction:
        transaction.publish("t", orders(30, bad=1).select(["key", "value", "amount"]))
    assert mq.fetch("t").record_count == 0


def test_missing_column_of_the_suite_is_refused(mq: Connection) -> None:
    with pytest.raises(ExpectationFailed, match="amount"):
        mq.publish("t", pa.table({"key": ["k"], "value": ["v"]}))
    with pytest.raises(InvalidRecord, match="cannot be evaluated on these rows") as refusal:
        mq.publish("t", pa.table({"key": ["k"], "value": ["v"], "amount": ["many"]}))
    assert "many" not in str(refusal.value)  # errors show no values of rows
    assert mq.publish("other", pa.table({"value": ["v"]})).record_count == 1


def test_gate_keeps_explicit_partitions_and_rejects_negative_ones(mq: Connection) -> None:
    table = orders(4, bad=1).append_column("partition", pa.array([1, 1, -1000, 0]))
    published = mq.publish("t", table)
    assert (published.record_count, published.rejected_count) == (2, 2)
    assert {(m.partition, m.value) for m in mq.fetch("t")} == {(1, b"v1"), (0, b"v3")}
    assert mq.publish("other", pa.table({"value": ["v"] * 3000, "partition": [-1001] * 3000})).rejected_count == 3000


def test_gate_of_the_docs_rejects_the_rows_that_the_page_shows(tmp_path: Path) -> None:
    (suite,), (code,) = (read_blocks("quality.md", language) for language in ("yaml", "python"))
    folder = suite_of(tmp_path / "conf/expectations")
    (folder / "orders.yaml").write_text(suite)
    (tmp_path / "conf/lakemq.yaml").write_text("")
    amounts = [-1, *range(19)]
    orders = pa.table(
        {"customer": ["ann"] * 20, "amount": amounts, "currency": ["EUR"] * 20, "line": [f"{a} EUR" for a in amounts]}
    )
    with lakemq.connect(tmp_path / "data/shop", create=True) as mq, mq.serving():
        mq.topics.create("orders")
    code = code.replace('"data/shop"', "shop").replace('"conf/lakemq.yaml"', "conf")
    printed: list[str] = []
    names = {"lakemq": lakemq, "orders": orders, "shop": tmp_path / "data/shop", "conf": tmp_path / "conf/lakemq.yaml"}
    exec(code, names | {"print": lambda *words: printed.append(" ".join(map(str, words)))})  # type: ignore[arg-type]
    assert printed == ["19 published, 1 rejected"]
