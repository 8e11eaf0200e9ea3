"""A consumer of a `queue` group: it gets messages, and gives each an outcome: accept, release or reject.

How a poll works. The group's state says which messages this member has acquired, and the consumer follows the state
step by step. `poll` does three things: it shows acquired messages that were not shown before, it requests (`Acquire`)
the messages of the next poll, and it sends outcomes that were recorded meanwhile. A poll that has messages to show does
not wait for an answer. The next poll sees the acquired messages in the steps, so they are usually there when the user
polls. A poll without messages waits for the request that is under way, up to a second beyond its timeout.

Its parts. A `QueueReader` polls. One `AckTracker` per partition knows which messages were shown, and which outcomes the
user has recorded. The `AckSender` sends these, and repeats them until the group has answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import wait
from contextlib import nullcontext

from ...protocol.errors import InvalidRequest, RequestTimedOut, UnknownMemberId
from ...protocol.values.deliveries import AckOutcome
from ...protocol.values.offsets import OffsetCommit
from ..arguments import parse_partition_offsets, parse_whole_number
from ..fetch.fetch_result import Message
from ..offsets import ConsumedOffsets, TopicPartition
from ..tracing import open_commit_span, traces_commit
from .batch import ConsumerBatch, Messages, QueueBatch, shorten_error, spans_of_messages
from .consumer import find_offsets_to_commit
from .group_consumer import MemberConsumer
from .member import QueueMember
from .membership import Membership
from .options import RebalanceListener
from .outcomes import LONGEST_WAIT_MS, AckSender, AckTracker, can_send_again
from .parts import ConsumerParts, check_assignment
from .queue_poll import QueueReader

_SEND_EVERY_MS = 50
"""How long acknowledgements of single messages gather before they are sent."""
_SEND_AT_COUNT = 10_000
"""How many of them gather at most, per partition."""
_FLUSH_MS = 60_000
"""How long a flush waits, unless its caller says otherwise."""
_PAUSE_MS = 5
"""How long a flush sleeps before it repeats requests without an answer."""


class QueueConsumer(MemberConsumer):
    """A member of a `queue` group. Thread-safe; close it, or use it with `with`.

    Each partition belongs to one member at a time, and its messages are in order. Messages that `poll` has brought
    belong to the member until it acknowledges (`ack`), gives back (`nack`) or rejects them, until the partition moves
    to another member, or until the member is lost. Messages without an acknowledgement are then delivered again, with
    a higher delivery_count. A partition that the group takes back moves when all messages that the member acquired
    from it have an outcome, or after max.handoff.ms.

    It has no `seek`: a queue delivers what is next. To have it otherwise, reset the group's offsets.

    Example:
        >>> with mq.consumer("ship", topics=["orders"]) as consumer:  # doctest: +SKIP
        ...     for order in consumer:
        ...         consumer.ack(order)
    """

    _member: QueueMember
    _reader: QueueReader

    def __init__(self, parts: ConsumerParts, membership: Membership, listener: RebalanceListener | None) -> None:
        """Join the group. Raises what joining is refused with."""
        clock = parts.clock
        self._trackers: dict[TopicPartition, AckTracker] = {}
        self._steady_ms = clock.steady_ms  # an attribute, because `ack` calls it for each message
        self._ack_sender = AckSender(membership, clock, self._trackers)
        member = QueueMember(parts.lock, membership, listener, self._trackers, self._ack_sender)
        reader = QueueReader(parts, member, self._ack_sender)
        super().__init__(parts, member, reader, listener)
        membership.join()

    def poll(self, max_records: int = 10_000, timeout_ms: int = 0, poll_ms: int = 20) -> QueueBatch:
        """Return the next messages, for the member to acknowledge.

        It also requests the messages of the next poll, so that they are there when that one comes. With ack.mode auto
        it acknowledges all messages of the polls before.

        Args:
            max_records: the most messages that are returned. They come evenly from all partitions. Fewer come if the
                member would not acknowledge them within `max.handoff.ms`, by its pace so far.
            timeout_ms: how long to wait for the first message. Messages that are there are returned in any case. A
                consumer that has just started waits longer while members of other processes hold unread messages and
                make no progress: they may be dead, and their sessions not be over. Any poll, also with 0, waits up to a
                second longer for the answer to its request for messages.
            poll_ms: how long to wait before looking again, if nothing tells of a new step sooner.

        Returns:
            A batch, which is empty and says why in `outcome` and `waits_for` if no message came.

        Raises:
            NoOffsetForPartition: the group has committed nothing, and `auto_offset_reset` is `none`.
            IllegalState: during the whole timeout the member had as many unacknowledged messages as it may have.
            InvalidRecordState: an earlier acknowledgement named messages that the member did not have. This is raised
                before the poll takes any message.
        """
        batch: QueueBatch = self._poll(max_records, timeout_ms, poll_ms, is_patient=True)
        return batch

    # -- acknowledging ----------------------------------------------------------------------------------

    def ack(self, what: Messages) -> None:
        """Accept a message, a list of messages or a batch, without waiting. To accept a message twice is fine.

        Single messages gather, and travel with a later call: with the next `ack` 50 ms or more after the last request,
        or with `poll`, `nack` and the others. No timer sends them, so call `flush` before you pause. If single messages
        are refused, the next `flush`, `commit` or `poll` raises that once; no other call does.

        Args:
            what: a message, a list of messages or a batch.

        Raises:
            FencedMemberEpoch: the partition does not belong to the member any more.
            InvalidRecordState: the member was not given these messages, or has given them back. The error names them;
                all others are accepted.
        """
        # Fast path for a single message: it takes no lock, and reads fields by index, which is faster than by name.
        if type(what) is Message and type(what[2]) is int and 0 <= what[2] < 2**63 and what[7] == 1:
            tracker = self._trackers.get((what[0], what[1]))
            if tracker is None:
                raise self._member.build_fenced_error([(what[0], what[1])])
            tracker.single_acks.append(what[2])
            if self._trackers.get((what[0], what[1])) is not tracker:  # a poll in another thread has lost the partition
                raise self._member.build_fenced_error([(what[0], what[1])])
            is_due = self._steady_ms() >= self._ack_sender.sent_at_ms + _SEND_EVERY_MS
            if is_due or len(tracker.single_acks) >= _SEND_AT_COUNT:
                with self._lock.own:
                    self._ack_sender.send()
            return
        self._record(AckOutcome.ACK, what)

    def ack_through(self, what: Message | ConsumerBatch | Mapping[TopicPartition, int]) -> None:
        """Accept all messages that the member was given up to this message or batch, without waiting.

        Args:
            what: a message, which is accepted too; a batch, up to its end; or (topic, partition) -> the offset after
                the last one to accept.

        Raises:
            FencedMemberEpoch: a partition does not belong to the member any more. The others are accepted.
            InvalidRequest: the argument is not valid.
        """
        if isinstance(what, Message):
            ends = {(what.topic, what.partition): parse_whole_number("offset", what.offset, 0) + 1}
        elif isinstance(what, ConsumerBatch):
            ends = dict(what.offsets)
        else:
            ends = {tp: parse_whole_number("what", end, 0) for tp, end in parse_partition_offsets("what", what).items()}
        with self._lock.own:
            self._member.ack_through(ends, what.offsets if isinstance(what, ConsumerBatch) else None)

    def nack(self, what: Messages, delay_ms: int | None = None, error: str = "") -> None:
        """Give messages back, without waiting: they are delivered again.

        After max.redelivery.count more deliveries they become dead letters instead. With nack.order `partition` no
        later message of their partitions is shown before them. Later ones that were prefetched are returned, and their
        delivery does not count.

        Args:
            what: a message, messages or a batch.
            delay_ms: how long they wait first; left out, as nack.backoff.ms says.
            error: what went wrong, for the dead letters; at most 1000 characters of it.

        Raises:
            FencedMemberEpoch, InvalidRecordState: as `ack` does.
        """
        delay_ms = None if delay_ms is None else parse_whole_number("delay_ms", delay_ms, 0, 2**40)
        self._record(AckOutcome.NACK, what, delay_ms, shorten_error(error))

    def reject(self, what: Messages, error: str = "") -> None:
        """Make messages dead letters at once, without waiting: they are never delivered again.

        Args:
            what: a message, messages or a batch.
            error: what went wrong, for the dead letters; at most 1000 characters of it.

        Raises:
            FencedMemberEpoch, InvalidRecordState: as `ack` does.
        """
        self._record(AckOutcome.REJECT, what, error=shorten_error(error))

    def _record(self, outcome: AckOutcome, what: Messages, delay_ms: int | None = None, error: str = "") -> None:
        with self._lock.own:
            self._member.record(outcome, what, delay_ms, error)

    def go_back(self, batch: ConsumerBatch) -> bool:
        """Give back the messages of a batch that have no outcome, as after a transaction that was aborted.

        Args:
            batch: of this consumer.

        Returns:
            Whether all partitions of the batch still belong to the consumer.

        Raises:
            IllegalState: the consumer is closed.
        """
        with self._lock.own:
            owned = self._member.read_owned()
            still_owned = [tp for tp in self._member.find_still_owned(batch) if tp in owned]
            spans = spans_of_messages(batch)
            self._member.nack_open({tp: spans[tp] for tp in spans if tp in still_owned}, owned)
            return len(still_owned) == len(batch.offsets)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until the group has noted all acknowledgements made so far. Unanswered ones are sent again.

        Args:
            timeout_ms: how long to wait; left out, a minute.

        Raises:
            RequestTimedOut: the time is over. The acknowledgements are sent again later.
            UnknownMemberId: the member was lost, and joins again with its next poll.
            FencedMemberEpoch, InvalidRecordState: some acknowledgements were refused; the others are noted. Of several
                such errors, each is the `__cause__` of the one before it.
        """
        limit_ms = _FLUSH_MS if timeout_ms is None else parse_whole_number("timeout_ms", timeout_ms, 0)
        with self._lock.own:
            has_acks = self._ack_sender.start_flush()
        with open_commit_span(self.group) if has_acks else nullcontext():
            self._flush(limit_ms)

    def _flush(self, limit_ms: int) -> None:
        """Flush, but do not wait for what other threads acknowledge meanwhile. The lock is not held while waiting."""
        deadline_ms, sender = self._clock.steady_ms() + limit_ms, self._ack_sender
        while True:
            with self._lock.own:
                if sender.is_lost:
                    raise UnknownMemberId("The member was lost; it joins again with the next poll.")
                sender.send()
                unanswered = set(sender.list_open_requests())
            left_ms = deadline_ms - self._clock.steady_ms()
            if not unanswered or left_ms <= 0:
                break
            done, unanswered = wait(unanswered, min(left_ms, LONGEST_WAIT_MS) / 1000)
            with self._lock.own:
                sender.collect_answers()
            if any(can_send_again(error) for request in done if (error := request.exception()) is not None):
                self._clock.sleep(_PAUSE_MS)
            elif not unanswered:
                break
        if unanswered:
            raise RequestTimedOut("Acknowledgements were not answered in time; they are sent again.")
        with self._lock.own:
            sender.refusals.raise_all()

    @traces_commit
    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Accept all messages through `what`, or all that were brought, and wait until the group has noted that.

        Args:
            what: as with `ack_through`; left out, all messages that were brought.
            metadata: not for queue groups.

        Returns:
            The offsets after the messages that were accepted.

        Raises:
            InvalidRequest: there is metadata.
            LakeMQError: an error of `ack_through` or `flush`.
        """
        if metadata is not None:
            raise InvalidRequest("A queue group notes no metadata.", found="metadata")
        offsets = find_offsets_to_commit(what, self._lock, self._find_consumed_offsets)
        self.ack_through(offsets if what is None else what)
        self._flush(_FLUSH_MS)
        return offsets

    def _find_consumed_offsets(self, named: Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        """Return the ends of all open messages; or the named offsets, but none past the messages that were brought."""
        if named is None:
            open_spans = {tp: tracker.list_open_spans() for tp, tracker in self._trackers.items()}
            ends = {tp: spans[-1][1] for tp, spans in open_spans.items() if spans}
        else:
            ends = {
                tp: min(offset, self._trackers[tp].brought_end) if tp in self._trackers else offset
                for tp, offset in parse_partition_offsets("what", named).items()
            }
        return self._member.build_offsets(ends, {})

    # -- where it is ------------------------------------------------------------------------------------

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions that the consumer has."""
        with self._lock.own:
            return self._member.read_committed()

    def position(self, topic: str, partition: int) -> int:
        """Return the first offset of the partition that was never delivered.

        Args:
            topic: name of the topic.
            partition: number of the partition.

        Raises:
            IllegalState: the partition is not assigned.
        """
        with self._lock.own:
            owned = self._member.read_owned()
            check_assignment((topic, partition), owned)
            deliveries = owned[topic, partition].deliveries
            assert deliveries is not None
            return deliveries.next_offset

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of unfinished offsets up to the end of the log, also of those that cannot be read yet.

        It counts the partitions that this consumer has now, and no others; see `group_lag()`.

        Returns:
            (topic, partition) -> offsets.
        """
        with self._lock.own:
            return {tp: partition.left_count for tp, partition in self._member.read_owned().items()}
