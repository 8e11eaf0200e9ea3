"""Expectations of every kind that a gate knows, and rows of which some fail each."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa


def one(type: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{type}", "kwargs": kwargs}


_RANDOM = random.Random(5)
_TEXTS = ["", "a", "ab", "abc", "o'brien", "a\\d", "x9", "Ä", "%", "10"]


def _some(values: list[Any]) -> list[Any]:
    return [None if _RANDOM.random() < 0.2 else _RANDOM.choice(values) for _ in range(200)]


TABLE = pa.table(
    {
        "n": pa.array(_some(list(range(-5, 20))), pa.int64()),
        "m": pa.array(_some(list(range(-5, 20))), pa.int64()),
        "x": pa.array(_some([-1.5, 0.0, 0.25, 3.0, 1e9]), pa.float64()),
        "s": pa.array(_some(_TEXTS), pa.string()),
        'odd name`"': pa.array(_some(_TEXTS), pa.string()),
    }
)

OF_ROWS = [
    one("column_values_to_not_be_null", column="n"),
    one("column_values_to_be_null", column="n"),
    one("column_values_to_be_between", column="n", min_value=0, max_value=10),
    one("column_values_to_be_between", column="n", min_value=0, max_value=10, strict_min=True, strict_max=True),
    one("column_values_to_be_between", column="x", max_value=0.25),
    one("column_values_to_be_in_set", column="n", value_set=[1, 2, 3]),
    one("column_values_to_be_in_set", column="s", value_set=["a", "o'brien", "a\\d"]),
    one("column_values_to_not_be_in_set", column="s", value_set=["a", "%"]),
    one("column_values_to_match_regex", column="s", regex="^a"),
    one("column_values_to_match_regex", column="s", regex="\\d"),
    one("column_values_to_match_regex", column='odd name`"', regex="a\\\\d|'"),
    one("column_values_to_not_match_regex", column="s", regex="b$"),
    one("column_value_lengths_to_be_between", column="s", min_value=1, max_value=3),
    one("column_value_lengths_to_equal", column="s", value=1),
    one("column_pair_values_to_be_equal", column_A="n", column_B="m"),
    one("column_pair_values_a_to_be_greater_than_b", column_A="n", column_B="m"),
    one("column_pair_values_a_to_be_greater_than_b", column_A="n", column_B="m", or_equal=True),
]

OF_ALL = [
    one("table_row_count_to_be_between", min_value=1, max_value=200),
    one("table_row_count_to_be_between", min_value=201),
    one("table_row_count_to_equal", value=200),
    one("table_row_count_to_equal", value=7),
    one("column_min_to_be_between", column="n", min_value=-5, max_value=0),
    one("column_min_to_be_between", column="n", min_value=-5, strict_min=True),
    one("column_max_to_be_between", column="x", max_value=1e9),
    one("column_max_to_be_between", column="x", max_value=5),
    one("column_mean_to_be_between", column="n", min_value=0, max_value=15),
    one("column_mean_to_be_between", column="n", min_value=15),
    one("column_sum_to_be_between", column="n", min_value=0),
    one("column_sum_to_be_between", column="n", max_value=0),
    one("column_stdev_to_be_between", column="n", min_value=5, max_value=10),
    one("column_stdev_to_be_between", column="n", max_value=2),
    one("column_proportion_of_non_null_values_to_be_between", column="n", min_value=0.5),
    one("column_proportion_of_non_null_values_to_be_between", column="n", min_value=0.99),
    one("column_to_exist", column="n"),
    one("column_to_exist", column="gone"),
    *({**rule, "kwargs": {**rule["kwargs"], "mostly": mostly}} for rule in OF_ROWS for mostly in (0.3, 0.7)),
]
