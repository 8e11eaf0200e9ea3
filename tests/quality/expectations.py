"""Expectations of every kind that a gate supports, and rows of a table. Some rows fail each expectation."""

import random
from typing import Any

import pyarrow as pa


def expect(type: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{type}", "kwargs": kwargs}


_RANDOM = random.Random(5)
_TEXTS = ["", "a", "ab", "abc", "o'brien", "a\\d", "x9", "Ä", "%", "10", "ab\n", "a\u2028b"]


def _draw_values(values: list[Any]) -> list[Any]:
    return [None if _RANDOM.random() < 0.2 else _RANDOM.choice(values) for _ in range(200)]


TABLE = pa.table(
    {
        "n": pa.array(_draw_values(list(range(-5, 20))), pa.int64()),
        "m": pa.array(_draw_values(list(range(-5, 20))), pa.int64()),
        "x": pa.array(_draw_values([-1.5, 0.0, 0.25, 3.0, 1e9]), pa.float64()),
        "s": pa.array(_draw_values(_TEXTS), pa.string()),
        'odd name`"': pa.array(_draw_values(_TEXTS), pa.string()),
        "f": pa.array(_draw_values([0.1, 0.3, 1e-7, 16777216.0, -0.0]), pa.float32()),
    }
)

OF_ROWS = [
    expect("column_values_to_not_be_null", column="n"),
    expect("column_values_to_be_null", column="n"),
    expect("column_values_to_be_between", column="n", min_value=0, max_value=10),
    expect("column_values_to_be_between", column="n", min_value=0, max_value=10, strict_min=True, strict_max=True),
    expect("column_values_to_be_between", column="x", max_value=0.25),
    # the nearest floats of 32 bits are above 0.1 and 1e-7, and below 16777217
    expect("column_values_to_be_between", column="f", max_value=0.1),
    expect("column_values_to_be_between", column="f", min_value=1e-7, strict_min=True),
    expect(
        "column_values_to_be_between", column="f", max_value=16777217, strict_max=True, min_value=-0.0, strict_min=True
    ),
    expect("column_values_to_be_in_set", column="f", value_set=[0.1, 16777216]),
    expect("column_pair_values_to_be_equal", column_A="f", column_B="x"),
    expect("column_values_to_be_in_set", column="n", value_set=[1, 2, 3]),
    expect("column_values_to_be_in_set", column="s", value_set=["a", "o'brien", "a\\d"]),
    expect("column_values_to_not_be_in_set", column="s", value_set=["a", "%"]),
    expect("column_values_to_match_regex", column="s", regex="^a"),
    expect("column_values_to_match_regex", column="s", regex="\\d"),
    expect("column_values_to_match_regex", column='odd name`"', regex="a\\\\d|'"),
    expect("column_values_to_not_match_regex", column="s", regex="b$"),
    expect("column_values_to_match_regex", column="s", regex="a.?b$"),
    expect("column_value_lengths_to_be_between", column="s", min_value=1, max_value=3),
    expect("column_value_lengths_to_equal", column="s", value=1),
    expect("column_pair_values_to_be_equal", column_A="n", column_B="m"),
    expect("column_pair_values_a_to_be_greater_than_b", column_A="n", column_B="m"),
    expect("column_pair_values_a_to_be_greater_than_b", column_A="n", column_B="m", or_equal=True),
]

OF_ALL = [
    expect("table_row_count_to_be_between", min_value=1, max_value=200),
    expect("table_row_count_to_be_between", min_value=201),
    expect("table_row_count_to_equal", value=200),
    expect("table_row_count_to_equal", value=7),
    expect("column_min_to_be_between", column="n", min_value=-5, max_value=0),
    expect("column_min_to_be_between", column="n", min_value=-5, strict_min=True),
    expect("column_max_to_be_between", column="x", max_value=1e9),
    expect("column_max_to_be_between", column="x", max_value=5),
    expect("column_mean_to_be_between", column="n", min_value=0, max_value=15),
    expect("column_mean_to_be_between", column="n", min_value=15),
    expect("column_sum_to_be_between", column="n", min_value=0),
    expect("column_sum_to_be_between", column="n", max_value=0),
    expect("column_stdev_to_be_between", column="n", min_value=5, max_value=10),
    expect("column_stdev_to_be_between", column="n", max_value=2),
    expect("column_proportion_of_non_null_values_to_be_between", column="n", min_value=0.5),
    expect("column_proportion_of_non_null_values_to_be_between", column="n", min_value=0.99),
    expect("column_to_exist", column="n"),
    expect("column_to_exist", column="gone"),
    *({**rule, "kwargs": {**rule["kwargs"], "mostly": mostly}} for rule in OF_ROWS for mostly in (0.3, 0.7)),
]
