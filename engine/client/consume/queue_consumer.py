"""A consumer of a `queue` group: it is given messages, says what became of each, and is given no other's meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from ...namespace.clock import Clock
from ...protocol.errors import (
    FencedMemberEpoch,
    IllegalState,
    InvalidRequest,
    LakeMQError,
    RequestTimedOut,
    UnknownMemberId,
)
from ...protocol.values.deliveries import (
    MAX_ERROR_LENGTH,
    Acknowledgement,
    Outcome,
    Stretch,
    Wanted,
)
from ...protocol.values.groups import Assigned
from ..arguments import place_offsets, refused, whole_number
from ..fetch.fetched import Fetched, Message
from ..fetch.plan import Bounds, Isolation
from ..offsets import ConsumedMessages, ConsumedOffsets, TopicPartition
from ..requester import Requester
from .asking import fresh_of, wanted_of
from .batch import ConsumerBatch
from .flow import Flow
from .group_consumer import GroupConsumer, RebalanceListener
from .membership import Held, Membership, QueueTerms, Standing
from .poll_sizes import poll_sizes
from .queue_batch import Messages, QueueBatch, Shown, cut, meant_by, messages_of
from .spans import Span, Spans
from .teller import Teller

_TELL_EVERY_MS = 50
"""How long acknowledgements of single messages gather."""
_TELL_AT = 10_000
"""Or how many of them do."""
_ANSWER_MS = 1_000
"""How long a poll waits for what it knows to be there, whatever its timeout."""
_LONGEST_WAIT_MS = 60_000
"""At a time: the system takes no number of ms that it is given."""
_PAUSE_MS = 5
"""Before what was not heard is said again."""


class QueueConsumer(GroupConsumer):
    """A member of a `queue` group. Thread-safe; close it, or use it with `with`.

    Each partition is one member's at a time, and its messages are in order. What `poll` has brought is the member's own
    until it is acknowledged (`ack`), given back (`nack`) or rejected, until its partition is given to another member,
    or the member is lost; what was not acknowledged then is delivered again, with a higher delivery_count. A partition
    moves when all that was brought of it is acknowledged, or after max.handoff.ms.
    """

    def __init__(
        self,
        requester: Requester,
        membership: Membership,
        fetch: Callable[..., Fetched],
        clock: Clock,
        group: str,
        isolation: Isolation = "read_committed",
        listener: RebalanceListener | None = None,
        closed: Callable[[GroupConsumer], object] = lambda _: None,
    ) -> None:
        """It joins. closed: told when it is closed. Raises what joining is refused with."""
        self._flows: dict[TopicPartition, Flow] = {}
        self._steady_ms = clock.steady_ms  # found once: it is called for each message
        self._acks_first = False
        """A poll has begun and has not yet acknowledged what the one before it brought."""
        self._teller = Teller(membership, clock, self._flows)
        self._step = (-1, 0, 0)
        """The newest step, its time, and when it was seen first."""
        self._terms: QueueTerms | None = None
        self._shown_last: dict[TopicPartition, None] = {}
        """In this order."""
        super().__init__(requester, membership, fetch, clock, group, "latest", isolation, listener, closed)

    # -- what it has ------------------------------------------------------------------------------------

    def _join_again(self) -> None:
        """It was lost: what nobody else has yet is its own again, with what it was given of it."""
        bound = [Assigned(one.topic_id, one.partition, one.epoch) for one in self._flows.values()]
        self._membership.join(bound)
        self._teller.joined_again()

    def _follow(self, standing: Standing) -> None:
        """Tell the user what has changed, in the order lost, to be given up, new; tell the group what was said."""
        if self._teller.is_lost:  # it is a member: its joining was decided, though that was not answered
            self._teller.joined_again()
        held = standing.held
        gone = self._gone(held)
        for place in gone:
            self._forget(place)
        # of what was given up with all that it had, the user was told that it would be
        self._lose([place for place in gone if self._drop(place)])
        paused = [p for p in sorted(held) if held[p].is_paused and p in self._flows and not self._flows[p].is_paused]
        for place in paused:
            self._flows[place].is_paused = True
        if paused:
            self._listener.on_revoked(paused)
        self._check_open()
        new = {place: one for place, one in held.items() if place not in self._held}
        for (topic, partition), one in new.items():
            self._flows[topic, partition] = Flow(f"{topic}-{partition}", one.bounds.topic_id, partition, one.epoch)
        if new:
            self._held.update(new)
            self._listener.on_assigned(sorted(new))
        self._check_open()

    def _drop(self, place: TopicPartition) -> bool:
        """Whether that was a loss: it was not told of before, or had messages of which nothing was said."""
        flow = self._flows.pop(place, None)
        self._shown_last.pop(place, None)
        if flow is None:
            return False
        if not flow.is_told:
            self._teller.too_late(place)
        return not flow.is_paused or flow.open_count > 0

    def _lose(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self._drop(place)
        super()._lose(places)

    def _look(self) -> dict[TopicPartition, Bounds]:
        """The bounds of what it was told it has, and still has, as of now."""
        return {place: one.bounds for place, one in self._known().items()}

    def _known(self) -> dict[TopicPartition, Held]:
        """The same, with all that is known of it."""
        standing = self._membership.look()
        if standing.step != self._step[0]:
            self._step = standing.step, standing.now_ms, self._clock.steady_ms()
        if standing.terms is not None:
            self._terms, self._isolation = standing.terms, standing.terms.isolation
        flows = self._flows
        return {p: one for p, one in standing.held.items() if p in flows and flows[p].epoch == one.epoch}

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, max_records: int = 10_000, timeout_ms: int = 0, poll_ms: int = 20) -> QueueBatch:
        """The next messages, at most `max_records`, evenly from all partitions; they are the member's to acknowledge.

        timeout_ms: how long to wait for the first one; what is there comes in any case. The messages of the poll after
        this one are asked for as well, so that they are there when it comes. With ack.mode auto it acknowledges all
        that was brought before. Raises NoOffsetForPartition; IllegalState: it has as many unacknowledged messages as it
        may, in all that time.
        """
        self._acks_first = True
        batch = super().poll(max_records, timeout_ms, poll_ms)
        assert isinstance(batch, QueueBatch)
        return batch

    def _is_coming(self, deadline_ms: float) -> bool:
        return self._teller.asked is not None and self._clock.steady_ms() < deadline_ms + _ANSWER_MS

    def _nothing_came(self, batch: ConsumerBatch) -> ConsumerBatch:
        with self._lock.own:
            if self._flows and self._room() <= 0:
                raise IllegalState(
                    "The member has as many messages as it may that it has not acknowledged.",
                    found=f"{self._open_count()}",
                    expected="less than max.delivered.unacked.msgs.per.flow",
                )
        return batch

    def _open_count(self) -> int:
        return sum(flow.open_count for flow in self._flows.values())

    def _room(self) -> int:
        return 0 if self._terms is None else self._terms.bound - self._open_count()

    def _rest(self, ms: int) -> None:
        """Until what was asked for is there, if it is soon."""
        if (asked := self._teller.asked) is None:
            self._clock.sleep(ms)
        else:
            wait([asked], min(max(ms, 1), _LONGEST_WAIT_MS) / 1000)

    def _next(self, max_records: int, moves: dict[TopicPartition, Any], ahead: int) -> QueueBatch | None:
        self._teller.hear()  # first: the look then shows what answers have brought, and nothing is asked for twice
        known = self._in_turn(self._known())
        if self._acks_first and self._terms is not None and self._terms.acks_itself:
            for flow in self._flows.values():
                flow.say(Outcome.ACCEPT, [(*span, None) for span in flow.open_spans()])
        self._acks_first = False
        fresh = {
            place: fresh_of(self._flows[place], one) for place, one in known.items() if self._hands_out(place, one)
        }
        sizes = {place: sum(one.length for one in listed) for place, listed in fresh.items()}
        taken = {
            place: cut(fresh[place], size)
            for place, size in poll_sizes(sizes, max(0, min(max_records, self._room()))).items()
            if size
        }
        parts = self._parts(known, taken)
        if parts is None:
            return None
        shown, messages = {}, dict[TopicPartition, Spans]()
        for place, stretches in taken.items():
            flow, one = self._flows[place], known[place]
            moves[place] = (flow, [*moves[place][1], *stretches] if place in moves else stretches)
            messages[place], expired = messages_of(parts, place)
            flow.show(stretches, messages[place], expired)
            self._shown_last.pop(place, None)
            self._shown_last[place] = None
            shown[place] = Shown(flow.topic_id, flow.epoch, one.start_offset, stretches)
        left = sum(sizes.values()) - sum(one.length for listed in taken.values() for one in listed)
        self._teller.tell(self._wanted(self._in_turn(known), max_records, left))
        ends = {place: stretches[-1].end for place, stretches in taken.items()}
        offsets = self._read(ends, {topic: known[topic, p].bounds.topic_id for topic, p in known})
        acknowledged = [
            _acknowledgement(self._flows[place], Outcome.ACCEPT, stretch, found)
            for place, one in shown.items()
            for stretch in one.stretches
            if (found := list(messages[place].within(*stretch.span)))  # of the rest the flow has said what it is
        ]
        if self._terms is not None and self._terms.acks_itself:
            return QueueBatch(self.group, parts, offsets, shown)  # the next poll says it, not a transaction
        return QueueBatch(self.group, parts, ConsumedMessages(offsets, acknowledged, self._has_open), shown)

    def _has_open(self, messages: Sequence[Acknowledgement]) -> bool:
        """Whether something is to be said of these yet; of a partition that has moved since, the group knows."""
        with self._lock.own:
            self._teller.hear_singles()
            return any(
                (flow := self._teller.flow_of(one)) is None
                or flow.open_of([(first, first + count, one.deliveries) for first, count in one.ranges])
                for one in messages
            )

    def _in_turn(self, known: Mapping[TopicPartition, Held]) -> dict[TopicPartition, Held]:
        """What was shown last comes last, when there is not room for all."""
        others = {place: one for place, one in known.items() if place not in self._shown_last}
        return others | {place: known[place] for place in self._shown_last if place in known}

    def _hands_out(self, place: TopicPartition, one: Held) -> bool:
        hands_out_paused = self._terms is not None and self._terms.hands_out_paused
        return place not in self._halted and (hands_out_paused or not one.is_paused)

    def _parts(
        self, known: Mapping[TopicPartition, Held], taken: Mapping[TopicPartition, Sequence[Stretch]]
    ) -> list[Fetched] | None:
        """None: some of it was deleted since we looked."""
        parts = []
        # of one topic an empty part, so that a batch without messages is a table and a DataFrame as well
        for topic in sorted({topic for topic, _ in taken} or {topic for topic, _ in list(known)[:1]}):
            mine = {partition: stretches for (name, partition), stretches in taken.items() if name == topic}
            start = {partition: stretches[0].first for partition, stretches in mine.items()}
            end = {partition: stretches[-1].end for partition, stretches in mine.items()}
            topic_id = next(one.bounds.topic_id for (name, _), one in known.items() if name == topic)
            part = self._fetched(topic, topic_id, start, end)
            if part is None:
                return None
            parts.append(part)
        return parts

    def _go_back(self, moves: Mapping[TopicPartition, Any]) -> None:
        for place, (flow, stretches) in moves.items():
            mine = self._flows.get(place)
            if mine is not None and mine is flow:
                mine.hide(stretches)

    def _wanted(self, known: Mapping[TopicPartition, Held], max_records: int, ahead: int) -> list[Wanted]:
        """What to ask for, so that the next poll has as much; nothing that is not there."""
        terms = self._terms
        if terms is None or self._teller.asked is not None:
            return []
        _, decided_ms, seen_ms = self._step
        now_ms = decided_ms + self._clock.steady_ms() - seen_ms
        return wanted_of(known, self._halted, terms, max_records - ahead, now_ms)

    # -- saying what became of them ---------------------------------------------------------------------

    def ack(self, what: Messages) -> None:
        """These are done with: a message, a batch, or some messages. They are told of soon, without waiting.

        To acknowledge what is acknowledged is fine. Raises FencedMemberEpoch: the partition is not the member's any
        more; InvalidRecordState: it was not given this message, or has given it back. Of single messages this may be
        raised by a later call.
        """
        if type(what) is Message and type(what[2]) is int and 0 <= what[2] < 2**63 and what[7] == 1:
            flow = self._flows.get((what[0], what[1]))
            if flow is None:
                self._raise_fenced([(what[0], what[1])])
            flow.singles.append(what[2])
            if len(flow.singles) >= _TELL_AT or self._steady_ms() >= self._teller.told_at_ms + _TELL_EVERY_MS:
                with self._lock.own:
                    self._teller.tell()
            return
        self._say(Outcome.ACCEPT, what)

    def ack_through(self, what: Message | ConsumerBatch | Mapping[TopicPartition, int]) -> None:
        """All that it was given up to this message, to the end of this batch, or before these offsets, is done with.

        Raises FencedMemberEpoch, InvalidRequest.
        """
        if isinstance(what, Message):
            ends = {(what.topic, what.partition): whole_number("offset", what.offset, 0) + 1}
        elif isinstance(what, ConsumerBatch):
            ends = dict(what.offsets)
        else:
            ends = {place: whole_number("what", end, 0) for place, end in place_offsets("what", what).items()}
        with self._lock.own:
            self._check_mine(ends, what.offsets if isinstance(what, ConsumerBatch) else None)
            self._teller.hear_singles()
            for place, end in ends.items():
                flow = self._flows[place]
                meant = [(first, min(until, end), None) for first, until in flow.open_spans() if first < end]
                flow.say(Outcome.ACCEPT, meant)
            self._teller.tell()

    def nack(self, what: Messages, delay_ms: int | None = None, error: str = "") -> None:
        """These are to be delivered again, before anything new of their partitions; or, after max.redelivery.count
        deliveries more, never: then they become dead letters.

        delay_ms: how long they wait first; left out, as nack.backoff.ms says. error: what went wrong, for their dead
        letters; at most 1000 characters of it. Raises FencedMemberEpoch, InvalidRecordState.
        """
        delay_ms = None if delay_ms is None else whole_number("delay_ms", delay_ms, 0, 2**40)
        self._say(Outcome.RELEASE, what, delay_ms, _error_text(error))

    def reject(self, what: Messages, error: str = "") -> None:
        """These are never to be delivered again, and become dead letters.

        error: as with `nack`. Raises FencedMemberEpoch, InvalidRecordState.
        """
        self._say(Outcome.REJECT, what, error=_error_text(error))

    def go_back(self, batch: ConsumerBatch) -> bool:
        """Give back what is still one's own of a batch of which nothing is done with; whether that is all of it."""
        with self._lock.own:
            known = self._known()
            mine = self._still_mine(batch, known)
            for place, meant in meant_by(batch).items():
                deliveries = known[place].deliveries if place in mine else None
                if deliveries is not None:
                    flow = self._flows[place]
                    flow.follow(deliveries)  # an abort has given them back already
                    flow.say(Outcome.RELEASE, flow.open_of(meant))
            self._teller.tell()
            return len(mine) == len(batch.offsets)

    def _say(self, outcome: Outcome, what: Messages, delay_ms: int | None = None, error: str = "") -> None:
        meant, batch = meant_by(what), what if isinstance(what, ConsumerBatch) else None
        with self._lock.own:
            self._check_mine(meant, batch.offsets if batch else None)
            self._teller.hear_singles()
            for place, listed in meant.items():
                flow = self._flows[place]
                # of a batch, what was dealt with by itself is not meant
                flow.say(outcome, listed if batch is None else flow.open_of(listed), delay_ms, error)
            self._teller.tell()

    def _check_mine(self, places: Iterable[TopicPartition], read: ConsumedOffsets | None = None) -> None:
        """read: under which assignments. Raises FencedMemberEpoch."""
        epochs = read.epochs if read is not None else {}
        places = list(places)
        others = [
            p for p in places if p not in self._flows or epochs.get(p, self._flows[p].epoch) != self._flows[p].epoch
        ]
        if others:
            self._raise_fenced(others)
        if any(self._flows[place].is_refused for place in places):
            for place, one in self._known().items():
                if one.deliveries is not None:
                    self._flows[place].follow(one.deliveries)

    def _raise_fenced(self, places: Iterable[TopicPartition]) -> NoReturn:
        raise FencedMemberEpoch(found=[f"{topic}-{partition}" for topic, partition in sorted(places)])

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until all that was said is noted. It is said again while nobody answers.

        timeout_ms: left out, a minute. Raises RequestTimedOut; UnknownMemberId: it was lost, and joins again with its
        next poll; FencedMemberEpoch, InvalidRecordState: some of it was refused, and the rest is noted. Where that
        was so for several reasons, each is the `__cause__` of the one before it.
        """
        limit_ms = self._timeout_ms if timeout_ms is None else whole_number("timeout_ms", timeout_ms, 0)
        deadline_ms = self._clock.steady_ms() + limit_ms
        while True:
            with self._lock.own:
                if self._teller.is_lost:
                    raise UnknownMemberId("The member was lost; it joins again with the next poll.")
                self._teller.tell()
                waiting = self._teller.waiting()
            left_ms = deadline_ms - self._clock.steady_ms()
            if not waiting or left_ms <= 0:
                break
            wait(waiting, min(left_ms, _LONGEST_WAIT_MS) / 1000)
            with self._lock.own:
                self._teller.hear()
            if not all(flow.is_told for flow in self._flows.values()):
                self._clock.sleep(_PAUSE_MS)
        if waiting:
            raise RequestTimedOut("Acknowledgements were not answered in time; they are said again.")
        with self._lock.own:
            self._teller.raise_late()

    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Acknowledge through what is given, or all that was brought, and wait until that is noted; returns it.

        Raises what `ack_through` and `flush` raise; InvalidRequest: a queue group notes no metadata.
        """
        if metadata is not None:
            raise InvalidRequest("A queue group notes no metadata.", found="metadata")
        offsets = self._to_commit(what)
        self.ack_through(what if isinstance(what, ConsumerBatch) else offsets)
        self.flush()
        return offsets

    def _consumed(self, given: Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        """All that was brought where nothing is given."""
        if given is not None:
            return self._read(place_offsets("what", given), {})
        spans = {place: flow.open_spans() for place, flow in self._flows.items()}
        return self._read({place: listed[-1][1] for place, listed in spans.items() if listed}, {})

    # -- where it is ------------------------------------------------------------------------------------

    def seek(self, topic: str, partition: int, offset: int) -> NoReturn:
        """IllegalState: what a queue delivers is the group's to say."""
        raise IllegalState("A queue delivers what is next; to have it otherwise, reset the group's offsets.")

    def position(self, topic: str, partition: int) -> int:
        """The first offset that was never delivered."""
        with self._lock.own:
            known = self._known()
            self._check_assigned((topic, partition), known)
            deliveries = known[topic, partition].deliveries
            assert deliveries is not None
            return deliveries.next_offset

    def _places(self) -> Mapping[TopicPartition, Flow]:
        return self._flows

    def lag(self) -> dict[TopicPartition, int]:
        """(topic, partition) -> offsets that are not done with, before the end of what this isolation sees."""
        with self._lock.own:
            return {place: one.left_count for place, one in self._known().items()}

    def _let_go(self) -> None:
        """What was said is told; what nobody has looked at was not delivered."""
        if (asked := self._teller.asked) is not None:
            wait([asked], _ANSWER_MS / 1000)  # it would be given to who has gone, and count
        known = self._known()
        unseen = [
            _acknowledgement(flow, Outcome.UNSEEN, one, [one.span])
            for place, flow in self._flows.items()
            if place in known and (deliveries := known[place].deliveries) is not None
            for one in flow.fresh(deliveries.held())
        ]
        for step in self._teller.hear, partial(self._teller.tell, unseen=unseen):
            with suppress(LakeMQError):  # who closes it asks for nothing any more
                step()
        self._flows.clear()
        super()._let_go()


def _error_text(error: object) -> str:
    """As much of it as a dead letter bears. What cannot be stored of it is written as Python does."""
    if not isinstance(error, str):
        raise refused("error", error, "text")
    return error.encode(errors="backslashreplace").decode()[:MAX_ERROR_LENGTH]


def _acknowledgement(flow: Flow, outcome: Outcome, one: Stretch, spans: Iterable[Span]) -> Acknowledgement:
    """spans: which of its messages are meant."""
    ranges = [(first, end - first) for first, end in spans]
    return Acknowledgement(flow.topic_id, flow.partition, flow.epoch, outcome, ranges, None, one.deliveries)
