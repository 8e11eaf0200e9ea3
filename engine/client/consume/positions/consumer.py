"""A consumer of assigned partitions: it reads on from the group's committed offsets, and commits new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ....namespace.processes.clock import Clock
from ....namespace.processes.process import OwnLock
from ....protocol.errors import (
    IllegalState,
    OffsetOutOfRange,
    ThrottlingQuotaExceeded,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ....protocol.values.consuming.offsets import CommitOffsets, FetchOffsets, OffsetCommit, OffsetsFetched
from ...arguments import (
    invalid_argument,
    parse_choice,
    parse_partition_offsets,
    parse_text,
    parse_topic_partitions,
    parse_whole_number,
)
from ...fetch.fetch_result import FetchResult, Message
from ...fetch.planning.plan import Bounds, Isolation, check_isolation
from ...offsets import ConsumedOffsets, TopicPartition, build_offset_commits
from ...requester import Requester
from ..batch import ConsumerBatch, Ownership
from ..iteration import POLL_RECORDS, Unseen, UnseenPositions, iterate
from ..outcome import PollOutcome
from ..poll_parts import cut_to_messages, fetch_parts
from ..poll_sizes import poll_sizes
from ..until_end import Ends, Left, find_left_by_positions, read_until_end
from .positions import Positions, ReadPosition, Reset, check_assignment

_RETRY_MS = 20
_PASSING_MS = 1_000
"""How long a poll goes on past offsets without visible messages, even with a shorter timeout."""
_MAX_PASSED = 16_384
"""Offsets that a poll passes at once, unless it may return more messages than these."""

_Moves = dict[TopicPartition, tuple[ReadPosition, ReadPosition]]
"""(topic, partition) -> its position before a poll, and since."""


class Consumer:
    """Reads the partitions it was assigned. Thread-safe; close it, or use it as a context manager.

    A position is the next offset to read. It begins at the group's committed offset. Where the group has committed
    nothing, or the offset was deleted, it begins at `auto_offset_reset`. A partition that is added later, or that
    belongs to a topic created again under its old name, is read from its start. Of its topics the consumer reads all
    partitions, also those added later.
    """

    def __init__(
        self,
        requester: Requester,
        bounds: Callable[[Iterable[str], Isolation], Mapping[TopicPartition, Bounds]],
        fetch: Callable[..., FetchResult],
        clock: Clock,
        group: str,
        topics: Sequence[str],
        assign: Sequence[TopicPartition],
        auto_offset_reset: Reset = "earliest",
        isolation: Isolation = "read_committed",
        default_timeout_ms: int = 60_000,
        consumer_timeout_ms: int | None = None,
    ) -> None:
        """Begin to read; nothing is polled yet.

        Args:
            requester: sends requests to the sequencer.
            bounds: returns the bounds of all partitions of some topics, as of now.
            fetch: fetches ranges of a topic.
            clock: the consumer's clock.
            group: the group whose offsets are read and committed.
            topics: topics whose partitions are all read.
            assign: single partitions that are read.
            auto_offset_reset, isolation, default_timeout_ms, consumer_timeout_ms: as in `mq.consumer`.

        Raises:
            UnknownTopicOrPartition, InvalidRequest: an argument is not valid.
        """
        parse_choice("auto_offset_reset", auto_offset_reset, ("earliest", "latest", "none"))
        check_isolation(isolation)
        self._requester, self._topic_bounds, self._fetch, self._clock = requester, bounds, fetch, clock
        self.group, self._isolation = group, isolation
        self._timeout_ms = parse_whole_number("default_timeout_ms", default_timeout_ms, 0)
        self._iteration_timeout_ms = (
            None if consumer_timeout_ms is None else parse_whole_number("consumer_timeout_ms", consumer_timeout_ms, 0)
        )
        self._lock = OwnLock("This consumer", threading.RLock())
        self._topics, self._assigned = frozenset(topics), frozenset(assign)
        self._positions = Positions(group, auto_offset_reset, lambda: self._read_bounds(), lambda: self.committed())
        self._paused_by_user: set[TopicPartition] = set()
        self._revoked: set[TopicPartition] = set()
        """Partitions that a group wants back. They are read no further."""
        self._has_begun = self._closed = False
        self._read_bounds()

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, max_records: int = 100_000, timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """Return the next messages, and move the positions past them.

        Args:
            max_records: the most messages that are returned. They come evenly from all partitions.
            timeout_ms: how long to wait for the first message. Messages that are there are returned in any case. If
                the next offsets are expired or aborted, the poll reads past them for up to a second.
            poll_ms: how long to sleep before looking again.

        Returns:
            A batch, which is empty and says why in `outcome` if no message came.

        Raises:
            NoOffsetForPartition, OffsetOutOfRange: only with `auto_offset_reset="none"`.
            IllegalState: the consumer is closed.
        """
        max_records, poll_ms = (
            parse_whole_number("max_records", max_records, 1),
            parse_whole_number("poll_ms", poll_ms, 0),
        )
        begun_ms = self._clock.steady_ms()
        deadline_ms = begun_ms + parse_whole_number("timeout_ms", timeout_ms, 0)
        passed: ConsumedOffsets | None = None
        moves: _Moves = {}
        read_ahead = 0
        try:
            while True:
                with self._lock.own:
                    self._begin_poll()
                    while (batch := self._read_next(max_records, moves, read_ahead)) is None:
                        pass  # messages were deleted between looking and reading: look again
                    batch.ownership = self._find_ownership(batch.offsets)
                has_moved = bool(batch.offsets)
                # The batch says where to go on also for partitions that had nothing visible.
                batch.offsets = passed = batch.offsets if passed is None else passed.followed_by(batch.offsets)
                if batch:
                    return batch
                read_ahead = min(4 * max(read_ahead, max_records), _MAX_PASSED) if has_moved else 0
                end_ms = max(deadline_ms, begun_ms + _PASSING_MS) if has_moved else deadline_ms
                if self._clock.steady_ms() >= end_ms and not self._expects_messages(deadline_ms):
                    batch = self._finish_empty(batch)
                    batch.outcome = self._explain_empty()
                    return batch
                if not has_moved:
                    self._rest(min(poll_ms, max(1, deadline_ms - self._clock.steady_ms())))
        except BaseException:  # also an interrupt: the user has not seen these messages
            with self._lock.own:
                self._undo_moves(moves)
            raise

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages one by one, and wait for more: `for message in consumer`.

        The loop ends when the consumer is closed, by the loop itself or by another thread; and with
        `consumer_timeout_ms`, when no message has come for so long. That says nothing about what is left: see `lag`.
        Messages are read 500 at a time, but each counts as read when the loop gets it. So `position`, and a `commit`
        without arguments, are just behind the last message that the loop got; what it did not get, the next `poll` or
        loop reads. Raises what `poll` raises.
        """
        return iterate(
            self._lock,
            lambda: self._closed,
            lambda: self._mark_unseen(self.poll(POLL_RECORDS)),
            self._begin_poll,
            self._waits_for_partitions,
            self._rest,
            self._clock,
            self._iteration_timeout_ms,
        )

    def _mark_unseen(self, batch: ConsumerBatch) -> Unseen:
        return UnseenPositions(batch, lambda: self._positions.by_place, lambda: self._paused_by_user | self._revoked)

    def _waits_for_partitions(self) -> bool:
        """Return whether the consumer has no partitions yet, and is about to get some."""
        return False

    def _find_ownership(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, Ownership]:
        """Return since when a member of a group has these partitions; empty for assigned partitions."""
        return {}

    def _expects_messages(self, deadline_ms: float) -> bool:
        """Return whether messages are on their way, so that the poll waits a moment longer."""
        return False

    def _finish_empty(self, batch: ConsumerBatch) -> ConsumerBatch:
        """Complete an empty batch with reasons, or raise if the caller has to act before anything comes."""
        return batch

    def _explain_empty(self) -> PollOutcome:
        """Return why a poll brought nothing."""
        with self._lock.own:
            return PollOutcome.NOT_YET if self._is_behind() else PollOutcome.AT_END

    def _is_behind(self) -> bool:
        """Return whether something is left before the ends of the partitions."""
        bounds = self._read_bounds()
        offsets = {place: position.offset for place, position in self._positions.by_place.items() if place in bounds}
        return any(offset is None or offset < bounds[place].end for place, offset in offsets.items())

    def _rest(self, ms: int) -> None:
        """Sleep until polling again is worthwhile, at most this long."""
        self._clock.sleep(ms)

    def _undo_moves(self, moves: _Moves) -> None:
        """Move positions back to where they were before a poll that failed."""
        for place, (before, after) in moves.items():
            if self._positions.by_place.get(place) is after:
                self._positions.by_place[place] = before

    def _begin_poll(self) -> None:
        """Do what comes before each look for messages. Raise IllegalState if the consumer is closed."""
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalState("The consumer is closed.")

    def _read_next(self, max_records: int, moves: _Moves, read_ahead: int) -> ConsumerBatch | None:
        """Read the next messages and move the positions; return None to be called again.

        Args:
            max_records: the most messages of the batch.
            moves: positions that the poll has moved so far; this call adds its own.
            read_ahead: among how many offsets to look, after a stretch without visible messages. A stretch of expired
                or aborted messages may be long, so each look takes four times as many offsets as the one before.
        """
        bounds, offsets = self._positions.settle()
        resting = self._paused_by_user | self._revoked
        behind = {place: bounds[place].end - offset for place, offset in offsets.items() if place not in resting}
        sizes = poll_sizes(behind, max(max_records, read_ahead))
        ends = {place: offsets[place] + count for place, count in sizes.items() if count}
        topic_ids = {topic: position.topic_id for (topic, _), position in self._positions.by_place.items()}
        parts = fetch_parts(self._try_to_fetch, offsets, ends, topic_ids, offsets)
        if read_ahead and parts is not None and (cut := cut_to_messages(ends, parts, max_records)) != ends:
            ends = {place: end for place, end in cut.items() if end > offsets[place]}
            parts = fetch_parts(self._try_to_fetch, offsets, ends, topic_ids, offsets)
        if parts is None:
            return None
        before = self._positions.by_place
        after = {place: replace(before[place], offset=end) for place, end in ends.items()}
        moves |= {
            place: (moves[place][0] if place in moves else before[place], position) for place, position in after.items()
        }
        # Partitions read last come last. One assignment, because an interrupt may come at any time.
        self._positions.by_place = {**{p: position for p, position in before.items() if p not in after}, **after}
        return ConsumerBatch(self.group, parts, self._build_offsets(ends, topic_ids))

    def _build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        return ConsumedOffsets(offsets, topic_ids)

    def _try_to_fetch(
        self, topic: str, topic_id: int, start: Mapping[int, int], end: Mapping[int, int]
    ) -> FetchResult | None:
        """Fetch ranges of a topic; None: some of them, or all of the topic, were deleted meanwhile."""
        try:
            fetched = self._fetch(topic, isolation=self._isolation, start=start, end=end)
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            return None
        return fetched if fetched.plan.topic_id == topic_id else None

    def _read_bounds(self) -> dict[TopicPartition, Bounds]:
        """Return the bounds of all partitions of the consumer as of now, and keep positions of exactly these."""
        topics = sorted({*self._topics, *(topic for topic, _ in self._assigned)})
        existing = self._topic_bounds(topics, self._isolation)
        for topic, partition in self._assigned - existing.keys():
            raise UnknownTopicOrPartition(f"{topic} has no such partition.", found=partition)
        bounds = {p: of for p, of in existing.items() if p[0] in self._topics or p in self._assigned}
        self._positions.follow(bounds, are_new=self._has_begun)
        self._has_begun = True
        return bounds

    # -- reading to the end -----------------------------------------------------------------------------

    def until_end(
        self,
        max_records: int = 10_000,
        timeout_ms: int | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Iterator[ConsumerBatch]:
        """Poll until all that was there at the time of this call is read: `for batch in consumer.until_end():`.

        A member of a group goes on until the whole group has read it. It waits for partitions that other members have,
        until those have committed (in a queue: acknowledged), and takes over what a lost member had. Messages that
        come during the loop may be among the last batches. Commit or acknowledge each batch in the loop. A topic that
        is deleted meanwhile, or that the loop unsubscribes from, counts as read.

        Args:
            max_records: the most messages of a batch.
            timeout_ms: how long to wait while no member makes progress. Left out, long enough to find out that a
                member died or does not poll.
            stopped: called before each poll; true ends the loop early, without an error.

        Raises:
            EndNotReached: the wait is over. The message names the holders of the rest.
            LakeMQError: an error of `poll`.
        """
        max_records = parse_whole_number("max_records", max_records, 1)
        limit_ms = self._end_timeout_ms() if timeout_ms is None else parse_whole_number("timeout_ms", timeout_ms, 0)
        if not (stopped is None or callable(stopped)):
            raise invalid_argument("stopped", stopped, "a function without arguments")
        ends = self._find_ends()
        return read_until_end(
            self.group,
            lambda wait_ms: self.poll(max_records, timeout_ms=wait_ms),
            lambda: self._find_remainder(ends),
            limit_ms,
            self._clock,
            stopped,
        )

    def _end_timeout_ms(self) -> int:
        return self._timeout_ms

    def _find_ends(self) -> Ends:
        """Return where the partitions to read end now."""
        with self._lock.own:
            self._check_open()
            return {place: (bounds.topic_id, bounds.end) for place, bounds in self._read_bounds().items()}

    def _find_remainder(self, ends: Ends) -> Left:
        """Return how much is not read before these ends."""
        with self._lock.own:
            self._check_open()
            return find_left_by_positions(ends, *self._positions.settle())

    # -- where it is ------------------------------------------------------------------------------------

    def position(self, topic: str, partition: int) -> int:
        """Return the next offset to read. Raises IllegalState: the partition is not assigned."""
        with self._lock.own:
            _, offsets = self._positions.settle((topic, partition))
            return offsets[topic, partition]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            IllegalState: the partition is not assigned.
            UnknownTopicOrPartition: an assigned topic was deleted.
        """
        offset = parse_whole_number("offset", offset)
        with self._lock.own:
            all_bounds = self._read_bounds()
            check_assignment((topic, partition), all_bounds)
            bounds = all_bounds[topic, partition]
            if not bounds.first <= offset <= bounds.high_watermark:
                raise OffsetOutOfRange(
                    f"{topic}-{partition} does not hold this offset.",
                    found=offset,
                    expected=f"{bounds.first} to {bounds.high_watermark}",
                )
            self._positions.by_place[topic, partition].offset = offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Get no messages of these partitions until `resume`. Raises IllegalState: one of them is not assigned."""
        with self._lock.own:
            places = parse_topic_partitions("partitions", partitions)
            for place in places:
                check_assignment(place, self._assigned_places())
            self._paused_by_user.update(places)

    def _assigned_places(self) -> Container[TopicPartition]:
        return self._positions.by_place

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Get messages of these partitions again."""
        with self._lock.own:
            self._paused_by_user.difference_update(parse_topic_partitions("partitions", partitions))

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each position to the end of what this isolation sees.

        It counts the partitions that this consumer has now, and no others: a member without partitions gets `{}`
        even if others have much to read. For the whole group see `group_lag()` of a member, and `mq.groups.lag(group)`.

        Returns:
            (topic, partition) -> offsets, at least 0.
        """
        with self._lock.own:
            bounds, offsets = self._positions.settle()
            return {place: max(0, bounds[place].end - offset) for place, offset in offsets.items()}

    # -- committing -------------------------------------------------------------------------------------

    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Commit the end of a batch, these offsets, or all positions for the group.

        Args:
            what: a batch; or (topic, partition) -> next offset to read; left out, all positions.
            metadata: a text that is stored beside the offsets.

        Returns:
            The offsets that were committed.

        Raises:
            OffsetOutOfRange, UnknownTopicOrPartition, OffsetMetadataTooLarge: an argument is not valid.
            UnknownTopicId: the topic that was read was deleted. Nothing is committed.
        """
        offsets = self._offsets_to_commit(what)
        if offsets:
            commits = build_offset_commits(offsets, self._check_metadata(metadata))
            self._requester.ask(CommitOffsets(self.group, commits))
        return offsets

    def _check_metadata(self, metadata: str | None) -> str | None:
        return None if metadata is None else parse_text("metadata", metadata)

    def _offsets_to_commit(self, what: ConsumerBatch | Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        offsets = what.offsets if isinstance(what, ConsumerBatch) else what
        if isinstance(offsets, ConsumedOffsets):
            return offsets  # without the lock: one thread may commit its batch while another polls
        with self._lock.own:
            return self._consumed_offsets(offsets)

    def _consumed_offsets(self, named: Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        """Return the offsets that the user named, or all positions, with what the consumer knows of their topics."""
        positions = self._positions.by_place
        if named is not None:
            offsets = parse_partition_offsets("what", named)
        else:
            offsets = {place: position.offset for place, position in positions.items() if position.offset is not None}
        # A name stands for the topic that this consumer reads. The sequencer resolves all other names.
        return self._build_offsets(offsets, {topic: position.topic_id for (topic, _), position in positions.items()})

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the assigned partitions.

        Waits while an open transaction holds some of the offsets back.

        Raises:
            UnstableOffsetCommit: that takes longer than `default_timeout_ms`.
            ThrottlingQuotaExceeded: the sequencer was too busy with other answers all that time.
        """
        request = FetchOffsets(self.group, list(self._positions.by_place))
        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        while True:
            try:
                answer = self._requester.ask(request)
            except (UnstableOffsetCommit, ThrottlingQuotaExceeded):
                if self._clock.steady_ms() > deadline_ms:
                    raise
                self._clock.sleep(_RETRY_MS)
                continue
            assert isinstance(answer, OffsetsFetched)
            return {(commit.topic, commit.partition): commit for commit in answer.offsets}

    def close(self) -> None:
        """Stop polling. Nothing is committed by this."""
        self._closed = True

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
