"""Rows for `publish`: any library that supports Arrow's interface works. Other values are refused within the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from unit.served import new_topic, values

import lakemq
from lakemq.engine.client.connection import Connection
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
        ({"order_by": ["value", None]}, InvalidRequest),
        ({"on_error": "typo"}, InvalidRequest),
        ({"txn_app_id": "a", "txn_version": "1"}, InvalidRequest),
        ({"txn_app_id": 1, "txn_version": 1}, InvalidRequest),
    ],
)
def test_bad_names_of_columns_and_options_are_refused(
    mq: Connection, keywords: dict[str, Any], error: type[Exception]
) -> None:
    topic = new_topic(mq)
    with pytest.raises(error):
        mq.publish(topic, pa.table({"value": ["v"]}), **keywords)
    assert mq.end_offsets(topic) == {0: 0}


def test_a_column_that_is_there_twice_is_refused(mq: Connection) -> None:
    twice = pa.table([pa.array(["v"]), pa.array(["w"])], names=["value", "value"])
    with pytest.raises(InvalidRecord, match="a column twice"):
        mq.publish(new_topic(mq), twice)


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
