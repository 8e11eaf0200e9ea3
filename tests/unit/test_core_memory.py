"""Small steps leave nothing in the leader's state: it holds as much after eight thousand as after four."""

import gc
import sys
from itertools import count

import pytest
from protocol_harness import Harness

from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit

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


def test_small_steps_do_not_grow_the_state() -> None:
    """One client sends to each topic in turn, another one commits offsets."""
    mq, numbers = Harness(), {"sender": count(1), "reader": count(1)}
    topics = [f"topic-{number}" for number in range(TOPICS)]
    for topic in topics:
        mq.create(topic, 2)
    producer = mq.producer()

    def ask(client: str, request: AnyRequest) -> None:
        assert not isinstance(mq.one(request, client=client, number=next(numbers[client])), Refusal)
        mq.steps.clear()

    def take_step(step: int) -> None:
        topic, sequence = topics[step % TOPICS], step // TOPICS
        request = mq.produce({sequence % 2: 1}, topic, (producer, 0), sequence // 2)
        mq.now_ms += 10
        ask("sender", request)
        if step % STEPS_PER_COMMIT == 0:
            group = step // STEPS_PER_COMMIT % GROUPS
            commits = [OffsetCommit(topic, 0, sequence // 2) for topic in topics[group::GROUPS]]
            ask("reader", CommitOffsets(f"group-{group}", commits))
        if step % STEPS_PER_PASS == 0:
            mq.state.changes.clear()  # as the projector does once it has computed its rows

    def count_blocks(first: int, end: int) -> int:
        """Take the steps, and return how many blocks of memory Python has allocated then."""
        for step in range(first, end):
            take_step(step)
        gc.collect()
        return sys.getallocatedblocks()

    before = count_blocks(0, WARM_STEPS)
    after = count_blocks(WARM_STEPS, WARM_STEPS + STEPS)
    assert after - before < STEPS * KEPT_BLOCKS_PER_STEP
