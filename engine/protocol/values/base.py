"""The bases of requests, results and records, numbers within bounds, and state machines as tables."""

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec

from lakemq.tables.specs.messages import FILE_IDS, MAX_TIMESTAMP_US, MIN_TIMESTAMP_US

log = logging.getLogger("lakemq")

MAX_SEQUENCE = 2**31 - 1
MAX_EPOCH = 2**15 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Rows, bytes and indexes. Small enough that no sum of a letter's numbers overflows 64 bits."""
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

Millis = Annotated[int, msgspec.Meta(ge=-(2**54), le=2**54)]
"""Epoch milliseconds of any timestamp in microseconds, also of a rejected row."""
_LAST_MS = MAX_TIMESTAMP_US // 1000
MessageMillis = Annotated[int, msgspec.Meta(ge=MIN_TIMESTAMP_US, le=_LAST_MS)]
"""Epoch milliseconds of a message."""
Hash = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
UnitPartition = Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)]
"""The partition of a unit; for a unit of delayed rows, -1 minus the partition."""
DueMillis = Annotated[int, msgspec.Meta(ge=-1, le=_LAST_MS)]
"""Epoch milliseconds; -1 for rows that are not delayed."""
FileIndex = Annotated[int, msgspec.Meta(ge=-1, le=2**31)]
FileId = Annotated[int, msgspec.Meta(ge=0, lt=FILE_IDS)]


class Request(msgspec.Struct, frozen=True, tag_field="request", omit_defaults=True):
    """Base of all requests."""


# Results and records are trees of plain values. Without gc=False the garbage collector would look at all that a pass
# waits for, again and again, and find no cycle.


class Result(msgspec.Struct, frozen=True, tag_field="outcome", omit_defaults=True, gc=False):
    """Base of all results but Refusal."""


class Done(Result, frozen=True, tag="done"):
    pass


class Record(msgspec.Struct, frozen=True, tag_field="record", gc=False):
    """Base of all records: one decision, in the past tense. `tag` is the kind that the journal stores."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def subject(self) -> str:
        return ""


class GroupRecord(Record, frozen=True):
    """Base of the records about a group."""

    group: str

    @property
    def subject(self) -> str:
        return self.group


class TopicRecord(Record, frozen=True):
    """Base of the records about a topic."""

    topic_id: int
    topic: str

    @property
    def subject(self) -> str:
        return self.topic


class TransactionRecord(Record, frozen=True):
    """Base of the records about a transactional id."""

    transactional_id: str

    @property
    def subject(self) -> str:
        return self.transactional_id


# Fields that a request, its record, the state, and a row of a table have in common, under the same names.


def find_shared_fields(first: type, second: type, *others: str) -> tuple[str, ...]:
    """Return the fields that two classes have in common, structs or dataclasses.

    others: names to leave out, because the two hold them in different forms, or mean different things by them.
    """
    names = {*_list_fields(first)} - {*others}
    return tuple(name for name in _list_fields(second) if name in names)


def _list_fields(kind: Any) -> Iterable[str]:
    return kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else [field.name for field in fields(kind)]


def copy_fields(source: object, names: Iterable[str]) -> dict[str, Any]:
    """Return these fields by name."""
    return {name: getattr(source, name) for name in names}


# State machines as tables: which event leads from which states to which state. The docs draw them.


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)

_logged: set[str] = set()


def log_defect(defect: str) -> None:
    """Log a defect once per process: readers fold the same records again and again."""
    if defect not in _logged:
        _logged.add(defect)
        log.error("%s Please report this defect of LakeMQ, with the journal rows of this step.", defect)


@dataclass(frozen=True)
class Transitions(Generic[S, E]):
    """The states of one kind of thing, and the events that change them.

    subject: its name, for people. starts: the states in which it may begin. table: event -> the states in which the
    event may come, and the state that follows. An event leads to one state, so that a move has a result even if the
    table does not allow it.
    """

    subject: str
    starts: tuple[S, ...]
    table: Mapping[E, tuple[Set[S], S]]

    report: ClassVar[Callable[[str], None]] = staticmethod(log_defect)
    """Is called with a move that the table does not allow. Tests raise an error instead. Elsewhere folding must not
    fail, because a record is already decided.
    """

    def move(self, before: S, event: E) -> S:
        """Return the state that follows. A move that the table does not allow is reported, and made all the same."""
        allowed, after = self.table[event]
        if before not in allowed:
            Transitions.report(
                f"{self.subject} cannot go from {before.value} to {after.value} by the event '{event.value}'. "
                "The move was made all the same."
            )
        return after

    def allows(self, before: S, after: S) -> bool:
        """Return whether an event leads from one state to the other."""
        return any(before in allowed and after is target for allowed, target in self.table.values())

    def find_events_to(self) -> dict[S, E]:
        """Return the event that leads to each state, for tables in which no two events lead to the same state."""
        return {after: event for event, (_, after) in self.table.items()}
