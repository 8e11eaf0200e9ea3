"""The calls that all members of groups have, and the consumer of a cooperative or classic group.

That one reads the partitions that the group assigns, and commits offsets.
"""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...namespace.progress import PartitionProgress
from ...protocol.errors import IllegalState, InvalidRequest, InvalidSessionTimeout, LakeMQError
from ...protocol.parameters import MEMBER
from ...protocol.values.groups import MAX_ASSIGNORS, OFFSET_RESETS
from ..arguments import invalid_argument, parse_choice, parse_text, parse_texts, parse_topic_names, parse_whole_number
from ..offsets import TopicPartition
from .batch import ConsumerBatch
from .consumer import Consumer, PartitionReader
from .member import Member
from .membership import Membership
from .open_members import OpenMember
from .options import MAX_CLIENT_ID, MemberOptions, Pattern, RebalanceListener
from .parts import ConsumerParts
from .position_consumer import PositionConsumer
from .position_reader import PositionMember, PositionReader, Reset
from .progress import OWN, Ends, Remainder, find_remainder_by_group

log = logging.getLogger("lakemq.consumer")


def read_member_options(topics: Sequence[str], config: Mapping[str, Any], options: Mapping[str, Any]) -> MemberOptions:
    """Check the keywords, and return the options of a member.

    Args:
        topics: names of topics; empty if there is a pattern.
        config: settings of the group that the keywords imply so far.
        options: keyword -> value; keywords that are left out have their defaults.

    Raises:
        InvalidRequest, InvalidSessionTimeout, InvalidRegularExpression, IllegalState: a keyword is not valid.
    """
    settings = dict(config)
    if settings["group.protocol"] != "queue" and options.get("ack_mode") is not None:
        raise IllegalState("Messages are acknowledged in queue groups.", found="ack_mode")
    for keyword, key in ("ack_mode", "ack.mode"), ("isolation", "isolation.level"):
        if settings["group.protocol"] == "queue" and (value := options.get(keyword)) is not None:
            settings[key] = parse_text(keyword, value)
    instance_id = options.get("instance_id")
    session_ms = _read_number("session_timeout_ms", options, InvalidSessionTimeout)
    heartbeat_ms = _read_number("heartbeat_interval_ms", options)
    if heartbeat_ms >= session_ms:
        raise InvalidRequest(
            "heartbeat_interval_ms is too long: the member would be lost between two heartbeats.",
            found=f"{heartbeat_ms} ms",
            expected=f"less than {session_ms} ms, which is session_timeout_ms",
        )
    if 3 * heartbeat_ms > session_ms:
        log.warning(
            "heartbeat_interval_ms is %d ms, more than a third of the session (session_timeout_ms, %d ms): the member"
            " may be lost when heartbeats are late.",
            heartbeat_ms,
            session_ms,
        )
    poll_ms = _read_number("max_poll_interval_ms", options)
    if poll_ms < heartbeat_ms:
        raise InvalidRequest(
            "max_poll_interval_ms is too short: only heartbeats tell the group that a member polls.",
            found=f"{poll_ms} ms",
            expected=f"at least {heartbeat_ms} ms, which is heartbeat_interval_ms",
        )
    reset = parse_choice("auto_offset_reset", options.get("auto_offset_reset", "earliest"), OFFSET_RESETS)
    pattern = options.get("pattern")
    return MemberOptions(
        topics,
        None if pattern is None else Pattern(pattern),
        None if instance_id is None else parse_text("instance_id", instance_id),
        session_ms,
        heartbeat_ms,
        poll_ms,
        reset,
        _read_client_id(options.get("client_id")),
        settings,
        _read_assignors(options.get("assignor")),
    )


def _read_assignors(assignor: Any) -> list[str]:
    """Return the assignors that the member supports, the best first; empty if it supports all."""
    if assignor is None:
        return []
    names = [parse_text("assignor", assignor)] if isinstance(assignor, str) else parse_texts("assignor", assignor)
    names = list(dict.fromkeys(names))
    if not 1 <= len(names) <= MAX_ASSIGNORS:
        raise invalid_argument("assignor", assignor, f"a name, or a list of 1 to {MAX_ASSIGNORS} names")
    return names


def _read_client_id(client_id: Any) -> str | None:
    if client_id is None:
        return None
    if not 1 <= len(parse_text("client_id", client_id)) <= MAX_CLIENT_ID:
        raise InvalidRequest(
            "client_id is not valid.",
            found=f"{len(client_id)} characters",
            expected=f"1 to {MAX_CLIENT_ID} characters",
        )
    return str(client_id)


def _read_number(name: str, options: Mapping[str, Any], error: type[LakeMQError] = InvalidRequest) -> int:
    """Return the option, or its default. Raises `error` unless it is a number in the option's range."""
    setting = MEMBER[name.replace("_", ".")]
    return parse_whole_number(name, options.get(name, setting.default), setting.low, setting.high, error)


_REBALANCE_MS = 30_000
"""Time for a rebalance delay of the group, a change of sequencers, and the steps in which partitions move."""


