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
    parse_group_name,
    parse_list,
    parse_mapping,
    parse_partition_offsets,
    parse_text,
    parse_topic_name,
    parse_topic_names,
    parse_topic_partitions,
    parse_whole_number,
)
from lakemq.errors import InvalidConfig, InvalidGroupId, InvalidRequest, InvalidTopic


class Colour(str, Enum):
    red = "red"


@pytest.mark.parametrize(
    ("check", "value", "plain"),
    [
        (parse_whole_number, 4, 4),
        (parse_whole_number, -(2**63), -(2**63)),
        (parse_whole_number, np.int64(7), 7),
        (parse_whole_number, np.uint8(7), 7),
        (parse_text, "", ""),
        (parse_text, "a\u2028\0", "a\u2028\0"),
        (parse_text, np.str_("a"), "a"),
        (parse_text, Colour.red, "red"),
        (parse_flag, True, True),
        (parse_flag, np.bool_(False), False),
        (parse_list, ("a", 1), ["a", 1]),
        (parse_list, (i for i in range(2)), [0, 1]),
        (parse_list, {"a": 1}.keys(), ["a"]),
        (parse_mapping, {1: 2}, {1: 2}),
    ],
)
def test_what_is_right_is_plain_python(check: Callable[[str, Any], Any], value: Any, plain: Any) -> None:
    checked = check("it", value)
    assert checked == plain
    assert type(checked) is type(plain)
    msgspec.msgpack.encode(checked)


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        *[
            (parse_whole_number, v)
            for v in (None, "4", 1.0, True, np.bool_(True), np.float64(1), b"1", [1], 2**63, 2**70, -(2**200))
        ],
        *[(parse_text, v) for v in (None, 1, b"a", ["a"], "\ud800", "a\udfff")],
        *[(parse_flag, v) for v in (None, 0, 1, "yes", np.int64(1))],
        *[(parse_list, v) for v in (None, "ab", b"ab", {1: 2}, 5)],
        *[(parse_mapping, v) for v in (None, "ab", [(1, 2)], 5)],
    ],
)
def test_what_is_wrong_is_refused_by_name(check: Callable[[str, Any], Any], wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^INVALID_REQUEST: it is not valid\. Found ") as refused:
        check("it", wrong)
    assert refused.value.found is not None
    assert refused.value.expected
    str(refused.value).encode()


def test_bounds_are_part_of_what_is_expected() -> None:
    assert parse_whole_number("n", 5, 5, 5) == 5
    for value, low, high, expected in (
        (4, 5, None, "a whole number of at least 5"),
        (6, None, 5, "a whole number of at most 5"),
        (6, 1, 5, "a whole number from 1 to 5"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            parse_whole_number("n", value, low, high)
        assert (refused.value.found, refused.value.expected) == (value, expected)


def test_a_word_is_one_of_its_choices() -> None:
    assert parse_choice("colour", Colour.red, ("red", "green")) == "red"
    for wrong in (None, "", "Red", ["red"], b"red", {}):
        with pytest.raises(InvalidRequest, match="Expected red or green"):
            parse_choice("colour", wrong, ("red", "green"))


def test_an_error_repeats_neither_payloads_nor_endless_texts() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_text("key", b"secret")
    assert refused.value.found == "an object of type bytes"
    with pytest.raises(InvalidRequest) as refused:
        parse_whole_number("key", "9" * 5000)
    assert len(str(refused.value)) < 200


def test_the_error_can_be_that_of_a_setting() -> None:
    with pytest.raises(InvalidConfig, match=r"^INVALID_CONFIG: linger_ms is not valid\. Found 'x'"):
        parse_whole_number("linger_ms", "x", 0, error=InvalidConfig)


def test_a_number_too_long_to_print_is_told_by_its_length() -> None:
    with pytest.raises(InvalidRequest, match="a number of 70001 bits"):
        parse_whole_number("n", 2**70000)


@pytest.mark.parametrize("wrong", ["", "bad group!", ".", "a/b", "x" * 250, None, 5, b"g", "\ud800"])
def test_a_group_is_a_name(wrong: Any) -> None:
    with pytest.raises(InvalidGroupId, match=r"Found .* Expected"):
        parse_group_name(wrong)
    assert parse_group_name(np.str_("g")) == "g"


@pytest.mark.parametrize("wrong", [None, 5, b"t", "\ud800"])
def test_a_topic_that_is_no_text_is_no_topic(wrong: Any) -> None:
    with pytest.raises(InvalidTopic, match=r"it is not valid\. Found .* Expected text"):
        parse_topic_name("it", wrong)
    for check in (
        lambda: parse_topic_names("it", [wrong]),
        lambda: parse_topic_partitions("it", [(wrong, 0)]),
        lambda: parse_partition_offsets("it", {(wrong, 0): 1}),
    ):
        with pytest.raises(InvalidTopic, match="it is not valid"):
            check()


def test_what_is_no_session_of_spark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"spark is not valid\. Found 5\. Expected a SparkSession"):
        lakemq.connect(str(tmp_path), create=True, spark=5)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
