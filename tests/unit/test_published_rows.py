"""Rows for `publish`: any library that supports Arrow's interface works. Other values are refused within the call."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from unit.served import new_topic, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.rows.input_rows import read_columns
from lakemq.errors import InvalidConfig, InvalidRecord, InvalidRequest


class Stream:
    """Rows of an unknown library that supports Arrow's stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.table({"value": ["a", "b"]}).__arrow_c_stream__(requested_schema)


class Broken:
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise RuntimeError("out of order")


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame({"value": ["a", "b"]}, index=[7, 9]),
        pa.record_batch({"value": ["a", "b"]}),
        pa.table({"value": ["a", "b"]}).to_reader(),
        Stream(),
    ],
    ids=["pandas", "batch", "reader", "stranger"],
)
def test_rows_of_any_library_that_speaks_arrow_are_published(mq: Connection, rows: Any) -> None:
    topic = new_topic(mq)
    mq.publish(topic, rows)
    assert values(mq, topic) == ["a", "b"]


def test_missing_values_of_pandas_become_null(mq: Connection) -> None:
    topic = new_topic(mq)
    mq.publish(topic, pd.DataFrame({"k": ["x", None], "v": ["a", np.nan]}), key="k", value="v")
    assert [(m.key, m.value) for m in mq.fetch(topic)] == [(b"x", b"a"), (None, None)]


VIEWS = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(["a"], pa.string_view()))
HEADER_VIEWS = pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ({"value": pa.array(["a", None], pa.string_view())}, [b"a", None]),
        ({"value": pa.array([b"a", None], pa.binary_view())}, [b"a", None]),
        ({"value": pd.Series(["a", None], dtype="category")}, [b"a", None]),
        ({"value": VIEWS}, [b"a", None]),
        ({"headers": pa.array([[{"key": "a", "value": b"b"}]], HEADER_VIEWS)}, [[{"key": "a", "value": b"b"}]]),
        ({"partition": [1.0, None, 2.0]}, [1, None, 2]),
        ({"timestamp": pa.array([1_000], pa.timestamp("ns"))}, [datetime(1970, 1, 1, 0, 0, 0, 1, UTC)]),
    ],
)
def test_columns_of_other_types_are_converted_without_a_loss(column: dict[str, Any], expected: list[Any]) -> None:
    table = pa.table(column)
    table = table if "value" in column else table.append_column("value", pa.array(["v"] * len(table)))
    ((name, _),) = column.items()
    assert read_columns(table)[name].to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "misfit"),
    [
        ({"partition": pa.array([1.0, None, 2.5])}, r"row 2, .*Found '2.5'"),
        ({"delay_ms": pa.array([float("nan")])}, r"row 0, .*Found 'nan'"),
        ({"timestamp": pa.array([0, 1], pa.timestamp("ns"))}, r"row 1, .*Found '1970-01-01 00:00:00.000000001'"),
    ],
)
def test_first_value_that_a_conversion_would_change_is_named(column: dict[str, Any], misfit: str) -> None:
    table = pa.table(column)
    with pytest.raises(InvalidRecord, match=misfit):
        read_columns(table.append_column("value", pa.array(["v"] * len(table))))


@pytest.mark.parametrize(
    "data", [None, [], {}, [{"value": 1}], "rows", b"rows", 7, object(), pd.DataFrame, pa.array([1])]
)
def test_data_without_rows_is_refused(mq: Connection, data: Any) -> None:
    topic = new_topic(mq)
    with pytest.raises((InvalidRequest, InvalidRecord)):
        mq.publish(topic, data)
    with pytest.raises((InvalidRequest, InvalidRecord)), mq.transaction("given") as txn:
        txn.publish(topic, data)
    assert mq.end_offsets(topic) == {0: 0}


@pytest.mark.parametrize("data", [pd.DataFrame({"value": ["a", 1]}), Broken()], ids=["mixed", "broken"])
def test_rows_that_arrow_cannot_hold_are_refused(mq: Connection, data: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"^INVALID_RECORD: The rows cannot be converted to Arrow"):
        mq.publish(new_topic(mq), data)


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"value": "nope"}, InvalidRecord),
        ({"value": 5}, InvalidRequest),
        ({"value": "value", "key": b"k"}, InvalidRequest),
        ({"order_by": "nope"}, InvalidRecord),
        ({"order_by": 5}, InvalidRequest),
        ({"on_error": "typo"}, InvalidRequest),
        ({"txn_app_id": "a", "txn_version": "1"}, InvalidRequest),
    ],
)
def test_bad_names_of_columns_and_options_are_refused(
    mq: Connection, keywords: dict[str, Any], error: type[Exception]
) -> None:
    topic = new_topic(mq)
    with pytest.raises(error):
        mq.publish(topic, pa.table({"value": ["v"]}), **keywords)
    assert mq.end_offsets(topic) == {0: 0}


def test_columns_are_found_in_any_case_and_misspelt_ones_are_named(
    mq: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(mq)
    mq.publish(topic, pa.table({"Value": ["v"], "KEY": ["k"], "row_kind": ["x"]}))
    assert not caplog.records
    mq.publish(topic, pa.table({"v": ["v"], "keyes": ["k"]}), value="V")
    assert "The column keyes is not published. If it is the key of the messages" in caplog.text
    assert [(message.key, message.value) for message in mq.fetch(topic)] == [(b"k", b"v"), (None, b"v")]
    with pytest.raises(InvalidRecord, match="a column twice"):
        mq.publish(topic, pa.table([pa.array(["v"]), pa.array(["w"])], names=["value", "value"]))
    with pytest.raises(InvalidRecord, match="in other cases"):
        mq.publish(topic, pa.table({"value": ["v"], "Key": ["k"], "KEY": ["k"]}))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"path": None}, InvalidRequest),
        ({"path": b"mq"}, InvalidRequest),
        ({"create": "yes"}, InvalidRequest),
        ({"config": "lease.ms=1"}, InvalidConfig),
        ({"config": {"lease.ms": 2**70}}, InvalidConfig),
        ({"conf": 5}, InvalidConfig),
        ({"storage_options": ["a"]}, InvalidConfig),
        ({"storage_options": {"key": 5}}, InvalidConfig),
    ],
)
def test_bad_arguments_of_connect_are_refused(tmp_path: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        lakemq.connect(**{"path": tmp_path / "mq", **options})
    assert not list(tmp_path.iterdir())
