"""Errors: one class per refusal, which survives encoding, with `found` and `expected`."""

from __future__ import annotations

from typing import Any

import pytest
from protocol_harness import Harness

from lakemq.engine.protocol import errors
from lakemq.engine.protocol.codec.letter import decode_answer, encode_answer
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.clients import Answer
from lakemq.engine.protocol.values.topics import CreateTopic


@pytest.mark.parametrize("error", errors.all_errors(), ids=lambda e: e.name)
def test_every_error_travels_and_is_itself_again(error: type[errors.LakeMQError]) -> None:
    refusal = error("detail", found={"a": [1, 2]}, expected="b").refusal()
    (read,) = decode_answer(encode_answer(Answer("c", 1, 1, [refusal]))).results
    assert isinstance(read, Refusal)
    raised = errors.error_from_refusal(read)
    assert type(raised) is error
    assert str(raised).startswith(f"{error.name}: detail. Found")
    assert str(error()).startswith(f"{error.name}: {error.meaning()}")
    assert error.meaning().endswith((".", "."))


def test_an_error_of_a_newer_engine_keeps_its_name() -> None:
    raised = errors.error_from_refusal(Refusal("BRAND_NEW", "why", 1, 2))
    assert type(raised) is errors.LakeMQError
    assert "BRAND_NEW: why" in str(raised)


def test_kafkas_codes_are_kept() -> None:
    codes = {e.name: e.code for e in errors.all_errors() if e.code is not None}
    expected = {
        "OFFSET_OUT_OF_RANGE": 1,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "REQUEST_TIMED_OUT": 7,
        "MESSAGE_TOO_LARGE": 10,
        "OFFSET_METADATA_TOO_LARGE": 12,
        "INVALID_TOPIC_EXCEPTION": 17,
        "INVALID_GROUP_ID": 24,
        "INVALID_TIMESTAMP": 32,
        "TOPIC_ALREADY_EXISTS": 36,
        "INVALID_PARTITIONS": 37,
        "INVALID_CONFIG": 40,
        "INVALID_REQUEST": 42,
        "OUT_OF_ORDER_SEQUENCE_NUMBER": 45,
        "INVALID_PRODUCER_EPOCH": 47,
        "INVALID_TXN_STATE": 48,
        "INVALID_PRODUCER_ID_MAPPING": 49,
        "INVALID_TRANSACTION_TIMEOUT": 50,
        "UNKNOWN_PRODUCER_ID": 59,
        "INVALID_RECORD": 87,
        "UNSTABLE_OFFSET_COMMIT": 88,
        "THROTTLING_QUOTA_EXCEEDED": 89,
        "PRODUCER_FENCED": 90,
        "TRANSACTIONAL_ID_NOT_FOUND": 105,
        "UNSUPPORTED_ASSIGNOR": 112,
        "TRANSACTION_ABORTABLE": 120,
    }
    assert codes == {**codes, **expected}
    assert len(set(codes.values())) == len(codes)


def test_only_unstable_offsets_are_retriable_among_errors_of_transactions() -> None:
    """The other errors end the transaction or its producer."""
    retriable = {e.name for e in errors.all_errors() if e.retriable and e.code is not None}
    of_any_request = {"REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR", "THROTTLING_QUOTA_EXCEEDED"}
    assert retriable == {*of_any_request, "UNSTABLE_OFFSET_COMMIT"}


def test_a_refusal_repeats_little_of_what_was_sent() -> None:
    mq = Harness()
    refusal = mq.refused(CreateTopic("t", 1, {"retention.ms": "9" * 10_000_000}))
    assert len(encode_answer(Answer("c", 1, 1, [refusal]))) < 5_000
    assert str(refusal.found).startswith("999")


@pytest.mark.parametrize("detail", [None, True, 3, 2**80, 1.5, "text", [1], {"a": 1}, b"bytes", object()])
def test_any_found_value_can_be_encoded(detail: Any) -> None:
    refusal = errors.InvalidRequest("d", found=detail).refusal()
    (read,) = decode_answer(encode_answer(Answer("c", 1, 1, [refusal]))).results
    assert read == refusal
