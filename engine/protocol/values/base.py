"""The bases of requests, results and records, and numbers within bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lakemq.tables.specs.messages import FILE_IDS

MAX_SEQUENCE = 2**31 - 1
MAX_EPOCH = 2**15 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Rows, bytes and indexes. Small enough that no sum of a letter's numbers overflows 64 bits."""
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

Millis = Annotated[int, msgspec.Meta(ge=-(2**54), le=2**54)]
"""Epoch milliseconds that also fit a timestamp in microseconds."""
Hash = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
UnitPartition = Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)]
"""The partition of a unit; for a unit of delayed rows, -1 minus the partition."""
DueMillis = Annotated[int, msgspec.Meta(ge=-1, le=2**54)]
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
