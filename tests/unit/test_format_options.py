"""Options by the names of Spark's Kafka source: their meaning, and those that are refused."""

from typing import Any

import pytest

from lakemq.engine.client.format.options import OffsetBound, parse_batch_options, parse_stream_options
from lakemq.errors import InvalidConfig

READ = {"path": "data/mq", "subscribe": "orders"}


def test_defaults_are_those_of_sparks_kafka_source_but_for_isolation() -> None:
    batch, stream = parse_batch_options(READ), parse_stream_options(READ)
    assert (batch.start, batch.end) == (OffsetBound(word="earliest"), OffsetBound(word="latest"))
    assert stream.start == OffsetBound(word="latest")
    assert batch.fail_on_data_loss
    assert stream.fail_on_data_loss
    assert not batch.include_headers
    assert (stream.max_offsets, stream.min_offsets, stream.max_trigger_delay_ms) == (None, None, 900_000)
    assert batch.isolation == "read_committed"


def test_option_names_and_words_ignore_case_and_the_prefix_of_kafka() -> None:
    settings = {"PATH": "x", "SUBSCRIBEPATTERN": "o.*", "StartingOffsets": "Earliest", "failondataloss": "False"}
    options = parse_stream_options(
        {**settings, "kafka.isolation.level": "read_uncommitted", "kafka.group.id": "billing"}
    )
    assert (options.selection.pattern, options.start, options.fail_on_data_loss) == (
        "o.*",
        OffsetBound(word="earliest"),
        False,
    )
    assert (options.isolation, options.group) == ("read_uncommitted", "billing")


def test_one_time_precedes_times_by_partition_and_these_precede_offsets() -> None:
    settings = {**READ, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"orders": {"0": 7}}'}
    assert parse_stream_options(settings).start.times_ms == {"orders": {0: 7}}
    settings |= {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}
    assert parse_stream_options(settings).start == OffsetBound(time_ms=5, fallback="latest")


def test_credentials_reach_the_store_and_are_not_shown() -> None:
    location = parse_batch_options({**READ, "storage.aws_secret_access_key": "hush"}).location
    assert location.storage_options == {"AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in repr(location)


KAFKA_OPTIONS = {
    "assign": '{"orders": [0, 1]}',
    "subscribe": "orders,bills",
    "subscribePattern": "orders.*",
    "startingTimestamp": "1000",
    "startingOffsetsByTimestamp": '{"orders": {"0": 1000}}',
    "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "minPartitions": "10",
    "maxRecordsPerPartition": "1000",
    "includeHeaders": "true",
    "kafka.group.id": "billing",
    "kafka.isolation.level": "read_committed",
    "maxOffsetsPerTrigger": "1000",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "15m",
}
"""Options of the Kafka source in Spark's guide that have a meaning here, in the guide's order."""
KAFKA_BATCH_OPTIONS = {
    "endingTimestamp": "2000",
    "endingOffsetsByTimestamp": '{"orders": {"0": 2000}}',
    "endingOffsets": '{"orders": {"0": 50, "1": -1}}',
}
_OF_STREAMS = ("kafka.group.id", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@pytest.mark.parametrize("name", [*KAFKA_OPTIONS, *KAFKA_BATCH_OPTIONS])
def test_options_of_sparks_kafka_source_are_accepted_unchanged(name: str) -> None:
    settings = {"path": "x", name: {**KAFKA_OPTIONS, **KAFKA_BATCH_OPTIONS}[name]}
    if name not in ("assign", "subscribe", "subscribePattern"):
        settings["subscribe"] = "orders"
    if name not in KAFKA_BATCH_OPTIONS:
        parse_stream_options(settings)
    if name not in _OF_STREAMS:
        parse_batch_options(settings)


BAD: list[tuple[dict[str, str], str]] = [
    ({"subscribe": "t"}, "path"),
    ({"path": "x"}, "subscribe"),
    ({**READ, "assign": '{"t": [0]}'}, "subscribe and assign"),
    ({**READ, "subscribe": " , "}, "subscribe"),
    ({"path": "x", "assign": '{"t": 0}'}, "assign"),
    ({"path": "x", "assign": '{"t": ["0"]}'}, "assign"),
    ({"path": "x", "assign": "t"}, "assign"),
    ({"path": "x", "subscribePattern": ""}, "subscribePattern"),
    ({**READ, "subscrbe": "t"}, "did you mean subscribe"),
    ({**READ, "kafka.bootstrap.servers": "localhost:9092"}, "kafka.bootstrap.servers"),
    ({**READ, "isolation.level": "read_committed", "kafka.isolation.level": "read_committed"}, "twice"),
    ({**READ, "isolation.level": "committed"}, "isolation.level"),
    ({**READ, "startingOffsets": "first"}, "startingOffsets"),
    ({**READ, "startingOffsets": '{"t": 3}'}, "startingOffsets"),
    ({**READ, "startingOffsets": '{"t": {"a": 3}}'}, "startingOffsets"),
    ({**READ, "startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets"),
    ({**READ, "startingOffsets": '{"t": {"0": 1.5}}'}, "startingOffsets"),
    ({**READ, "startingOffsets": '{"t": {"0": true}}'}, "startingOffsets"),
    ({**READ, "startingOffsets": '{"t": ' * 50_000}, "startingOffsets"),
    ({**READ, "startingTimestamp": "-1"}, "startingTimestamp"),
    ({**READ, "startingTimestamp": "soon"}, "startingTimestamp"),
    ({**READ, "startingTimestamp": "9" * 30}, "startingTimestamp"),
    ({**READ, "startingTimestamp": "1700000000"}, "startingTimestamp looks like seconds"),
    ({**READ, "startingOffsetsByTimestamp": '{"t": {"0": 1700000000}}'}, "ByTimestamp looks like seconds"),
    ({**READ, "includeHeaders": "yes"}, "includeHeaders"),
    ({**READ, "minPartitions": "0"}, "minPartitions"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
@pytest.mark.parametrize("options_of", [parse_batch_options, parse_stream_options])
def test_invalid_option_is_refused_by_name(options_of: Any, settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        options_of(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "5"}, "streams"),
        ({"group.id": "g"}, "streams"),
    ],
)
def test_options_of_streams_are_refused_in_a_batch(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        parse_batch_options({**READ, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"endingOffsets": "latest"},
        {"endingTimestamp": "5"},
        {"maxOffsetsPerTrigger": "0"},
        {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
        {"maxTriggerDelay": "soon"},
    ],
)
def test_options_of_batches_and_wrong_limits_are_refused_in_a_stream(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        parse_stream_options({**READ, **settings})
