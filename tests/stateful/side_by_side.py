"""The real thing and its model, side by side, and what must hold of both: for every world, whatever is asked in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from stateful.model import Model
from stateful.model.namespace import Place

from lakemq.engine.client.fetch.plan import Isolation
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import Topic

ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
Shown = dict[int, list[tuple[int, str]]]
"""Partition -> (offset, message) of all that can be read."""


class SideBySide:
    def __init__(self, model: Model) -> None:
        self.model = model
        self._marks: dict[Place, tuple[int, int, int]] = {}

    def check_state(self, state: State) -> None:
        """Of a leader: all that it decides by."""
        self.check_marks(state)
        self.check_offsets(state)
        self.check_ids(state)

    def check_marks(self, state: State) -> None:
        """Of a leader, or of a reader: the same topics, and each partition as long, as stable, cut off where it is."""
        model = self.model
        assert {i: t.topic for i, t in state.topics.items()} == {t.topic_id: t.topic for t in model.active()}
        assert state.topic_ids == {t.topic: t.topic_id for t in model.active()}
        for topic in model.active():
            found = state.topics[topic.topic_id]
            columns = found.log_starts, found.last_stable_offsets, found.high_watermarks
            marks = list(zip(*(column.tolist() for column in columns), strict=True))
            assert found.partition_count == topic.partitions, topic.topic
            assert marks == [(log.start, log.stable, len(log)) for log in topic.logs], topic.topic
            for partition, mark in enumerate(marks):
                self._go_forward((topic.topic_id, partition), mark)

    def _go_forward(self, place: Place, mark: tuple[int, int, int]) -> None:
        """I6."""
        start, stable, end = mark
        before = self._marks.get(place, (0, 0, 0))
        assert all(was <= now for was, now in zip(before, mark, strict=True)), (place, before, mark)
        assert start <= end
        assert stable <= end
        self._marks[place] = mark

    def check_offsets(self, state: State) -> None:
        """I7, but for what a consumer seeks."""
        found = {group: {place: one.offset for place, one in of.items()} for group, of in state.offsets.items()}
        assert found == self.model.offsets
        assert all(offset <= len(self.model.log(place)) for of in found.values() for place, offset in of.items())

    def check_ids(self, state: State) -> None:
        """Producers, and who has which transactional id, with at most one transaction open."""
        model = self.model
        producers = {i: (one.epoch, one.transactional_id) for i, one in state.producers.items()}
        assert producers == {i: (one.epoch, one.transactional_id) for i, one in model.producers.items()}
        identities = {name: (one.producer_id, one.producer_epoch) for name, one in state.transactions.items()}
        assert identities == {name: (one.producer_id, one.epoch) for name, one in model.ids.items()}
        ongoing = {name for name, one in state.transactions.items() if one.status == "Ongoing"}
        assert ongoing == state.ongoing == {name for name, one in model.ids.items() if one.open}
        writing = {i for t in state.topics.values() for firsts in t.open_transactions.values() for i in firsts}
        assert writing <= {state.transactions[name].producer_id for name in ongoing}

    def check_shown(
        self, state: State, show: Callable[[Topic, Isolation], Shown], isolations: Sequence[Isolation] = ISOLATIONS
    ) -> None:
        """I1 to I5: a reader in this state sees of each partition what the model says, message by message."""
        self.check_marks(state)
        for topic in self.model.active():
            for isolation in isolations:
                shown = show(state.topics[topic.topic_id], isolation)
                assert shown == {p: log.shown(isolation) for p, log in enumerate(topic.logs)}, (topic.topic, isolation)
