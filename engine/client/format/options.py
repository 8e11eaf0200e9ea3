"""What is to be read, as the options of Spark's Kafka source say it. Checked when they are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lakemq

from ...protocol.errors import InvalidConfig
from ..arguments import group_name, refused
from ..fetch.fetch_plan import Isolation
from .given import Given

if TYPE_CHECKING:
    from ..connection import Connection

EARLIEST, LATEST = -2, -1
"""As offsets, in JSON."""

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
    "isolation.level",
)

_TRIGGER_DELAY_MS = 15 * 60_000


@dataclass(frozen=True)
class Place:
    """A namespace, as executors reach it too. Its options may be secret: they are not shown."""

    path: str
    storage_options: Mapping[str, str] = field(repr=False)

    def connect(self) -> Connection:
        """On the driver. Raises what `lakemq.connect` does."""
        return lakemq.connect(self.path, storage_options=self.storage_options)


@dataclass(frozen=True)
class Which:
    """Topics: those named, those a pattern matches, or some partitions. One of them is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class At:
    """Where to begin, or to end: a word for all, offsets or times by topic and partition, or one time for all.

    otherwise: the word for a partition that has no message of such a time; None: an error.
    """

    word: str | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None
    times_ms: Mapping[str, Mapping[int, int]] | None = None
    time_ms: int | None = None
    otherwise: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """Of a batch, or of a stream. end: of a batch; max_offsets .. group: of a stream."""

    place: Place
    which: Which
    start: At
    end: At
    isolation: Isolation
    fail_on_data_loss: bool
    include_headers: bool
    min_tasks: int
    max_task_rows: int | None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = _TRIGGER_DELAY_MS
    group: str | None = None


def includes_headers(options: Mapping[str, str]) -> bool:
    """Whether rows have headers; other options are looked at when it is read."""
    return Given(options, (*READ_OPTIONS,)).flag("includeHeaders", False)


def batch_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises InvalidConfig."""
    given = Given(options, READ_OPTIONS)
    given.refuse(_STREAMS, "This option is for streams.")
    return ReadOptions(start=_start(given, "earliest"), end=_end(given), **_common(given))


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises InvalidConfig, InvalidGroupId."""
    given = Given(options, READ_OPTIONS)
    given.refuse(_BATCHES, "A stream has no end.")
    most, least = given.count("maxOffsetsPerTrigger"), given.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidConfig("minOffsetsPerTrigger exceeds maxOffsetsPerTrigger.", found=least, expected=most)
    group = given.get("group.id")
    return ReadOptions(
        start=_start(given, "latest"),
        end=At(word="latest"),
        max_offsets=most,
        min_offsets=least,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", _TRIGGER_DELAY_MS),
        group=None if group is None else group_name(group),
        **_common(given),
    )


def _common(given: Given) -> dict[str, Any]:
    return {
        "place": Place(given.path(), given.storage_options),
        "which": _which(given),
        "isolation": given.word("isolation.level", ("read_committed", "read_uncommitted")),
        "fail_on_data_loss": given.flag("failOnDataLoss", True),
        "include_headers": given.flag("includeHeaders", False),
        "min_tasks": given.count("minPartitions") or 1,
        "max_task_rows": given.count("maxRecordsPerPartition"),
    }


def _which(given: Given) -> Which:
    chosen = [name for name in _WHICH if given.has(name)]
    if len(chosen) != 1:
        found = " and ".join(chosen) or "none"
        raise InvalidConfig("One option says what is read.", found=found, expected=" or ".join(_WHICH))
    if chosen[0] == "subscribe":
        return Which(topics=given.topics("subscribe"))
    if chosen[0] == "assign":
        return Which(partitions=given.partitions("assign"))
    pattern = given.get("subscribePattern")
    if not pattern:
        raise refused("subscribePattern", pattern, "a regular expression", InvalidConfig)
    return Which(pattern=pattern)


def _start(given: Given, default: str) -> At:
    otherwise = given.word("startingOffsetsByTimestampStrategy", ("error", "latest"))
    at = _timed(given, "starting", None if otherwise == "error" else otherwise)
    if at is not None:
        return at
    is_batch = default == "earliest"
    words = ("earliest",) if is_batch else ("latest", "earliest")
    return _at(given, "startingOffsets", words, lowest=EARLIEST, barred=LATEST if is_batch else None)


def _end(given: Given) -> At:
    return _timed(given, "ending", "latest") or _at(
        given, "endingOffsets", ("latest",), lowest=EARLIEST, barred=EARLIEST
    )


def _timed(given: Given, prefix: str, otherwise: str | None) -> At | None:
    """The first of these wins, over offsets too, as it does in Spark's Kafka source."""
    if given.has(f"{prefix}Timestamp"):
        return At(time_ms=given.count(f"{prefix}Timestamp", 0), otherwise=otherwise)
    if given.has(f"{prefix}OffsetsByTimestamp"):
        return At(times_ms=given.by_partition(f"{prefix}OffsetsByTimestamp", 0), otherwise=otherwise)
    return None


def _at(given: Given, name: str, words: tuple[str, ...], lowest: int, barred: int | None) -> At:
    value = given.get(name)
    if value is None or not value.lstrip().startswith("{"):
        return At(word=given.word(name, words))
    offsets = given.by_partition(name, lowest)
    if any(offset == barred for numbers in offsets.values() for offset in numbers.values()):
        expected = "offsets, or -2 for the earliest" if barred == LATEST else "offsets, or -1 for the latest"
        raise InvalidConfig(f"{name} of a batch has no such offset.", found=barred, expected=expected)
    return At(offsets=offsets)
