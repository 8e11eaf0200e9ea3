"""A real namespace and its model, side by side, and the rules that hold for both in every world."""

from collections.abc import Callable, Sequence
from typing import get_args

from stateful.model import Model
from stateful.model.namespace import TopicIdPartition

from lakemq.engine.client.fetch.plan import Isolation
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import Topic

ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
Shown = dict[int, list[tuple[int, str]]]
"""Partition -> (offset, message) of all that can be read."""


class SideBySide:
    def __init__(self, model: Model) -> None:
        self.model = model
        self._marks: dict[TopicIdPartition, tuple[int, int, int]] = {}

    def check_state(self, state: State) -> None:
        """Check all parts of the state that a leader uses for decisions."""
        self.check_marks(state)
        self.check_offsets(state)
        self.check_ids(state)

    def check_marks(self, state: State) -> None:
        """Check a leader's or reader's marks: the same topics, and in each partition the same log start, stable
        offset and end.
        """
        model = self.model
        assert {i: t.topic for i, t in state.topics.items()} == {t.topic_id: t.topic for t in model.active()}
        assert state.topic_ids == {t.topic: t.topic_id for t in model.active()}
        for topic in model.active():
            stored = state.topics[topic.topic_id]
            columns = stored.log_starts, stored.last_stable_offsets, stored.high_watermarks
            marks = list(zip(*(column.tolist() for column in columns), strict=True))
            assert stored.partition_count == topic.partitions, topic.topic
            assert marks == [(log.start, log.stable, len(log)) for log in topic.logs], topic.topic
            for partition, mark in enumerate(marks):
                self._go_forward((topic.topic_id, partition), mark)

    def _go_forward(self, tp: TopicIdPartition, mark: tuple[int, int, int]) -> None:
        """I6: marks only go forward."""
        start, stable, end = mark
        before = self._marks.get(tp, (0, 0, 0))
        assert all(earlier <= later for earlier, later in zip(before, mark, strict=True)), (tp, before, mark)
        assert start <= end
        assert stable <= end
        self._marks[tp] = mark

    def check_offsets(self, state: State) -> None:
        """I7: committed offsets are the model's, and within the log. Seeks of consumers are not checked."""
        offsets = {
            group: {tp: committed.offset for tp, committed in of_group.items()}
            for group, of_group in state.offsets.items()
        }
        assert offsets == self.model.offsets
        assert all(
            offset <= len(self.model.log(tp)) for of_group in offsets.values() for tp, offset in of_group.items()
        )

    def check_ids(self, state: State) -> None:
        """Check producers, the identity of each transactional id, and that each has at most one open transaction."""
        model = self.model
        producers = {i: (producer.epoch, producer.transactional_id) for i, producer in state.producers.items()}
        assert producers == {i: (producer.epoch, producer.transactional_id) for i, producer in model.producers.items()}
        identities = {
            name: (transaction.producer_id, transaction.producer_epoch)
            for name, transaction in state.transactions.items()
        }
        assert identities == {
            name: (transactional_id.producer_id, transactional_id.epoch) for name, transactional_id in model.ids.items()
        }
        ongoing = {name for name, transaction in state.transactions.items() if transaction.status == "Ongoing"}
        assert (
            ongoing == state.ongoing == {name for name, transactional_id in model.ids.items() if transactional_id.open}
        )
        writing = {i for t in state.topics.values() for firsts in t.open_transactions.values() for i in firsts}
        assert writing <= {state.transactions[name].producer_id for name in ongoing}

    def check_visible_messages(
        self, state: State, show: Callable[[Topic, Isolation], Shown], isolations: Sequence[Isolation] = ISOLATIONS
    ) -> None:
        """I1 to I5: a reader in this state sees in each partition the messages of the model, one by one."""
        self.check_marks(state)
        for topic in self.model.active():
            for isolation in isolations:
                shown = show(state.topics[topic.topic_id], isolation)
                assert shown == {p: log.visible_messages(isolation) for p, log in enumerate(topic.logs)}, (
                    topic.topic,
                    isolation,
                )
