"""Options of a producer: each is checked, by type and range, before the producer does anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypedDict

from ...protocol.errors import InvalidConfig
from ...protocol.parameters import Parameter, Parameters, Value
from ...protocol.unsupported_settings import normalize_option_names
from ..rows.publication import OnError

_DAY_MS = 86_400_000


class ProducerKeywords(TypedDict, total=False):
    """The keywords of `mq.producer`, for type checkers."""

    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    on_error: OnError
    acks: Literal["all", "-1", -1]
    retries: int
    max_in_flight_requests_per_connection: int
    idempotent: bool
    enable_idempotence: bool


PRODUCER = Parameters(
    [
        Parameter("linger_ms", 5, "How long a record waits for others to be sent with.", 0, _DAY_MS),
        Parameter("batch_size", 1 << 20, "Bytes that are sent without waiting.", 1, 1 << 30),
        Parameter("buffer_memory", 64 << 20, "Bytes that may wait; above it `send` blocks.", 1, 1 << 30),
        Parameter("max_block_ms", 60_000, "How long `send` blocks before it raises `BUFFER_FULL`.", 0, _DAY_MS),
        Parameter(
            "delivery_timeout_ms",
            120_000,
            "Time after `send` in which a record without an answer is sent again. Then it fails.",
            1,
            _DAY_MS,
        ),
        Parameter(
            "on_error",
            "reject",
            "A row that cannot be a message is left out, with a warning in the log, or its future and `flush` raise "
            "the error. In a transaction always `fail`, for all of it.",
            choices=("reject", "fail"),
        ),
        Parameter("acks", "all", "As in Kafka, at the one value that there is.", choices=("all", "-1")),
        Parameter("retries", 2**31 - 1, "As in Kafka; `delivery_timeout_ms` is what ends them.", 1, 2**31 - 1),
        Parameter(
            "max_in_flight_requests_per_connection",
            5,
            "As in Kafka; a producer has one batch on its way, so that the order is kept at any value.",
            1,
            5,
        ),
    ]
)
"""The options that are numbers or words. One more is true or false: `idempotent`, Kafka's `enable_idempotence`."""

_FLAGS = ("idempotent", "enable_idempotence")

_WHY = {
    "acks": "a record is acknowledged once it is in the log, never before",
    "retries": "a request without an answer is repeated, because its outcome would stay unknown otherwise",
    "max_in_flight_requests_per_connection": "only a producer's last five batches are remembered to recognize repeats",
}


@dataclass(frozen=True)
class ProducerOptions:
    """Options that have been checked."""

    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    on_error: OnError
    idempotent: bool


def parse_producer_options(given: Mapping[str, Any], transactional: bool = False) -> ProducerOptions:
    """Check the options, and add defaults. Raises InvalidConfig for an unknown or impossible one."""
    rest: dict[str, Any] = normalize_option_names(dict(given), {*PRODUCER.declared, *_FLAGS})
    flags: dict[str, Any] = {name: rest.pop(name) for name in _FLAGS if name in rest}
    idempotent = _parse_idempotent(flags, transactional)
    values: dict[str, Any] = {**PRODUCER.defaults(), **{name: _parse_value(name, raw) for name, raw in rest.items()}}
    if transactional:
        if rest.get("on_error") == "reject":
            raise InvalidConfig(
                "In a transaction a rejected row refuses all rows.", found="on_error='reject'", expected="fail"
            )
        values["on_error"] = "fail"
    chosen = {name: values[name] for name in ProducerOptions.__dataclass_fields__ if name != "idempotent"}
    return ProducerOptions(**chosen, idempotent=idempotent)


def _parse_value(name: str, raw: object) -> Value:
    if name == "acks" and isinstance(raw, Integral) and raw == -1:
        raw = "all"
    try:
        return PRODUCER[name].parse(raw)
    except InvalidConfig as error:
        if name not in _WHY:
            raise
        raise InvalidConfig(
            f"{name} cannot be this: {_WHY[name]}.", found=error.found, expected=error.expected
        ) from None


def _parse_idempotent(flags: Mapping[str, Any], transactional: bool) -> bool:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidConfig(f"{name} is not valid.", found=flag, expected="True or False")
        if transactional and not flag:
            raise InvalidConfig(
                "A transaction needs a producer whose repeats are known.", found=f"{name}=False", expected="True"
            )
    if len(set(flags.values())) > 1:
        raise InvalidConfig("idempotent and enable_idempotence are one option.", found=dict(flags))
    return next(iter(flags.values()), True)
