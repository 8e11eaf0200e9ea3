"""Settings of the engine: `conf/lakemq.yaml`, checked key by key on load."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..protocol.errors import InvalidConfig
from ..protocol.parameters import GROUP, MEMBER, TOPIC, Parameter, Parameters, Value
from ..protocol.values.decision import Limits

VARIABLE = "LAKEMQ_CONF"
EXPECTATIONS = "expectations"
"""Folder of expectation suites, beside the settings file."""
_DAY_MS = 86_400_000
_HOST = r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})"
"""A name, an IPv4 address, or an IPv6 address in brackets."""

ENGINE = Parameters(
    [
        Parameter("engine.tick.ms", 0, "Least time from the start of one step to the start of the next.", 0, 60_000),
        Parameter(
            "engine.idle.ms",
            250,
            "Longest time between two looks into the mailbox while nothing happens.",
            1,
            60_000,
        ),
        Parameter("step.max.letters", 2000, "Most letters decided in one step.", 1, 100_000),
        Parameter(
            "step.max.bytes",
            64 << 20,
            "Memory for letters after which a step takes no more; of each request a KiB.",
            1 << 20,
            1 << 31,
        ),
        Parameter(
            "step.timeout.ms", 60_000, "Time after which a step is given up, and the lease with it.", 1000, _DAY_MS
        ),
        Parameter(
            "lease.ms",
            10_000,
            "A standby takes over when no step came for so long.",
            500,
            _DAY_MS // 48,
        ),
        Parameter(
            "line.listen",
            "",
            "Address on which `serve` accepts clients of other machines over TCP; port 0: any. Empty: none.",
            pattern=_HOST + ":[0-9]{1,5}",
            example="10.0.0.5:7788",
        ),
        Parameter(
            "line.advertise",
            "",
            "Address by which clients reach `line.listen`, if it is another; without a port: the same port.",
            pattern=_HOST + "(:[0-9]{1,5})?",
            example="mq.example.org:7788",
        ),
        Parameter(
            "project.interval.ms",
            1000,
            "Time between two projections. After a thousand steps one comes sooner.",
            0,
            3_600_000,
        ),
        Parameter(
            "inline.max.bytes",
            262_144,
            "Largest batch of rows that travels in its request; others get files.",
            0,
            16 << 20,
        ),
        Parameter(
            "journal.rows.max.bytes",
            262_144,
            "Message rows that a step holds until the next projection; more are a data file at once.",
            0,
            16 << 20,
        ),
        Parameter("mailbox.max.letters", 100_000, "Waiting letters above which a request is refused.", 1, 10_000_000),
        Parameter(
            "request.timeout.ms",
            30_000,
            "How long a client waits for an answer; less than client.expiration.ms.",
            1,
            _DAY_MS,
        ),
        Parameter("request.gap.ms", 10_000, "How long a letter waits for the one before it.", 0, _DAY_MS),
        Parameter(
            "client.expiration.ms",
            3_600_000,
            "Silence after which a client's last answer is forgotten.",
            60_000,
            365 * _DAY_MS,
        ),
        Parameter(
            "producer.id.expiration.ms",
            _DAY_MS,
            "Silence after which a producer's sequences are forgotten.",
            60_000,
            365 * _DAY_MS,
        ),
        Parameter(
            "transactional.id.expiration.ms",
            7 * _DAY_MS,
            "Silence after which a transactional id is forgotten.",
            60_000,
            365 * _DAY_MS,
        ),
        Parameter(
            "offsets.retention.ms",
            7 * _DAY_MS,
            "How long a group without members keeps what it has committed; -1: for good. A group may have its own.",
            -1,
            3650 * _DAY_MS,
        ),
        Parameter(
            "transaction.max.timeout.ms",
            900_000,
            "Longest transaction.timeout.ms a producer may ask for.",
            1,
            _DAY_MS,
        ),
        Parameter(
            "publish.max.duration.ms",
            _DAY_MS,
            "Longest time from writing a data file to the request that names it.",
            60_000,
            30 * _DAY_MS,
        ),
        Parameter(
            "retention.check.interval.ms",
            300_000,
            "Time between two looks for messages that retention.ms or retention.bytes of their topic deletes.",
            1000,
            _DAY_MS,
        ),
        Parameter(
            "final.interval.ms",
            60_000,
            "Time between two looks for messages to write to `final_messages`, where they are read from then on."
            " 0: none; what is in that table stays.",
            0,
            _DAY_MS,
        ),
        Parameter(
            "final.removed.ms",
            7 * _DAY_MS,
            "How long a stream of `final_messages` may be down: removed files and entries of the log stay so long, at "
            "most 10,000 times `final.interval.ms`. For queries, files stay for `merge.grace.ms` if that is longer.",
            60_000,
            365 * _DAY_MS,
        ),
        Parameter(
            "journal.retention.ms",
            3_600_000,
            "How long decisions stay in the journal once projected.",
            0,
            3650 * _DAY_MS,
        ),
        Parameter(
            "transaction.log.retention.ms",
            7 * _DAY_MS,
            "How long the rows of transactions that have ended stay in `transactions`.",
            0,
            3650 * _DAY_MS,
        ),
        Parameter(
            "group.history.ms",
            7 * _DAY_MS,
            "How long `assignment_history` and `handoffs` show who had which partition of a group.",
            0,
            3650 * _DAY_MS,
        ),
        Parameter(
            "change.retention.ms",
            90 * _DAY_MS,
            "How long `admin_log` and `admin_changes` show who changed what; at most the newest 50,000 changes.",
            0,
            3650 * _DAY_MS,
        ),
        Parameter(
            "sample.retention.ms",
            7 * _DAY_MS,
            "How long `samples`, charts and `report` reach back.",
            0,
            3650 * _DAY_MS,
        ),
        Parameter(
            "reader.grace.ms",
            600_000,
            "How long files that compaction replaced stay for running queries.",
            1000,
            _DAY_MS // 4,
        ),
        Parameter(
            "assignor.timeout.ms",
            1000,
            "How long an assignor plug-in may compute an assignment. After that a built-in assignor does it.",
            1,
            600_000,
        ),
        Parameter(
            "merge.grace.ms",
            _DAY_MS,
            "How long small data files stay once their rows are in a larger one, for queries that run or were planned.",
            0,
            30 * _DAY_MS,
        ),
        Parameter(
            "delay.load.ahead.ms",
            120_000,
            "How long before messages are due their due times are read from data files.",
            0,
            _DAY_MS,
        ),
        Parameter(
            "delay.load.max.ranges",
            100_000,
            "Due times that a sequencer holds at most, unless more are due at once; the rest is read later.",
            1,
            100_000_000,
        ),
        Parameter(
            "delay.history.ms",
            7 * _DAY_MS,
            "How long `delayed_history` shows released and cancelled messages, and receipts tell their outcome.",
            0,
            400 * _DAY_MS,
        ),
        Parameter("release.max.ranges", 5_000, "Ranges of delayed messages that one step releases.", 1, 10_000_000),
        Parameter("checkpoint.interval", 50, "Commits of a table between two checkpoints of its log.", 5, 10_000),
        Parameter("compact.min.files", 64, "Small files of a table that are merged into one.", 2, 100_000),
    ]
)


_EVERY = Parameters(
    {**GROUP.declared, **TOPIC.declared, **MEMBER.declared, **ENGINE.declared}.values()  # the engine's win
)


MEANINGS = {parameter.name: parameter.meaning for parameter in (*TOPIC.declared.values(), *GROUP.declared.values())}
"""Setting of a topic or of a group -> its meaning."""


class EngineConfig(Mapping[str, Value]):
    """All settings of the engine, with their defaults, and the defaults of topics, groups and members.

    Attributes:
        expectations: the folder of suites with which publishers check rows. None: there is none.
        topic_defaults, group_defaults: settings that topics and groups get when they are created.
        member_defaults: options of consumers, by keyword.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, expectations: Path | None = None) -> None:
        parsed = _EVERY.parse(settings or {})
        self._values = {**ENGINE.defaults(), **_select(parsed, ENGINE)}
        timeout_ms, expiration_ms = self.ms("request.timeout.ms"), self.ms("client.expiration.ms")
        if timeout_ms >= expiration_ms:  # else a client could wait for an answer that is forgotten
            raise InvalidConfig(
                "request.timeout.ms must be below client.expiration.ms.",
                found=timeout_ms,
                expected=f"below {expiration_ms}",
            )
        self.expectations = expectations
        self.topic_defaults = _select(parsed, TOPIC)
        self.group_defaults = {
            key: value for key, value in _select(parsed, GROUP).items() if key not in ENGINE.declared
        }
        self.member_defaults = {key.replace(".", "_"): value for key, value in _select(parsed, MEMBER).items()}

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def ms(self, key: str) -> int:
        """Return a whole number. Its unit is in the setting's name."""
        value = self._values[key]
        assert isinstance(value, int), key
        return value

    number = ms

    def text(self, key: str) -> str:
        """Return a setting that is a text."""
        value = self._values[key]
        assert isinstance(value, str), key
        return value


