"""Parameters: checked key by key, with an error that names the key, the value and the accepted values."""

from typing import Any

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given

from lakemq.engine.client.producer.options import PRODUCER
from lakemq.engine.namespace.config import ENGINE, EngineConfig
from lakemq.engine.protocol.errors import InvalidConfig
from lakemq.engine.protocol.parameters import GROUP, TOPIC, Parameters

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("key", "value", "parsed"),
    [
        ("retention.ms", "-1", -1),
        ("retention.ms", " 60000 ", 60_000),
        ("cleanup.policy", "delete", "delete"),
        ("delay.levels", "5s 10s 30s 1m 2h", (5_000, 10_000, 30_000, 60_000, 7_200_000)),
        ("delay.levels", " 5s, 10000,1d ", (5_000, 10_000, 86_400_000)),
        ("retention.waits.for.groups", " True ", True),
        ("dead.letter.topic", "", ""),
    ],
)
def test_valid_value_of_a_setting_is_parsed(key: str, value: Any, parsed: Any) -> None:
    assert TOPIC.parse({key: value}) == {key: parsed}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", -2),
        ("retention.ms", "7 days"),
        ("retention.ms", "9" * 10_000),
        ("retention.ms", True),
        ("retention.ms", None),
        ("max.message.bytes", 0),
        ("cleanup.policy", "compress"),
        ("min.cleanable.dirty.ratio", 1.5),
        ("delay.levels", "5s 10x"),
        ("delay.levels", 5),
        ("retention.waits.for.groups", 1),
        ("dead.letter.topic", "a b"),
    ],
)
def test_a_bad_value_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidConfig) as refused:
        TOPIC.parse({"retention.bytes": 1, key: value})
    assert key in str(refused.value)
    assert refused.value.expected
    assert refused.value.found == ("None" if value is None else value)


def test_unknown_setting_is_refused_with_the_likely_one() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean retention\.ms\? Found .retention\.mss"):
        TOPIC.parse({"retention.mss": 1})
    with pytest.raises(InvalidConfig, match=r"one of cleanup\.policy, "):
        TOPIC.parse({"colour": 1})


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("min.insync.replicas", "the store takes care of it"),
        ("segment.bytes", "no log segments"),
        ("acks", "acks=all"),
        ("num.partitions", "when a topic is created"),
    ],
)
def test_setting_of_kafka_without_a_meaning_here_is_refused(key: str, reason: str) -> None:
    for declared in (TOPIC, Parameters([])):
        with pytest.raises(InvalidConfig, match=rf"{key} is no setting of LakeMQ: .*{reason}") as refused:
            declared.parse({key: 1})
        assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("transactional.id.timeout.ms", r"transaction_timeout_ms .* transactional\.id\.expiration\.ms"),
        ("log.retention.hours", r"retention\.ms"),
        ("partition-rebalance-delay", r"rebalance\.delay\.ms"),
        ("partitionRebalanceMaxHandoffTime", r"max\.handoff\.ms"),
        ("bootstrap_servers", "no wire protocol"),
        ("offsets_retention_ms", r"did you mean offsets\.retention\.ms\?"),
    ],
)
def test_setting_of_kafka_or_solace_is_refused_with_lakemqs_own(key: str, answer: str) -> None:
    with pytest.raises(InvalidConfig, match=answer) as refused:
        ENGINE.parse({key: 1})
    assert key in str(refused.value)
    assert "Expected" not in str(refused.value)


@pytest.mark.parametrize(
    ("declared", "key", "answer"),
    [
        (TOPIC, "linger.ms", "give linger_ms to mq.producer"),
        (GROUP, "lingerMs", "give linger_ms to mq.producer"),
        (TOPIC, "session.timeout.ms", r"an option of mq\.consumer"),
        (GROUP, "retention.ms", r"a setting of topics: mq\.topics\.create"),
        (TOPIC, "transaction.max.timeout.ms", r"lakemq\.connect\(path, config="),
        (GROUP, "share.isolation.level", "give isolation to mq.consumer"),
    ],
)
def test_setting_of_another_place_is_refused_with_the_place(declared: Parameters, key: str, answer: str) -> None:
    with pytest.raises(InvalidConfig, match=answer) as refused:
        declared.parse({key: 1})
    assert str(refused.value).startswith(f"INVALID_CONFIG: {key} is no parameter here: ")


def test_producer_option_among_settings_is_refused_with_its_place() -> None:
    for option in {*PRODUCER.declared, "enable_idempotence"} - {"on_error"}:
        key = option.replace("_", ".")
        for parse in (TOPIC.parse, GROUP.parse, EngineConfig):
            with pytest.raises(InvalidConfig, match="acks=all" if key == "acks" else f"give {option} to mq.producer"):
                parse({key: "1"})


@examples()
@given(st.dictionaries(st.sampled_from(sorted(TOPIC.declared)) | st.text(), json_values, max_size=3))
def test_any_value_is_parsed_or_refused(raw: dict[str, Any]) -> None:
    try:
        parsed = TOPIC.parse(raw)
    except InvalidConfig:
        return
    assert parsed.keys() == raw.keys()
    assert TOPIC.parse(parsed) == parsed
