"""Whatever happens to a compacted topic, it shows the newest message of each key that another topic has.

The other topic takes the same messages and is not compacted. A real leader, which is replaced at random, and a clock
that jumps. Kills between two writes: `test_interruptions.py`.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from finals import PATIENCE_S, check_each_added_once, find_difference, let_readers_move_on
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from stateful.runs import runs

from lakemq.engine.maintenance import compaction
from lakemq.jobs.audit import audit
from lakemq.testing import MovableClock, serve, wait_until

pytestmark = pytest.mark.slow

CONFIG = {
    "engine.tick.ms": 1,
    "project.interval.ms": 20,
    "final.interval.ms": 50,
    "compact.min.files": 3,
    "merge.grace.ms": 9_000,
    "checkpoint.interval": 5,
}
COMPACTED, WHOLE = "compacted", "whole"
TOMBSTONES_MS = 100_000

Place = tuple[int, int]
Content = tuple[bytes, bytes | None]

contents = st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.text("xyz", max_size=2)), min_size=1, max_size=9)


class Compaction(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="lakemq-compaction-")
        self.clock, self.open = MovableClock(), ExitStack()
        self.mq = self.open.enter_context(serve(Path(self.folder.name, "mq"), self.clock, CONFIG))
        policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": TOMBSTONES_MS}
        self.mq.topics.create(COMPACTED, 2, config=policy)
        self.mq.topics.create(WHOLE, 2)
        self.producer: Any = None

    @rule(messages=contents)
    def publish(self, messages: list[tuple[str, str | None]]) -> None:
        keys, values = zip(*messages, strict=True)
        for topic in (COMPACTED, WHOLE):
            self.mq.publish(topic, pa.table({"key": keys, "value": pa.array(values, pa.string())}))

    @rule(messages=contents)
    def send_in_transaction(self, messages: list[tuple[str, str | None]]) -> None:
        if self.producer is None:
            self.producer = self.mq.producer("tx", transaction_timeout_ms=900_000)
            self.producer.begin_transaction()
        for topic in (COMPACTED, WHOLE):
            for key, value in messages:
                self.producer.send(topic, value, key=key)
            self.producer.flush()

    @rule(commits=st.booleans())
    @precondition(lambda self: self.producer)
    def end_transaction(self, commits: bool) -> None:
        producer, self.producer = self.producer, None
        with producer:
            producer.commit_transaction() if commits else producer.abort_transaction()

    @rule(partition=st.integers(0, 1), share=st.sampled_from([0.3, 0.7]))
    def delete_records(self, partition: int, share: float) -> None:
        end = int(self.mq.end_offsets(WHOLE)[partition] * share)
        for topic in (COMPACTED, WHOLE):
            self.mq.topics.delete_records(topic, {partition: end})

    @rule()
    def let_tombstones_age(self) -> None:
        self.clock.advance(seconds=TOMBSTONES_MS / 1_000)

    @rule()
    def replace_leader(self) -> None:
        for leader in list(self.mq._open.serving):
            leader.close()
        self.mq.serving()

    @rule()
    def check(self) -> None:
        whole, shown = self.read(WHOLE), self.read(COMPACTED)
        assert shown.items() <= whole.items()
        newest = {(partition, key): offset for (partition, offset), (key, _) in sorted(whole.items())}
        shown_keys = {(partition, key) for (partition, _), (key, _) in shown.items()}
        for (partition, key), offset in newest.items():
            is_tombstone = whole[partition, offset][1] is None
            assert (partition, offset) in shown or (is_tombstone and (partition, key) not in shown_keys)

    @rule()
    def let_it_be_compacted(self) -> None:
        def is_done() -> bool:
            let_readers_move_on(self.mq, self.clock)
            shown = self.read(COMPACTED)
            return len({(partition, key) for (partition, _), (key, _) in shown.items()}) == len(shown)

        wait_until(is_done, "compaction", PATIENCE_S)
        self.check()

    def read(self, topic: str) -> dict[Place, Content]:
        messages = self.mq.fetch(topic)
        return {(message.partition, message.offset): (message.key, message.value) for message in messages}

    def teardown(self) -> None:
        try:
            if self.producer is not None:
                self.end_transaction(True)
            self.let_it_be_compacted()
            wait_until(lambda: not find_difference(self.mq), "equal tables, fetches and views", PATIENCE_S)
            check_each_added_once(self.mq)
            assert [outcome.rule for outcome in audit(self.mq.namespace, None).outcomes if outcome.broken] == []
        finally:
            self.open.close()
            self.folder.cleanup()


@pytest.mark.extended
@pytest.mark.hypothesis
def test_compacted_topic_shows_the_newest_message_of_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LONG_RUN", 2)
    run_state_machine_as_test(Compaction, settings=runs(4, 15))
