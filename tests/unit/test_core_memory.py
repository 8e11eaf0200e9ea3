"""Small steps leave nothing in the leader's state: it holds as much after eight thousand as after four."""

import gc
import sys
from itertools import count

import pytest

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.codec.steps import encode_steps
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.base import Request
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.decision import DecisionInputs, InlineRows
from lakemq.engine.protocol.values.journal import JournalEntry, Step
from lakemq.engine.protocol.values.log import PendingFile, Produce, Ranges, RowsJournaled
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, ProducerSequences
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import CreateTopic, TopicRef
from lakemq.tables.specs.messages import SEQUENCERS_FILES

pytestmark = [pytest.mark.slow, pytest.mark.extended]

TOPICS = 100
GROUPS = 20
STEPS_PER_COMMIT = 50
STEPS_PER_PASS = 500

WARM_STEPS = 4_000
"""Each topic, partition and group is used, and each partition remembers as many batches as it may."""

STEPS = 4_000
KEPT_BLOCKS_PER_STEP = 0.05
"""An object that stays is at least one block. One that stays per step is 20 times this bound."""


class BareCore:
    """A state, and two clients: one sends, the other commits offsets."""

    def __init__(self) -> None:
        self._state, self._numbers = State(), {"sender": count(1), "reader": count(1)}
        self._topics = [self._create_topic(f"topic-{number}") for number in range(TOPICS)]
        producer = self._ask("sender", InitProducer())
        assert isinstance(producer, ProducerDone)
        self._producer, self._sent = producer, 0

    def take_steps(self, steps: int) -> int:
        """Take the steps, and return how many blocks of memory Python has allocated then."""
        for _ in range(steps):
            self._send()
            if self._sent % STEPS_PER_COMMIT == 0:
                self._commit(self._sent // STEPS_PER_COMMIT % GROUPS)
            if self._sent % STEPS_PER_PASS == 0:
                self._state.changes.clear()  # as the projector does once it has computed its rows
        gc.collect()
        return sys.getallocatedblocks()

    def _create_topic(self, name: str) -> TopicRef:
        self._ask("sender", CreateTopic(name, 2))
        topic = self._state.topic(name)
        return TopicRef(topic.topic, topic.topic_id, topic.partition_count)

    def _send(self) -> None:
        topic, sequence = self._topics[self._sent % TOPICS], self._sent // TOPICS
        request = Produce(
            [topic],
            Ranges([0], [sequence % 2], [-1], [0], [1], [self._sent], [self._sent], [], []),
            self._state.step,
            producer=ProducerSequences(
                self._producer.producer_id, self._producer.producer_epoch, [0], [sequence % 2], [sequence // 2]
            ),
        )
        # a pending file takes rows until a pass writes it
        number, row = divmod(self._sent, 1000)
        self._ask("sender", request, InlineRows(PendingFile(SEQUENCERS_FILES | number, row + 1), row, 1))
        self._sent += 1

    def _commit(self, number: int) -> None:
        offsets = [
            OffsetCommit(topic.topic, partition, self._sent // TOPICS // 2)
            for topic in self._topics[number::GROUPS]
            for partition in (0, 1)
        ]
        self._ask("reader", CommitOffsets(f"group-{number}", offsets))

    def _ask(self, client: str, request: Request, inline: InlineRows | None = None) -> object:
        state = self._state
        machine.begin_step(state, state.now_ms + 10)
        entries: list[JournalEntry] = []
        if inline is not None:
            entries.append(JournalEntry(RowsJournaled(inline.file.file_id, inline.first_row, 1)))
        letter = Letter(client, next(self._numbers[client]), [request], state.now_ms)
        entries += machine.decide_letter(state, letter, DecisionInputs(inline=inline))
        (result,) = entries[-1].record.results  # type: ignore[attr-defined]
        assert not isinstance(result, Refusal), result
        entries += machine.decide_group_changes(state)
        encode_steps([Step(state.step, state.now_ms, state.leader_epoch, entries, None)])
        return result


def test_small_steps_leave_nothing_in_the_state() -> None:
    core = BareCore()
    before = core.take_steps(WARM_STEPS)
    after = core.take_steps(STEPS)
    assert after - before < STEPS * KEPT_BLOCKS_PER_STEP
