"""Values in requests: a bad value is refused within the call, by name. NumPy's integers are accepted."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from lakemq.engine.protocol.codec.letter import encode_request
from lakemq.engine.protocol.errors import InvalidRequest
from lakemq.engine.protocol.values.consuming.offsets import CommitOffsets, OffsetCommit
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.topics import CreateTopic, DeleteRecords

SELF_CONTAINING: dict[str, Any] = {}
SELF_CONTAINING["x"] = SELF_CONTAINING


@pytest.mark.parametrize(
    ("request_", "field", "expected"),
    [
        (CreateTopic("t", "4"), "partitions", "int"),  # type: ignore[arg-type]
        (CreateTopic("t", 4.0), "partitions", "int"),  # type: ignore[arg-type]
        (CreateTopic("t", True), "partitions", "int"),
        (CreateTopic("t", np.bool_(True)), "partitions", "numbers"),  # type: ignore[arg-type]
        (CreateTopic("t", 10**5000), "partitions", "numbers"),
        (CreateTopic("t", np.array([1, 2])), "partitions", "numbers"),  # type: ignore[arg-type]
        (CreateTopic("t\ud800", 4), "topic", "Unicode"),
        (CreateTopic(b"t", 4), "topic", "text"),  # type: ignore[arg-type]
        (CreateTopic(5, 4), "topic", "str"),  # type: ignore[arg-type]
        (CreateTopic("t", 4, {"retention.ms": float("nan")}), "config", "numbers"),
        (CreateTopic("t", 4, {"retention.ms": object()}), "config", "JSON"),
        (CreateTopic("t", 4, SELF_CONTAINING), "config", "JSON"),
        (CreateTopic("t", 4, {}, "abc"), "subscriptions", "array"),  # type: ignore[arg-type]
        (DeleteRecords("t", {"x": 4}), "before", "int"),  # type: ignore[dict-item]
        (CommitOffsets("g", [OffsetCommit("t", 1.7, 2)]), "offsets[0][1]", "int"),  # type: ignore[arg-type]
        (CommitOffsets("g", [OffsetCommit("t", 1, 2, b"x")]), "offsets", "text"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_value_is_refused_by_name(request_: AnyRequest, field: str, expected: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        encode_request(request_)
    assert refused.value.detail == f"{field} of {type(request_).__name__} cannot be sent."
    assert expected in refused.value.expected
    assert len(str(refused.value)) < 1_500


@pytest.mark.parametrize("alien", [None, 5, "create_topic", [], object()])
def test_object_that_is_no_request_is_refused(alien: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be sent\. Found"):
        encode_request(alien)


def test_integers_of_numpy_are_sent_as_integers() -> None:
    assert msgspec.json.decode(encode_request(CreateTopic("t", np.int64(4), {"retention.ms": np.uint8(7)}))) == {
        "request": "create_topic",
        "topic": "t",
        "partitions": 4,
        "config": {"retention.ms": 7},
    }
    assert b'"before":{"1":4}' in encode_request(DeleteRecords("t", {np.int64(1): np.int32(4)}))


def test_exception_of_a_signal_is_not_taken_for_a_bad_value() -> None:
    class Alarm(Exception):
        pass

    class Interrupted:
        def __index__(self) -> int:
            raise Alarm

    with pytest.raises(Alarm):
        encode_request(CreateTopic("t", Interrupted()))  # type: ignore[arg-type]
