"""The options of reads, as in Spark's Kafka source, and the parser that checks them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lakemq

from ...protocol.errors import InvalidConfig
from ...protocol.parameters import to_milliseconds
from ..arguments import check_unit, invalid_argument, parse_choice, parse_group_name, parse_path, parse_whole_number
from ..fetch.rows import Isolation
from ..schemas import SchemaRule

if TYPE_CHECKING:
    from ..connection import Connection


# Parse the options of Spark: text under names whose case does not matter.
#
# Each option is parsed where it is used, and an unknown option is refused. Every function raises InvalidConfig with the
# option's name, the value found and the value expected. Values of options that may be secret are never repeated.


KAFKAS = "kafka."
"""Prefix of Kafka client options in Spark's Kafka source. Options that also exist here may keep it."""

STORAGE = "storage."
"""Prefix of options for the object store, as `storage_options` of lakemq.connect."""

NO_TABLES = (
    "Spark passes none of a table's options to a source in Python: instead of CREATE TABLE ... USING lakemq use CREATE"
    " TEMPORARY VIEW, from which you SELECT and into which you INSERT."
)

_QUERY_NAME = "queryname"
"""Spark adds this to the options of a stream that has a name."""


class OptionParser:
    """The options of one read or write.

    names: the options that exist, as the docs spell them. others: those of other reads and writes, which are ignored: a
    view is read and written with the same options.
    """

    def __init__(self, options: Mapping[str, str], names: Iterable[str], others: Iterable[str]) -> None:
        self._names = {name.lower(): name for name in names}
        self._values: dict[str, str] = {}
        self.storage_options: dict[str, str] = {}
        ignored = {_QUERY_NAME, *(name.lower() for name in others)} - self._names.keys()
        for name, value in options.items():
            key = name.lower()
            if key.startswith(STORAGE):
                self.storage_options[key.removeprefix(STORAGE).upper()] = value
            elif key not in ignored:
                self._add(key, value)

    def _add(self, key: str, value: str) -> None:
        plain = key.removeprefix(KAFKAS)
        if plain != key and plain not in ("group.id", "isolation.level"):
            raise InvalidConfig("This is an option of Kafka's client, which is not used here.", found=key)
        if plain not in self._names:
            near = difflib.get_close_matches(plain, self._names, n=1, cutoff=0.5)
            if near:
                text = f"Unknown option of the format lakemq; did you mean {self._names[near[0]]}?"
                raise InvalidConfig(text, found=key)
            expected = ", ".join(sorted(self._names.values()))
            raise InvalidConfig("Unknown option of the format lakemq.", found=key, expected=expected)
        if plain in self._values:
            raise InvalidConfig("An option is given twice.", found=self._names[plain])
        self._values[plain] = value

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def path(self) -> str:
        """Return the path or URI of the namespace."""
        if not self.get("path"):
            text = f"The format lakemq needs an option path. {NO_TABLES}"
            raise InvalidConfig(text, expected="the path or URI of a namespace")
        return parse_path("path", self.get("path"), InvalidConfig)

    def word(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, whatever its case. The first is the default."""
        value = self.get(name)
        return choices[0] if value is None else parse_choice(name, value.strip().lower(), choices, InvalidConfig)

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str, low: int = 1) -> int | None:
        value = self.get(name)
        return None if value is None else _parse_number(name, value, low)

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Parse a duration such as `15m`, `30s` or `500ms`."""
        value = self.get(name)
        if value is None:
            return default_ms
        duration_ms = to_milliseconds(re.sub(r"(?<=\d)\s+(?=[a-z])", "", value.strip().lower()))
        if not isinstance(duration_ms, int):
            raise invalid_argument(name, value, "a duration such as 15m, 30s or 500ms", InvalidConfig)
        return duration_ms

    def topics(self, name: str) -> tuple[str, ...]:
        """Parse topics separated by commas: at least one, each once."""
        names = tuple(dict.fromkeys(part.strip() for part in (self.get(name) or "").split(",") if part.strip()))
        if not names:
            raise invalid_argument(name, self.get(name), "topics, separated by commas", InvalidConfig)
        return names

    def partitions(self, name: str) -> dict[str, tuple[int, ...]]:
        """Parse JSON, {"topic": [0, 1]}."""
        expected = '{"topic": [partition, ...], ...}'
        parsed = _parse_json_object(name, self.get(name), expected)
        if not parsed or not all(isinstance(listed, list) and listed for listed in parsed.values()):
            raise invalid_argument(name, self.get(name), expected, InvalidConfig)
        return {
            topic: tuple(sorted({parse_whole_number(name, p, 0, 2**31 - 1, InvalidConfig) for p in listed}))
            for topic, listed in parsed.items()
        }

    def by_partition(self, name: str, low: int) -> dict[str, dict[int, int]]:
        """Parse JSON, {"topic": {"0": number}}."""
        expected = '{"topic": {"partition": number, ...}, ...}'
        parsed = _parse_json_object(name, self.get(name), expected)
        if not parsed or not all(isinstance(numbers, dict) and numbers for numbers in parsed.values()):
            raise invalid_argument(name, self.get(name), expected, InvalidConfig)
        return {
            topic: {
                _parse_number(name, p, 0): parse_whole_number(name, number, low, error=InvalidConfig)
                for p, number in numbers.items()
            }
            for topic, numbers in parsed.items()
        }

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise InvalidConfig if one of these options is set."""
        for name in names:
            if self.has(name):
                raise InvalidConfig(why, found=name)


def _parse_number(name: str, value: str, low: int) -> int:
    text = value.strip()
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise invalid_argument(name, value, f"a whole number of at least {low}", InvalidConfig)
    return parse_whole_number(name, int(text), low, error=InvalidConfig)


def _parse_json_object(name: str, value: str | None, expected: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value or "")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise invalid_argument(name, value, f"JSON: {expected}", InvalidConfig)
    return parsed


EARLIEST, LATEST = -2, -1
"""As offsets, in JSON."""


# The options of reads and of publishing, by these parsers.


_WHICH = ("subscribe", "subscribePattern", "assign")
_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group.id")
_BATCHES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
READ_OPTIONS = (
    "path",
    *_WHICH,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    *_BATCHES,
    *_STREAMS,
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "parseValues",
    "isolation.level",
)

WRITE_OPTIONS = ("path", "topic", "includeHeaders", "onError", "txnAppId", "txnVersion")

_TRIGGER_DELAY_MS = 15 * 60_000


@dataclass(frozen=True)
class NamespaceLocation:
    """A namespace, as executors reach it too. Storage options may be secret, so they are not shown."""

    path: str
    storage_options: Mapping[str, str] = field(repr=False)

    def connect(self) -> Connection:
        """Connect, on the driver. Raises what `lakemq.connect` raises."""
        return lakemq.connect(self.path, storage_options=self.storage_options)


@dataclass(frozen=True)
class TopicSelection:
    """The topics to read: by name, by pattern, or some partitions. Exactly one of these is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OffsetBound:
    """The beginning or end of a read: a word, offsets or times by topic and partition, or one time for all.

    fallback: the word for a partition without a message of the time. None: that is an error.
    """

    word: str | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None
    times_ms: Mapping[str, Mapping[int, int]] | None = None
    time_ms: int | None = None
    fallback: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """The options of a batch or a stream.

    end: only for a batch; schema: parses values; max_offsets to group: only for a stream.
    """

    location: NamespaceLocation
    selection: TopicSelection
    start: OffsetBound
    end: OffsetBound
    isolation: Isolation
    fail_on_data_loss: bool
    include_headers: bool
    min_tasks: int
    max_task_rows: int | None
    schema: SchemaRule | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = _TRIGGER_DELAY_MS
    group: str | None = None


def _make_parser(options: Mapping[str, str]) -> OptionParser:
    return OptionParser(options, READ_OPTIONS, others=WRITE_OPTIONS)


def includes_headers(options: Mapping[str, str]) -> bool:
    """Return whether rows have headers. Other options are checked later, when the data is read."""
    return _make_parser(options).flag("includeHeaders", False)


def parses_values(options: Mapping[str, str]) -> bool:
    """Return whether rows have a column of typed values."""
    return _make_parser(options).flag("parseValues", False)


def parse_selection_options(options: Mapping[str, str]) -> tuple[NamespaceLocation, TopicSelection]:
    """Return the namespace and the topics of a batch or a stream. Raises InvalidConfig."""
    parser = _make_parser(options)
    return NamespaceLocation(parser.path(), parser.storage_options), _parse_selection(parser)


def parse_batch_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch. Raises InvalidConfig."""
    parser = _make_parser(options)
    parser.refuse(_STREAMS, "This option is for streams.")
    return ReadOptions(start=_parse_start(parser, "earliest"), end=_parse_end(parser), **_parse_common(parser))


def parse_stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a stream. Raises InvalidConfig, InvalidGroupId."""
    parser = _make_parser(options)
    parser.refuse(_BATCHES, "A stream has no end.")
    most, least = parser.count("maxOffsetsPerTrigger"), parser.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidConfig("minOffsetsPerTrigger exceeds maxOffsetsPerTrigger.", found=least, expected=most)
    group = parser.get("group.id")
    return ReadOptions(
        start=_parse_start(parser, "latest"),
        end=OffsetBound(word="latest"),
        max_offsets=most,
        min_offsets=least,
        max_trigger_delay_ms=parser.duration_ms("maxTriggerDelay", _TRIGGER_DELAY_MS),
        group=None if group is None else parse_group_name(group),
        **_parse_common(parser),
    )


def _parse_common(parser: OptionParser) -> dict[str, Any]:
    return {
        "location": NamespaceLocation(parser.path(), parser.storage_options),
        "selection": _parse_selection(parser),
        "isolation": parser.word("isolation.level", ("read_committed", "read_uncommitted")),
        "fail_on_data_loss": parser.flag("failOnDataLoss", True),
        "include_headers": parser.flag("includeHeaders", False),
        "min_tasks": parser.count("minPartitions") or 1,
        "max_task_rows": parser.count("maxRecordsPerPartition"),
    }


def _parse_selection(parser: OptionParser) -> TopicSelection:
    chosen = [name for name in _WHICH if parser.has(name)]
    if len(chosen) != 1:
        text = " and ".join(chosen) or "none"
        raise InvalidConfig("One option says what is read.", found=text, expected=" or ".join(_WHICH))
    if chosen[0] == "subscribe":
        return TopicSelection(topics=parser.topics("subscribe"))
    if chosen[0] == "assign":
        return TopicSelection(partitions=parser.partitions("assign"))
    pattern = parser.get("subscribePattern")
    if not pattern:
        raise invalid_argument("subscribePattern", pattern, "a regular expression", InvalidConfig)
    return TopicSelection(pattern=pattern)


def _parse_start(parser: OptionParser, default: str) -> OffsetBound:
    fallback = parser.word("startingOffsetsByTimestampStrategy", ("error", "latest"))
    at = _parse_time_bound(parser, "starting", None if fallback == "error" else fallback)
    if at is not None:
        return at
    is_batch = default == "earliest"
    words = ("earliest",) if is_batch else ("latest", "earliest")
    return _parse_offset_bound(parser, "startingOffsets", words, lowest=EARLIEST, barred=LATEST if is_batch else None)


def _parse_end(parser: OptionParser) -> OffsetBound:
    return _parse_time_bound(parser, "ending", "latest") or _parse_offset_bound(
        parser, "endingOffsets", ("latest",), lowest=EARLIEST, barred=EARLIEST
    )


def _parse_time_bound(parser: OptionParser, prefix: str, fallback: str | None) -> OffsetBound | None:
    """Parse options of time. As in Spark's Kafka source, the first of these wins, also over offsets."""
    name, by_partition = f"{prefix}Timestamp", f"{prefix}OffsetsByTimestamp"
    if (time_ms := parser.count(name, 0)) is not None:
        check_unit(name, time_ms, InvalidConfig)
        return OffsetBound(time_ms=time_ms, fallback=fallback)
    if parser.has(by_partition):
        times_ms = parser.by_partition(by_partition, 0)
        for time_ms in (time_ms for times in times_ms.values() for time_ms in times.values()):
            check_unit(by_partition, time_ms, InvalidConfig)
        return OffsetBound(times_ms=times_ms, fallback=fallback)
    return None


def _parse_offset_bound(
    parser: OptionParser, name: str, words: tuple[str, ...], lowest: int, barred: int | None
) -> OffsetBound:
    value = parser.get(name)
    if value is None or not value.lstrip().startswith("{"):
        return OffsetBound(word=parser.word(name, words))
    offsets = parser.by_partition(name, lowest)
    if any(offset == barred for numbers in offsets.values() for offset in numbers.values()):
        expected = "offsets, or -2 for the earliest" if barred == LATEST else "offsets, or -1 for the latest"
        raise InvalidConfig(f"{name} of a batch has no such offset.", found=barred, expected=expected)
    return OffsetBound(offsets=offsets)
