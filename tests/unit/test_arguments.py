"""Arguments of a call: right ones become plain Python, wrong ones are refused with `found` and `expected`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import lakemq
from lakemq.engine.client.arguments import (
    parse_choice,
    parse_flag,
    parse_list,
    parse_mapping,
    parse_text,
    parse_whole_number,
)
from lakemq.errors import InvalidConfig, InvalidRequest


class Colour(str, Enum):
    red = "red"


def test_right_arguments_become_plain_python() -> None:
    cases: list[tuple[Callable[[str, Any], Any], Any, Any]] = [
        (parse_whole_number, -(2**63), -(2**63)),
        (parse_whole_number, np.int64(7), 7),
        (parse_text, "", ""),
        (parse_text, "a\u2028\0", "a\u2028\0"),
        (parse_text, np.str_("a"), "a"),
        (parse_text, Colour.red, "red"),
        (parse_flag, np.bool_(False), False),
        (parse_list, ("a", 1), ["a", 1]),
        (parse_list, (i for i in range(2)), [0, 1]),
        (parse_list, {"a": 1}.keys(), ["a"]),
        (parse_mapping, {1: 2}, {1: 2}),
    ]
    for check, value, plain in cases:
        checked = check("it", value)
        assert (checked, type(checked)) == (plain, type(plain))
        msgspec.msgpack.encode(checked)


def test_wrong_arguments_are_refused_by_name() -> None:
    whole_numbers = (None, "4", 1.0, True, np.bool_(True), np.float64(1), b"1", [1], 2**63, -(2**200))
    cases: list[tuple[Callable[[str, Any], Any], tuple[Any, ...]]] = [
        (parse_whole_number, whole_numbers),
        (parse_text, (None, 1, b"a", ["a"], "\ud800", "a\udfff")),
        (parse_flag, (None, 0, 1, "yes", np.int64(1))),
        (parse_list, (None, "ab", b"ab", {1: 2}, 5)),
        (parse_mapping, (None, "ab", [(1, 2)], 5)),
    ]
    for check, wrong_values in cases:
        for wrong in wrong_values:
            with pytest.raises(InvalidRequest, match=r"^INVALID_REQUEST: it is not valid\. Found ") as refused:
                check("it", wrong)
            assert refused.value.found is not None
            assert refused.value.expected
            str(refused.value).encode()


def test_error_of_a_number_names_its_bounds() -> None:
    assert parse_whole_number("n", 5, 5, 5) == 5
    for value, low, high, expected in (
        (4, 5, None, "a whole number of at least 5"),
        (6, None, 5, "a whole number of at most 5"),
        (6, 1, 5, "a whole number from 1 to 5"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            parse_whole_number("n", value, low, high)
        assert (refused.value.found, refused.value.expected) == (value, expected)


def test_choice_is_one_of_its_words() -> None:
    assert parse_choice("colour", Colour.red, ("red", "green")) == "red"
    for wrong in (None, "", "Red", ["red"], b"red", {}):
        with pytest.raises(InvalidRequest, match="Expected red or green"):
            parse_choice("colour", wrong, ("red", "green"))


def test_error_repeats_no_payload_and_no_long_text() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_text("key", b"secret")
    assert refused.value.found == "an object of type bytes"
    with pytest.raises(InvalidRequest) as refused:
        parse_whole_number("key", "9" * 5000)
    assert len(str(refused.value)) < 200


def test_error_of_a_setting_is_invalid_config() -> None:
    with pytest.raises(InvalidConfig, match=r"^INVALID_CONFIG: linger_ms is not valid\. Found 'x'"):
        parse_whole_number("linger_ms", "x", 0, error=InvalidConfig)


def test_huge_number_is_named_by_its_length() -> None:
    with pytest.raises(InvalidRequest, match="a number of 70001 bits"):
        parse_whole_number("n", 2**70000)


def test_connect_refuses_a_wrong_spark_session(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"spark is not valid\. Found 5\. Expected a SparkSession"):
        lakemq.connect(str(tmp_path), create=True, spark=5)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
