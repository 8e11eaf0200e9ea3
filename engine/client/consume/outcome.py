"""The outcome of a poll: messages, or the reason for an empty batch."""

from __future__ import annotations

from enum import Enum


class PollOutcome(str, Enum):
    """The `outcome` of a batch. Compare it with these, or with their texts; `sentence` explains it."""

    MESSAGES = "messages"
    AT_END = "at_end"
    OTHERS_HOLD_THE_REST = "others_hold_the_rest"
    NOT_ASSIGNED = "not_assigned"
    NOT_YET = "not_yet"

    @property
    def sentence(self) -> str:
        """The outcome as a sentence, for logs and people."""
        return _SENTENCES[self]


_SENTENCES = {
    PollOutcome.MESSAGES: "The batch has messages.",
    PollOutcome.AT_END: "Nothing is left: this consumer has all partitions, and has read them to their ends.",
    PollOutcome.OTHERS_HOLD_THE_REST: "This consumer has read its partitions to their ends, if it has any; "
    "other members hold the rest.",
    PollOutcome.NOT_ASSIGNED: "The group is still sharing its partitions: this consumer has just joined, or the group "
    "waits for a member that is lost or has not given up its partitions.",
    PollOutcome.NOT_YET: "More is left in this consumer's partitions, but it cannot be read now: it is paused, "
    "delayed, not acknowledged, behind an open transaction, or took longer than the poll waited.",
}
