"""The positions that a transaction has consumed: offsets and messages of groups, which its commit stores."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.errors import InvalidRequest
from ...protocol.values.consuming.offsets import CommitOffsets, OffsetCommit
from ...protocol.values.kinds import AnyRequest
from ...protocol.values.producers import TransactionRef
from ...protocol.values.queues.deliveries import Acknowledge, Acknowledgement
from ..offsets import ConsumedMessages


class ConsumedPositions:
    """The positions of one transaction, by group. Not thread-safe: the transaction's lock protects it."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[tuple[str, int], OffsetCommit]] = {}
        self._messages: dict[str, list[Acknowledgement]] = {}
        """By queue group, the messages that the commit acknowledges."""
        self._members: dict[str, str | None] = {}
        self._generations: dict[str, int | None] = {}
        """By group, the member that commits its offsets."""

    def __bool__(self) -> bool:
        return bool(self._offsets or self._messages)

    def add(self, group: str, consumed: object, commits: Sequence[OffsetCommit]) -> None:
        """Add offsets or messages of a group.

        New offsets of a partition replace those that were added before. Messages add up, and may be added twice.

        Args:
            consumed: where they come from: a consumer's batch, or a mapping that the caller gave.
            commits: the offsets, if they are no messages of a queue.

        Raises:
            InvalidRequest: another member of the group has added some before.
        """
        member_id = getattr(consumed, "member_id", None)
        if (other := self._members.setdefault(group, member_id)) != member_id:
            raise InvalidRequest(
                f"Offsets of two members of the group {group} in one transaction.", found=member_id, expected=other
            )
        self._generations[group] = getattr(consumed, "generation", None)
        if isinstance(consumed, ConsumedMessages):
            self._messages.setdefault(group, []).extend(consumed.messages)
            return
        commits_by_partition = self._offsets.setdefault(group, {})
        commits_by_partition.update({(commit.topic, commit.partition): commit for commit in commits})

    def build_requests(self, ref: TransactionRef) -> list[AnyRequest]:
        """Return the requests that make the positions part of the transaction."""
        requests: list[AnyRequest] = [
            CommitOffsets(group, list(commits.values()), ref, self._members.get(group), self._generations.get(group))
            for group, commits in self._offsets.items()
            if commits
        ]
        requests += [
            Acknowledge(group, self._members.get(group) or "", messages, ref)
            for group, messages in self._messages.items()
            if messages
        ]
        return requests

    def forget_sent(self) -> None:
        """Forget the positions, which the sequencer has now. The groups keep their members."""
        self._offsets.clear()
        self._messages.clear()

    def clear(self) -> None:
        """Forget everything, for the next transaction."""
        self.forget_sent()
        self._members.clear()
        self._generations.clear()
