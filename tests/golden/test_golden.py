"""Cases a person can read, in the YAML files beside this one: what is asked, when, and what is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import yaml
from protocol_harness import Harness

import lakemq
from lakemq.engine.protocol import errors, machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.hashing import murmur2, murmur2_partition, shard
from lakemq.engine.protocol.names import is_name, reached
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.decisions import Decided
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import Produced, Published
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, UnitAppended
from lakemq.engine.protocol.values.topics import (
    AlterTopic,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    TopicDone,
    TopicRef,
)

FOLDER = Path(__file__).parent
DAY_MS = 86_400_000


def cases(file: str) -> Any:
    return yaml.safe_load((FOLDER / file).read_text())


def named(case: dict[str, Any]) -> str:
    return str(case.get("case", case.get("of", case)))[:60]


# -- requests -----------------------------------------------------------------------------------------------


def request_of(mq: Harness, kind: str, given: dict[str, Any]) -> AnyRequest:
    if kind == "create":
        return CreateTopic(**given)
    if kind == "alter":
        return AlterTopic(**given)
    if kind == "delete":
        return DeleteTopic(**given)
    if kind == "delete_records":
        return DeleteRecords(**given)
    if kind == "init_producer":
        return InitProducer(**given)
    assert kind == "publish", kind
    return produce_of(mq, **given)


def produce_of(
    mq: Harness,
    topic: str,
    records: dict[int, int],
    producer: int | None = None,
    epoch: int = 0,
    sequence: int = 0,
    application: str | None = None,
    version: int = 0,
    file_is_missing: bool = False,
    hashed_to_partitions: int | None = None,
) -> AnyRequest:
    request = mq.produce(
        records,
        topic,
        None if producer is None else (producer, epoch),
        sequence,
        None if application is None else (application, version),
        batch_id="missing" if file_is_missing else "f",
    )
    mq.missing = {"missing"}
    if hashed_to_partitions:
        (ref,) = request.topics
        refs = [TopicRef(ref.topic, ref.topic_id, hashed_to_partitions)]
        request = msgspec.structs.replace(request, topics=refs)
    return request


def answer_of(result: AnyResult) -> Any:
    """The result as the files write it."""
    if isinstance(result, Refusal):
        code = type(errors.error_of(result)).code
        known = {"code": code, "found": result.found, "expected": result.expected}
        return {"error": result.error, **{name: value for name, value in known.items() if value is not None}}
    if isinstance(result, Published):
        offsets = {unit.partition: unit.base_offset for unit in result.units}
        return {"offsets": offsets, "duplicate": True} if result.duplicate else {"offsets": offsets}
    if isinstance(result, TopicDone):
        return {"topic_id": result.topic_id, "partitions": result.partitions}
    if isinstance(result, ProducerDone):
        return {"producer_id": result.producer_id, "producer_epoch": result.producer_epoch}
    assert isinstance(result, Done)
    return "done"


def pretend(mq: Harness, topic: str, partition: int, producer: int, sequence: int, records: int, offset: int) -> None:
    """As if the producer had got so far."""
    unit = UnitAppended(mq.state.topic(topic).topic_id, partition, sequence, records, offset)
    machine.fold(mq.state, [Decided(Produced(topic, producer, 0, [unit]))])


def play(mq: Harness, script: list[dict[str, Any]]) -> list[AnyResult]:
    asked: list[AnyRequest] = []
    results: list[AnyResult] = []
    for line in script:
        line = dict(line)
        mq.now_ms = line.pop("at", mq.now_ms)
        mq.expire(DAY_MS, DAY_MS)
        ((kind, given),) = line.items()
        if kind == "as_if_appended":
            pretend(mq, **given)
            continue
        asked.append(asked[given] if kind == "again" else request_of(mq, kind, given))
        results.append(mq.one(asked[-1]))
    return results


@pytest.mark.parametrize("case", [*cases("topics.yaml"), *cases("sequences.yaml")], ids=named)
def test_requests_are_answered(case: dict[str, Any]) -> None:
    mq = Harness()
    assert not [r for r in play(mq, case.get("given", [])) if isinstance(r, Refusal)]
    found = [answer_of(result) for result in play(mq, case["when"])]
    # of an error the file says as much as matters
    shown = [
        {key: value for key, value in answer.items() if key in expected} if "error" in expected else answer
        for answer, expected in zip(found, case["then"], strict=True)
    ]
    assert shown == case["then"]
    for expected in case["then"]:
        if "error" in expected and "code" not in expected:
            assert type(errors.error_of(Refusal(expected["error"], ""))).code is None
    for topic, ends in case.get("log_ends", {}).items():
        assert mq.state.topic(topic).high_watermarks.tolist() == ends
    for topic, starts in case.get("log_starts", {}).items():
        assert mq.state.topic(topic).log_starts.tolist() == starts


# -- names, hashes, routes ----------------------------------------------------------------------------------


def text_of(case: dict[str, Any]) -> str:
    of = case["of"]
    return of["repeat"] * of["times"] if isinstance(of, dict) else of


@pytest.mark.parametrize("case", cases("names.yaml")["names"], ids=named)
def test_a_name_is_valid_or_not(case: dict[str, Any]) -> None:
    assert is_name(text_of(case)) is case["valid"]


@pytest.mark.parametrize("case", cases("names.yaml")["murmur2"], ids=named)
def test_murmur2_is_kafkas(case: dict[str, Any]) -> None:
    key = text_of(case).encode()
    assert murmur2(key) == case["hash"]
    assert murmur2_partition(key, case["partitions"]) == case["partition"]


@pytest.mark.parametrize("case", cases("names.yaml")["shards"], ids=named)
def test_groups_are_sharded_by_javas_hash(case: dict[str, Any]) -> None:
    assert shard(text_of(case)) == case["shard"]


@pytest.mark.parametrize("case", cases("routing.yaml"), ids=named)
def test_a_destination_reaches_its_queues(case: dict[str, Any]) -> None:
    assert {to: reached(to, case["queues"]) for to in case["reaches"]} == case["reaches"]


# -- times --------------------------------------------------------------------------------------------------


def test_offsets_for_times(tmp_path: Path) -> None:
    """Through a real namespace: half of each partition in one segment, half in the next."""
    with lakemq.connect(str(tmp_path), create=True) as mq:
        with mq.serving():
            for number, case in enumerate(cases("times.yaml")):
                mq.topics.create(f"t{number}")
                stamps, half = case["timestamps"], len(case["timestamps"]) // 2
                for part in filter(None, (stamps[:half], stamps[half:])):
                    times = pa.array([ms * 1000 for ms in part], pa.timestamp("us", "UTC"))
                    mq.publish(f"t{number}", pa.table({"value": ["x"] * len(part), "timestamp": times}))
        for number, case in enumerate(cases("times.yaml")):
            found = {ms: mq.offsets_for_times(f"t{number}", {0: ms})[0] for ms in case["offset_for"]}
            assert {ms: at and at[0] for ms, at in found.items()} == case["offset_for"], case