@dataclass(frozen=True)
class _HeldPart:
    """The unread part of a partition when it was first seen with this owner."""

    owner: str | None
    end: int
    count: int


class MemberConsumer(Consumer):
    """A consumer that is a member of its group: a `GroupConsumer` or a `QueueConsumer`. Thread-safe.

    A member that does not poll for max_poll_interval_ms, or whose process sends no heartbeat for session_timeout_ms, is
    lost, and other members get its partitions; its next `poll` joins the group again.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        member: Member,
        reader: PartitionReader,
        listener: RebalanceListener | None,
    ) -> None:
        """Put the parts together. None of them may refer to the consumer, which would then never be garbage.

        listener: is kept for the member; the others as in `Consumer`.
        """
        options = member.membership.options
        # time to find out that a member is dead or does not poll, and to move its partitions
        super().__init__(parts, reader, options.max_poll_interval_ms + options.session_timeout_ms + _REBALANCE_MS)
        self._member, self._listener = member, listener
        self._started_ms, self._is_starting, self._alive = parts.clock.steady_ms(), True, set[str]()
        self._held_parts: dict[TopicPartition, _HeldPart] = {}
        self._longest_session_ms = options.session_timeout_ms
        waiter = parts.waiter

        def close(leave: bool | None) -> None:
            member.close(leave)
            waiter.close()

        self._open_member = OpenMember(parts.group, member, close)

    @abstractmethod
    def go_back(self, batch: ConsumerBatch) -> bool:
        """Get an unprocessed batch again; return whether all its partitions still belong to the consumer."""

    @property
    def member_id(self) -> str:
        """The id of the member. It changes when the member was lost and has joined again."""
        return self._member.member_id

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the consumer has, as of the last `poll`."""
        with self._lock.own:
            return sorted(self._member.partitions)

    def subscription(self) -> list[str]:
        """Return the topics that the consumer asks for, by name; of a pattern, those that match as of now."""
        with self._lock.own:
            return self._member.list_topics()

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        """Ask for these topics, or those that match the pattern, instead of what the consumer asked for before.

        The group knows when this returns, and the partitions follow with the next polls. Until then `assignment` and
        positions stay, and messages that were read may be committed or acknowledged. A poll gives up the partitions
        of topics that are not asked for any more, as in any rebalance (`on_revoked`; in a queue group `on_lost`, if
        nothing of them was left to acknowledge). Partitions of both the old and the new subscription stay, with their
        positions; but a classic group revokes and assigns all partitions.

        Args:
            topics: names of topics.
            pattern: regular expression (RE2) instead of `topics`, as in `mq.consumer`.

        Raises:
            InvalidRequest, InvalidTopic, InvalidRegularExpression: the arguments are not valid.
            UnknownTopicOrPartition: a topic does not exist. The consumer asks for the same as before.
            IllegalState: the consumer is closed.
            RequestTimedOut: no sequencer has answered. The consumer asks for the same as before.
        """
        names = parse_topic_names("topics", topics)
        if bool(names) == (pattern is not None):
            raise InvalidRequest("Nothing, or two things, to subscribe to.", expected="either topics or a pattern")
        compiled = None if pattern is None else Pattern(pattern)
        with self._lock.own:
            self._member.subscribe(names, compiled)

    def unsubscribe(self) -> None:
        """Leave the group, also as a static member. Other members get the partitions at once.

        `on_revoked` is called first, so that you can commit there; in a queue group acknowledge and
        `flush` before. Afterwards the consumer has no partitions and no positions, and a poll raises IllegalState.
        After `subscribe` it is a member again.
        """
        with self._lock.own:
            self._member.unsubscribe()

    def is_rebalancing(self) -> bool:
        """Return whether the group was moving partitions at the last `poll`. This member may then get some soon."""
        return self._member.is_rebalancing

    def group_lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets that the group is not done with, in all partitions of this member's topics.

        It includes partitions of other members, and those without a member. It counts from what the group has committed
        or acknowledged, not from positions.

        Returns:
            (topic, partition) -> offsets.
        """
        with self._lock.own:
            progress = self._member.membership.read_progress()
            return {tp: partition.count_remaining(partition.end) for tp, partition in progress.items()}

    def close(self, leave: bool | None = None) -> None:
        """Stop polling, and leave the group. In a forked process this does nothing.

        Args:
            leave: whether other members get the partitions at once. Left out, they do unless the member is static: a
                static member is expected back within its session.

        Raises:
            LakeMQError: the leave failed. The consumer cannot be used any more.
        """
        self._open_member.close(leave)

    # -- how much of its partitions the group has not read, whichever members have them ---------------------

    def _list_positions(self) -> Mapping[TopicPartition, int]:
        """Return the positions of the consumer's partitions, if they say how far it has come."""
        return {}

    def _find_ends(self) -> Ends:
        """Return the end of each partition of the group, as of now."""
        with self._lock.own:
            self._member.check_open()
            progress = self._member.membership.read_progress()
            return {tp: (partition.topic_id, partition.end) for tp, partition in progress.items()}

    def _find_remainder(self, ends: Ends) -> Remainder:
        """Return what the group is not done with before these ends, and who has it."""
        with self._lock.own:
            self._member.check_open()
            membership = self._member.membership
            progress = {tp: partition for tp, partition in membership.read_progress().items() if tp in ends}
            remainder = find_remainder_by_group(ends, progress, self._list_positions(), membership.member_id)
            if any(part.owner == OWN for part in remainder.values()):
                return remainder
            # Other members may be done although their commits are before the ends: see _has_messages.
            return remainder if any(self._has_messages(tp, progress[tp], ends) for tp in remainder) else {}

    def _has_messages(self, tp: TopicPartition, progress: PartitionProgress, ends: Ends) -> bool:
        """Return whether messages are left before the end.

        A member commits the offset after its last message. Between that and the end there may be markers of
        transactions and aborted messages, which no member will ever commit.
        """
        (topic, partition), end = tp, ends[tp][1]
        if progress.deliveries is not None or progress.readable_end < end:
            return True  # a queue group acknowledges those, too; an open transaction may still commit
        fetched = self._parts.fetcher.try_to_fetch(
            topic, progress.topic_id, {partition: progress.next_offset}, {partition: end}
        )
        return fetched is None or fetched.record_count > 0

    def _waits_for_others(self) -> bool:
        """Return whether members of other processes hold unread messages, and may be dead.

        A consumer that starts does not know whether the members that it finds are alive. The group finds out when
        their sessions end. Until then a member is trusted only if it has made progress since. Members of this process
        are alive, and may need the thread that polls.
        """
        if not self._is_starting:
            return False
        with self._lock.own:
            membership = self._member.membership
            sessions_ms = membership.read_sessions_elsewhere()
            self._longest_session_ms = max(self._longest_session_ms, *sessions_ms.values(), 0)
            if not (sessions_ms or self._member.is_rebalancing):
                return False
            waited_ms = self._clock.steady_ms() - self._started_ms
            self._is_starting = waited_ms < self._longest_session_ms + _REBALANCE_MS
            return self._is_starting and any(
                self._is_held(tp, partition)
                if partition.owner is None or partition.owner in sessions_ms
                else partition.owner == membership.member_id and tp not in self._member.partitions
                for tp, partition in membership.read_progress(newest=False).items()
            )

    def _is_held(self, tp: TopicPartition, partition: PartitionProgress) -> bool:
        """Return whether unread messages are left in the partition, and its owner has not shown that it lives."""
        if partition.owner in self._alive:
            return False
        part = self._held_parts.get(tp)
        if part is None or part.owner != partition.owner or not part.count:
            end = partition.readable_end
            count = partition.count_remaining(end)
            if count and not self._has_messages(tp, partition, {tp: (partition.topic_id, end)}):
                count = 0
            part = self._held_parts[tp] = _HeldPart(partition.owner, end, count)
        if partition.owner is not None and partition.count_remaining(part.end) < part.count:
            self._alive.add(partition.owner)
            return False
        return part.count > 0