def _select(values: Mapping[str, Value], parameters: Parameters) -> dict[str, Value]:
    return {key: value for key, value in values.items() if key in parameters.declared}


def build_limits(config: EngineConfig) -> Limits:
    """Return the settings that decisions depend on."""
    return Limits(
        client_expiration_ms=config.ms("client.expiration.ms"),
        producer_id_expiration_ms=config.ms("producer.id.expiration.ms"),
        transactional_id_expiration_ms=config.ms("transactional.id.expiration.ms"),
        transaction_max_timeout_ms=config.ms("transaction.max.timeout.ms"),
        offsets_retention_ms=config.ms("offsets.retention.ms"),
        topic_defaults=config.topic_defaults,
        group_defaults=config.group_defaults,
        makes_final=config.ms("final.interval.ms") > 0,
    )


_MOST_YAML_CHARACTERS = 1 << 20
_MOST_YAML_DEPTH = 64
"""The time to read nested brackets grows with the square of their depth."""
_MOST_YAML_NODES = 100_000
"""With the nodes of each anchor as often as it is used."""


class _UniqueKeys(yaml.SafeLoader):
    """A YAML loader that refuses a repeated key, and what takes long. YAML itself silently takes the last one."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._nodes_of: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias, nodes_before = self.check_event(yaml.AliasEvent), self._nodes
        self._depth += 1
        if self._depth > _MOST_YAML_DEPTH:
            raise yaml.YAMLError(f"it is nested in more than {_MOST_YAML_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._nodes += self._nodes_of.get(id(node), 1) if is_alias else 1
        self._nodes_of[id(node)] = self._nodes - nodes_before
        if self._nodes > _MOST_YAML_NODES:
            raise yaml.YAMLError(f"it has more than {_MOST_YAML_NODES} values")
        return node


def _construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise InvalidConfig("A key is not text.", found=f"{key!r} in line {key_node.start_mark.line + 1}")
        if key in values:
            raise InvalidConfig("A key stands twice.", found=f"{key} in line {key_node.start_mark.line + 1}")
        values[key] = loader.construct_object(value_node, deep=True)
    return values


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document. Raises InvalidConfig, ValueError: it is not valid, or a key stands twice."""
    if len(text) > _MOST_YAML_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_YAML_CHARACTERS} characters")
    try:
        return yaml.load(text, _UniqueKeys)
    except (yaml.YAMLError, RecursionError, ArithmeticError, LookupError) as error:  # whatever a constructor raises
        raise ValueError(str(error)) from error


