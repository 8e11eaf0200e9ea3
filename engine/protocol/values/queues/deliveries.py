"""Deliveries: members of queue groups acquire messages and settle them. `partition_deliveries.py` has the state."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from ..base import Count, GroupRecord, Number, Request, Result
from ..consuming.assignments import InPartition, TopicIdPartition
from ..consuming.groups import Assigned
from ..producers import TransactionRef
from .stretches import DeathReason, DeliveryEvent, DeliveryStatus, Range

MAX_RANGES = 100_000
"""Ranges in one acknowledgement."""

MAX_ERROR_LENGTH = 1_000
"""Characters of the text that a member may add when it gives a message back."""


class AckOutcome(str, Enum):
    """The decision of a member about messages."""

    ACCEPT = "accept"
    """They are finished."""
    RELEASE = "release"
    """They should be delivered again."""
    REJECT = "reject"
    """They must not be delivered again."""
    UNSEEN = "unseen"
    """The application has not seen them: their delivery does not count."""
    EXPIRE = "expire"
    """They had expired, and the application was not shown them."""


class WantedMessages(Assigned, frozen=True, array_like=True):
    """How many messages of a partition a member wants, at most."""

    count: Count


class Acquire(Request, frozen=True, tag="acquire"):
    """Ask for messages for a member. Messages that were given back come before new ones."""

    group: str
    member_id: str
    wanted: list[WantedMessages]


class Acknowledgement(Assigned, frozen=True, array_like=True):
    """The decision of a member about messages of a partition.

    ranges: first offset and count, sorted and disjoint. delay_ms: for released ones, the wait before redelivery; None:
    the group's setting. deliveries: the number of the delivery that it is about, starting at 1; after another delivery
    it is too late; None: the last one. error: the reason for messages that are not accepted, for their dead letters.
    """

    outcome: AckOutcome
    ranges: list[tuple[Number, Count]]
    delay_ms: Count | None = None
    deliveries: Count | None = None
    error: Annotated[str, msgspec.Meta(max_length=MAX_ERROR_LENGTH)] = ""


class Acknowledge(Request, frozen=True, tag="acknowledge"):
    """Settle messages that a member has. Inside a transaction they can only be accepted, and are so when it commits."""

    group: str
    member_id: str
    parts: list[Acknowledgement]
    transaction: TransactionRef | None = None


class AcknowledgementsJudged(Result, frozen=True, tag="acknowledgements_judged"):
    """All messages that the member has are settled. The others are listed by the index of their part.

    fenced: parts that are refused as a whole, because the member does not own the partition any more, or got it again.
    invalid: parts with messages that the member does not have. refused: these messages, one list per invalid part.
    """

    fenced: list[int]
    invalid: list[int]
    refused: list[list[Range]] = []


# -- records --------------------------------------------------------------------------------------------


class MessageRanges(InPartition, frozen=True, array_like=True):
    """Messages of a partition."""

    ranges: list[Range]


class MessagesAcquired(GroupRecord, frozen=True, tag="messages_acquired"):
    """Messages are delivered to a member. The first ones of a partition set where the group starts in it."""

    member_id: str
    taken: list[MessageRanges]


class SettledMessages(InPartition, frozen=True, array_like=True):
    """Messages of a partition and their new state.

    uncounted: their last delivery does not count. reason, error: why they are dying; for expired ones that become no
    dead letters, why they are finished.
    """

    status: DeliveryStatus
    ranges: list[Range]
    not_before_ms: int = 0
    uncounted: bool = False
    reason: DeathReason | None = None
    error: str = ""


BY_MEMBER, COMMITTED, ABORTED = "member", "committed", "aborted"
"""Reasons for which messages change their state while their partition stays with its owner."""

DEAD_LETTERS, NO_MESSAGES = "dead letters", "no messages"
"""Reasons for which dying messages are finished: they became dead letters, or their offsets hold no messages."""


class MessagesSettled(GroupRecord, frozen=True, tag="messages_settled"):
    """Delivered messages change their state. reason: one of those above, or why the member lost them.

    transactional_id: the transaction in which they are pending.
    """

    reason: str
    parts: list[SettledMessages]
    transactional_id: str | None = None

    def find_event(self, part: SettledMessages) -> DeliveryEvent:
        """Return the event that changes the state of a part's messages."""
        return _EVENTS_BY_REASON.get((self.reason, part.status)) or _EVENTS[part.status]


_EVENTS_BY_REASON = {
    (COMMITTED, DeliveryStatus.ACKNOWLEDGED): DeliveryEvent.COMMIT,
    (ABORTED, DeliveryStatus.AVAILABLE): DeliveryEvent.ABORT,
    (DEAD_LETTERS, DeliveryStatus.ACKNOWLEDGED): DeliveryEvent.DEAD_LETTER,
    (NO_MESSAGES, DeliveryStatus.ACKNOWLEDGED): DeliveryEvent.DEAD_LETTER,
}
_EVENTS = {
    DeliveryStatus.ACQUIRED: DeliveryEvent.ACQUIRE,
    DeliveryStatus.ACKNOWLEDGED: DeliveryEvent.ACCEPT,
    DeliveryStatus.AVAILABLE: DeliveryEvent.RELEASE,
    DeliveryStatus.WAITING: DeliveryEvent.DELAY,
    DeliveryStatus.DYING: DeliveryEvent.GIVE_UP,
    DeliveryStatus.PENDING: DeliveryEvent.ADD_TO_TRANSACTION,
}
"""The events for all other reasons."""


class MessagesPassed(GroupRecord, frozen=True, tag="messages_passed"):
    """Messages before this offset are deleted, and the group skips them."""

    topic_id: int
    partition: int
    offset: int

    @property
    def topic_partition(self) -> TopicIdPartition:
        return self.topic_id, self.partition


REQUESTS = (Acquire, Acknowledge)
RESULTS = (AcknowledgementsJudged,)
RECORDS = (MessagesAcquired, MessagesSettled, MessagesPassed)
