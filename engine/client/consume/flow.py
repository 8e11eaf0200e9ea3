"""A flow: what a member of a `queue` group was shown of a partition under one assignment, and has said of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...protocol.errors import InvalidRecordState
from ...protocol.values.deliveries import Acknowledgement, Deliveries, DeliveryStatus, Outcome, Stretch
from .spans import Span, Spans, spans_of

Meant = tuple[int, int, int | None]
"""First offset, the one after the last, and which delivery of them is meant; None: the last."""


class Said(NamedTuple):
    """What became of messages; of those that are given back how long they wait, None: as the group says, and what is
    said of them; which delivery it is about; whether it is said once more, because nobody answered.
    """

    outcome: Outcome
    deliveries: int
    delay_ms: int | None = None
    error: str = ""
    is_again: bool = False


class Flow:
    """Not thread-safe, but for `singles`: its consumer has the lock."""

    def __init__(self, name: str, topic_id: int, partition: int, epoch: int) -> None:
        """name: of the partition, for people; epoch: of the assignment."""
        self.name, self.topic_id, self.partition, self.epoch = name, topic_id, partition, epoch
        self.is_paused = False
        self.singles: list[int] = []
        """Offsets accepted by themselves, of a first delivery, and not looked at yet; any thread adds some."""
        self._shown: dict[int, Spans] = {}
        """By how often they were delivered then; an offset stands under its last delivery."""
        self._open = Spans()
        """Shown, and nothing was said of them."""
        self._accepted = Spans()
        self._said: dict[Said, Spans] = {}
        """Not sent yet."""
        self._refused = Spans()
        """What was said of these does not count."""
        self._doubtful = Spans()
        """What was said of these may have counted, though nobody answered."""

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def is_told(self) -> bool:
        """Whether all that was said is sent."""
        return not self._said and not self.singles

    @property
    def is_refused(self) -> bool:
        """Whether some of what was said does not count, and we have not looked since."""
        return bool(self._refused)

    def open_spans(self) -> list[Span]:
        return list(self._open)

    def fresh(self, held: Iterable[Stretch]) -> list[Stretch]:
        """Of what the member has, what it was not shown, or not since it was delivered again."""
        found = []
        for one in held:
            shown = self._shown.get(one.deliveries)
            parts = [(one.first, one.end)] if shown is None else shown.missing(one.first, one.end)
            found += [one.cut(first, end) for first, end in parts]
        return found

    def show(self, stretches: Iterable[Stretch], messages: Spans, expired: Spans) -> None:
        """These are shown; offsets among them that hold no message for this reader, or an expired one, are done with.

        messages: that are shown.
        """
        for one in stretches:
            for shown in self._shown.values():
                shown.remove(one.first, one.end)
            self._shown.setdefault(one.deliveries, Spans()).add(one.first, one.end)
            self._accepted.remove(one.first, one.end)
            self._doubtful.remove(one.first, one.end)
            for first, end in messages.within(one.first, one.end):
                self._open.add(first, end)
            for gap in messages.missing(one.first, one.end):
                for first, end in expired.within(*gap):
                    self._note(Said(Outcome.EXPIRE, one.deliveries), first, end)
                for first, end in expired.missing(*gap):
                    self._note(Said(Outcome.ACCEPT, one.deliveries), first, end)

    def hide(self, stretches: Iterable[Stretch]) -> None:
        """Nobody has seen these after all."""
        for one in stretches:
            self._open.remove(one.first, one.end)
            if shown := self._shown.get(one.deliveries):
                shown.remove(one.first, one.end)

    def open_of(self, meant: Iterable[Meant]) -> list[tuple[int, int, int]]:
        """What of these is open, and under which delivery."""
        return [
            (*piece, count)
            for first, end, deliveries in meant
            for part in self._open.within(first, end)
            for count, shown in self._shown.items()
            if deliveries in (None, count)
            for piece in shown.within(*part)
        ]

    def say(self, outcome: Outcome, meant: Sequence[Meant], delay_ms: int | None = None, error: str = "") -> None:
        """What became of messages. Raises InvalidRecordState: it has them not, and nothing is said of any."""
        for one in meant:
            if not self._may_say(outcome, *one):
                raise InvalidRecordState(found=f"{self.name}, offsets {one[0]} to {one[1] - 1}")
        for first, end, deliveries in self.open_of(meant):
            self._note(Said(outcome, deliveries, delay_ms, error), first, end)
        for first, end, _ in meant:
            self._open.remove(first, end)

    def _may_say(self, outcome: Outcome, first: int, end: int, deliveries: int | None) -> bool:
        """What is accepted already may be again."""
        is_accepted = (
            outcome is Outcome.ACCEPT and self._accepted.has_all(*gap) for gap in self._open.missing(first, end)
        )
        if not all(is_accepted):
            return False
        shown = None if deliveries is None else self._shown.get(deliveries, Spans())
        return shown is None or all(shown.has_all(*part) for part in self._open.within(first, end))

    def _note(self, said: Said, first: int, end: int) -> None:
        self._said.setdefault(said, Spans()).add(first, end)
        if said.outcome in (Outcome.ACCEPT, Outcome.EXPIRE):
            self._accepted.add(first, end)

    def hear_singles(self) -> None:
        """Say what was accepted one by one. Raises InvalidRecordState, when all others are said."""
        count = len(self.singles)  # others may be added meanwhile
        if not count:
            return
        wrong: InvalidRecordState | None = None
        for span in spans_of(self.singles[:count]):
            try:
                self.say(Outcome.ACCEPT, [(*span, 1)])
            except InvalidRecordState as error:
                wrong = error
        del self.singles[:count]  # not before all is said: an interrupt would lose it
        if wrong is not None:
            raise wrong

    def said(self) -> list[Acknowledgement]:
        """What was said and is not sent yet."""
        return [
            Acknowledgement(
                self.topic_id,
                self.partition,
                self.epoch,
                said.outcome,
                [(first, end - first) for first, end in spans],
                said.delay_ms,
                said.deliveries,
                said.error,
            )
            for said, spans in self._said.items()
        ]

    def sent(self) -> None:
        """All that was said is on its way."""
        self._said = {}

    def put_back(self, one: Acknowledgement) -> None:
        """Nobody has heard this: it is to be said again."""
        for first, count in one.ranges:
            said = Said(one.outcome, one.deliveries or 1, one.delay_ms, one.error, is_again=True)
            self._note(said, first, first + count)
            self._doubtful.add(first, first + count)

    def is_doubtful(self, one: Acknowledgement) -> bool:
        """Whether this was said before, and may have counted then."""
        return all(self._doubtful.has_all(first, first + count) for first, count in one.ranges)

    def reopen(self, one: Acknowledgement) -> None:
        """This was refused: of what the member still has of it something may be said again, after the next look."""
        for first, count in one.ranges:
            self._accepted.remove(first, first + count)
            self._refused.add(first, first + count)

    def follow(self, known: Deliveries) -> None:
        """Learn what the group knows: of what is done with, or is not the member's any more, nothing is open."""
        self._accepted.add(0, known.start)
        for shown in self._shown.values():
            shown.remove(0, known.start)
        self._open.remove(0, known.start)
        for one in known.stretches:
            if one.status is not DeliveryStatus.ACQUIRED:
                self._open.remove(one.first, one.end)
            if one.status is DeliveryStatus.ACKNOWLEDGED:
                self._accepted.add(one.first, one.end)
        for one in known.held() if self._refused else ():
            shown = self._shown.get(one.deliveries, Spans())
            for span in self._refused.within(one.first, one.end):
                for part in shown.within(*span):
                    self._open.add(*part)
        self._refused = Spans()
