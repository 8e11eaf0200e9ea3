"""Dead letters: messages that a group gave up, as messages of another topic that refer to the same rows."""

from enum import StrEnum
from functools import lru_cache

import msgspec

from .base import Count, GroupRecord, Number, Request, Result, TopicRecord, Transitions
from .deliveries import DeliveryStatus, Range, SettledMessages
from .log import DataFile

REDRIVE = ""
"""Stands for a group in places that concern redriven dead letters. No group has this name."""

SUFFIX = ".dlq"
"""Appended to a topic's name for its dead-letter topic, unless dead.letter.topic names one."""


class Cause(msgspec.Struct, frozen=True):
    """The origin of a dead letter, and the reason for it. Stored as JSON with each segment of dead letters."""

    topic: str
    partition: int
    group: str
    reason: str
    error: str
    delivery_count: int


@lru_cache(1024)
def decode_cause(text: str) -> Cause:
    """Return the cause from a segment's JSON. Cached, because many segments have the same."""
    return msgspec.json.decode(text, type=Cause)


class RowLocation(msgspec.Struct, frozen=True, array_like=True):
    """The rows of the messages at offsets first to first + length (exclusive) of a partition. Other fields: see
    `segments`.
    """

    first: int
    length: int
    file_id: int
    footer_hash: int | None
    first_row: int
    file_partition: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    append_time_ms: int | None
    dead_letter: str | None


class DyingFound(msgspec.Struct, frozen=True):
    """Dying messages that the leader has located in the tables.

    group: the group that gave them up, or REDRIVE. rows: ascending and disjoint. empty: offsets that hold no message
    for the group, such as markers and aborted messages. copied: data files to which rows were copied.
    """

    group: str
    topic_id: int
    partition: int
    rows: list[RowLocation]
    empty: list[Range]
    copied: list[DataFile]


# -- requests -------------------------------------------------------------------------------------------


class SettleDeadLetters(Request, frozen=True, tag="settle_dead_letters"):  # Decided by `rules/dead_letters.py`.
    """Redrive dead letters to their topics, or (purge) mark them as finished.

    ranges: partition -> first offset and count, sorted and disjoint. topic_id: the topic in which they were chosen,
    which may be deleted by now.
    """

    topic: str
    topic_id: Number
    ranges: dict[int, list[tuple[Number, Count]]]
    purge: bool = False


class DeadLettersJudged(Result, frozen=True, tag="dead_letters_judged"):
    """How many dead letters this request settled. The others were settled before."""

    count: int


# -- records --------------------------------------------------------------------------------------------


class MessagesDeadLettered(GroupRecord, frozen=True, tag="messages_dead_lettered"):
    """Messages became dead letters, and the group has finished them. Their segments travel beside the JSON."""

    topic: str
    dead_letter_topic: str
    parts: list[SettledMessages]


class RedriveEvent(StrEnum):
    """The events that change the state of a dead letter."""

    REDRIVE = "redrive"
    """An operator wants it to go back to its topic."""
    SEND_BACK = "send back"
    """It is in its topic again."""
    PURGE = "purge"


REDRIVE_TRANSITIONS = Transitions(
    "A dead letter",
    (DeliveryStatus.AVAILABLE,),
    {
        RedriveEvent.REDRIVE: ({DeliveryStatus.AVAILABLE}, DeliveryStatus.DYING),
        RedriveEvent.SEND_BACK: ({DeliveryStatus.DYING}, DeliveryStatus.ACKNOWLEDGED),
        RedriveEvent.PURGE: ({DeliveryStatus.AVAILABLE, DeliveryStatus.DYING}, DeliveryStatus.ACKNOWLEDGED),
    },
)

ASKED_FOR, REDRIVEN, PURGED = "asked for", "redriven", "purged"
"""Reasons for which dead letters change their state, as the journal has them."""


class DeadLettersSettled(TopicRecord, frozen=True, tag="dead_letters_settled"):
    """Dead letters are to go back (dying), or have gone back or are purged (acknowledged).

    Segments of redriven dead letters travel beside the JSON, as columns.
    """

    reason: str
    parts: list[SettledMessages]

    @property
    def event(self) -> RedriveEvent:
        return _EVENTS[self.reason]


_EVENTS = {ASKED_FOR: RedriveEvent.REDRIVE, REDRIVEN: RedriveEvent.SEND_BACK, PURGED: RedriveEvent.PURGE}


REQUESTS = (SettleDeadLetters,)
RESULTS = (DeadLettersJudged,)
RECORDS = (MessagesDeadLettered, DeadLettersSettled)
