"""Play the stories and cases in the YAML files of this folder."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from golden.story import Story

import lakemq
from lakemq.engine.protocol.hashing import find_shard, murmur2, murmur2_partition
from lakemq.engine.protocol.names import find_reached_topics, is_name

FOLDER = Path(__file__).parent


def cases(file: str) -> Any:
    return yaml.load((FOLDER / file).read_text(), Loader=yaml.CSafeLoader)


def name_case(case: dict[str, Any]) -> str:
    return str(case.get("case", case.get("of", case)))[:60]


# -- stories ------------------------------------------------------------------------------------------------


STORIES = [
    story
    for subject in ("topics", "sequences", "transactions", "groups", "classic", "queues", "delays", "schedules")
    for story in cases(f"{subject}.yaml")
]


@pytest.mark.parametrize("case", STORIES, ids=name_case)
def test_every_line_of_a_story_gets_the_answer_it_expects(case: dict[str, Any]) -> None:
    story = Story()
    for number, line in enumerate(case["story"]):
        try:
            story.tell(line)
        except AssertionError as error:
            raise AssertionError(f"line {number}: {line}\n{error}") from error


# -- names, hashes, routes ----------------------------------------------------------------------------------


def text_of(case: dict[str, Any]) -> str:
    of = case["of"]
    return of["repeat"] * of["times"] if isinstance(of, dict) else of


@pytest.mark.parametrize("case", cases("names.yaml"), ids=name_case)
def test_name_is_accepted_or_refused_as_the_case_says(case: dict[str, Any]) -> None:
    assert is_name(text_of(case)) is case["valid"]


@pytest.mark.parametrize("case", cases("hashes.yaml")["murmur2"], ids=name_case)
def test_murmur2_returns_kafkas_hash_and_partition(case: dict[str, Any]) -> None:
    key = text_of(case).encode()
    assert murmur2(key) == case["hash"]
    assert murmur2_partition(key, case["partitions"]) == case["partition"]


@pytest.mark.parametrize("case", cases("hashes.yaml")["shards"], ids=name_case)
def test_group_has_the_shard_of_javas_string_hash(case: dict[str, Any]) -> None:
    assert find_shard(text_of(case)) == case["shard"]


@pytest.mark.parametrize("case", cases("routing.yaml"), ids=name_case)
def test_destination_reaches_the_topics_that_subscribe_to_it(case: dict[str, Any]) -> None:
    assert {to: find_reached_topics(to, case["queues"], case["queues"]) for to in case["reaches"]} == case["reaches"]


# -- times --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_offsets_for_times_are_of_the_first_message_not_before(tmp_path: Path) -> None:
    """Publish half of each partition in one segment, half in the next, in a real namespace."""
    with lakemq.connect(str(tmp_path), create=True) as mq:
        with mq.serving():
            for number, case in enumerate(cases("times.yaml")):
                mq.topics.create(f"t{number}")
                stamps, half = case["timestamps"], len(case["timestamps"]) // 2
                for part in filter(None, (stamps[:half], stamps[half:])):
                    times = pa.array([ms * 1000 for ms in part], pa.timestamp("us", "UTC"))
                    mq.publish(f"t{number}", pa.table({"value": ["x"] * len(part), "timestamp": times}))
        for number, case in enumerate(cases("times.yaml")):
            results = {ms: mq.offsets_for_times(f"t{number}", {0: ms})[0] for ms in case["offset_for"]}
            assert {ms: at and at[0] for ms, at in results.items()} == case["offset_for"], case
