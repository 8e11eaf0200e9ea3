"""Dead letters: messages that a group gave up, as messages of another topic, which point at the same rows."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from .base import Count, Number, Record, Request, Result
from .deliveries import Range, Settled

REDRIVE = ""
"""Stands for a group where dead letters are what is to go: no group has this name."""

SUFFIX = ".dlq"
"""Of the topic that has a topic's dead letters, where dead.letter.topic names none."""


class Cause(msgspec.Struct, frozen=True):
    """Where a dead letter comes from, and why it is one; with every segment of dead letters, as JSON."""

    topic: str
    partition: int
    group: str
    reason: str
    error: str
    delivery_count: int


@lru_cache(1024)
def cause_of(text: str) -> Cause:
    """As a segment bears it: many of them bear the same."""
    return msgspec.json.decode(text, type=Cause)


class Located(msgspec.Struct, frozen=True, array_like=True):
    """Where messages are: offsets first .. first + length of a partition. The rest is as in `segments`."""

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
    """Where messages are that are dying: what a look of the leader's has found in the tables.

    group: that gave them up, or REDRIVE; rows: ascending and apart; empty: offsets that hold no message for the group:
    markers, what was aborted.
    """

    group: str
    topic_id: int
    partition: int
    rows: list[Located]
    empty: list[Range]


# -- what is asked --------------------------------------------------------------------------------------


class SettleDeadLetters(Request, frozen=True, tag="settle_dead_letters"):
    """Dead letters are to go back to where they come from, or (purge) to count as done with.

    ranges: partition -> first offset and count, sorted and apart. topic_id: of the topic in which they were chosen,
    whatever has its name by now.
    """

    topic: str
    topic_id: Number
    ranges: dict[int, list[tuple[Number, Count]]]
    purge: bool = False


class DeadLettersJudged(Result, frozen=True, tag="dead_letters_judged"):
    """How many of them are settled by this; of the others it was said before."""

    count: int


# -- what is decided ------------------------------------------------------------------------------------


class MessagesDeadLettered(Record, frozen=True, tag="messages_dead_lettered"):
    """Messages became dead letters; the group is done with them. The segments travel beside the JSON, as columns."""

    group: str
    topic: str
    dead_letter_topic: str
    parts: list[Settled]

    @property
    def subject(self) -> str:
        return self.group


class DeadLettersSettled(Record, frozen=True, tag="dead_letters_settled"):
    """Dead letters are to go back (dying), have gone (acknowledged), or are done with. Where they have gone the
    segments travel beside the JSON, as columns.
    """

    topic_id: int
    topic: str
    reason: str
    parts: list[Settled]

    @property
    def subject(self) -> str:
        return self.topic


REQUESTS = (SettleDeadLetters,)
RESULTS = (DeadLettersJudged,)
RECORDS = (MessagesDeadLettered, DeadLettersSettled)