class GroupConsumer(MemberConsumer, PositionConsumer):
    """A member of a group. Each `poll` tells it which partitions it has. Thread-safe; close it, or use it with `with`.

    Each partition belongs to one member at a time. A member that does not poll for max_poll_interval_ms, or whose
    process sends no heartbeat for session_timeout_ms, is lost, and other members get its partitions; its next `poll`
    joins the group again. A commit counts while the partition belongs to the consumer. After that it raises
    FencedMemberEpoch and changes nothing.

    Classic and cooperative groups differ in what the group's state says, not in this class. In a classic group all
    partitions are revoked first, and a new generation assigns them. In a cooperative group only the partitions that
    move are revoked.

    Example:
        >>> with mq.consumer("bill", topics=["orders"], protocol="cooperative") as consumer:  # doctest: +SKIP
        ...     consumer.commit(consumer.poll(timeout_ms=1_000))
    """

    def __init__(
        self, parts: ConsumerParts, membership: Membership, reset: Reset, listener: RebalanceListener | None
    ) -> None:
        """Join the group. Raises what joining is refused with. reset: where to begin without a committed offset."""
        self._partitions = member = PositionMember(parts.lock, membership, listener)
        reader = member.reader = PositionReader(parts, member, reset)
        super().__init__(parts, member, reader, listener)
        membership.join()

    def _list_positions(self) -> Mapping[TopicPartition, int]:
        return self._reader.list_known_offsets()

    def go_back(self, batch: ConsumerBatch) -> bool:
        """Read an unprocessed batch again, as after a transaction that was aborted.

        Partitions that belong to other members by now are left to those.

        Args:
            batch: of this consumer.

        Returns:
            Whether all partitions of the batch still belong to the consumer.

        Raises:
            IllegalState: the consumer is closed.
        """
        with self._lock.own:
            still_owned = self._member.find_still_owned(batch)
            self._reader.go_back({tp: start for tp, start in batch.starts.items() if tp in still_owned})
            return len(still_owned) == len(batch.offsets)