def load_config(path: str | None = None, overrides: Mapping[str, Any] | None = None) -> EngineConfig:
    """Load the settings of the file named, else of $LAKEMQ_CONF, else the defaults. `overrides` win.

    Raises:
        InvalidConfig: a file that cannot be read, an unknown or repeated key, or a bad value.
    """
    name = os.path.expanduser(path or os.environ.get(VARIABLE) or "")
    overrides = _EVERY.parse(overrides or {})
    if not name:
        return EngineConfig(overrides)
    suites = Path(name).absolute().parent / EXPECTATIONS
    try:
        return EngineConfig({**_read_settings(name), **overrides}, suites if suites.is_dir() else None)
    except InvalidConfig as error:
        raise InvalidConfig(f"In {name}: {error.detail}", found=error.found, expected=error.expected) from error


def _read_settings(name: str) -> dict[str, Any]:
    """Return the settings of a file, not checked yet."""
    try:
        loaded = parse_yaml(Path(name).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"Cannot read it: {error}", expected="a YAML file in UTF-8") from error
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise InvalidConfig(f"Cannot read it: {why}", expected="a YAML file of key: value lines") from error
    if loaded is not None and not isinstance(loaded, dict):
        raise InvalidConfig("It holds no settings.", found=type(loaded).__name__, expected="key: value lines")
    return loaded or {}
