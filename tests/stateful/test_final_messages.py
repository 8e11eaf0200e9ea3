"""Whatever happens to messages, `final_messages` ends with those that a fetch shows, each once.

A compacted topic shows the newest message of each key that another topic has, which takes the same messages and is not
compacted. A real leader, which is replaced at random, and a clock that goes on and jumps.
Kills between two writes: `test_sequencer.py` and `test_interruptions.py`.
"""

import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from finals import (
    PATIENCE_S,
    are_all_final,
    check_each_added_once,
    find_difference,
    let_readers_move_on,
    read_from_final_files,
)
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from stateful.runs import runs
from unit.served import until

from lakemq.engine.maintenance import compaction
from lakemq.errors import LakeMQError
from lakemq.jobs.audit import audit
from lakemq.testing import MovableClock, serve, wait_until

pytestmark = pytest.mark.slow

CONFIG = {
    "engine.tick.ms": 1,
    "project.interval.ms": 20,
    "final.interval.ms": 50,
    "compact.min.files": 2,
    "merge.grace.ms": 9_000,
    "checkpoint.interval": 5,
    "journal.rows.max.bytes": 400,
    "retention.check.interval.ms": 1_000,
}
TOPICS = ("a", "b.c")
COMPACTED, WHOLE = "compacted", "whole"
TOMBSTONES_MS = 100_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": TOMBSTONES_MS}

topics = st.sampled_from(TOPICS)
names = st.sampled_from(["x", "y"])
contents = st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.text("xyz", max_size=2)), min_size=1, max_size=9)


class FinalMessages(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="lakemq-finals-")
        self.clock, self.open = MovableClock(), ExitStack()
        self.mq = self.open.enter_context(serve(Path(self.folder.name, "mq"), self.clock, CONFIG))
        self.seen: dict[tuple[int, int, int], bytes] = {}
        self.count = 0
        self.producers: dict[str, Any] = {}
        self.mq.groups.create("g", {"group.protocol": "queue"})
        for topic in TOPICS:
            self.mq.topics.create(topic, 2, config={"ttl.ms": 600_000} if topic == "a" else {})
        self.mq.topics.create(COMPACTED, 2, config=COMPACT)
        self.mq.topics.create(WHOLE, 2)

    def next_values(self, count: int) -> list[str]:
        self.count += count
        return [f"m{self.count - i}" for i in range(count)]

    @rule(topic=topics, count=st.integers(1, 5), inline=st.booleans())
    def publish(self, topic: str, count: int, inline: bool) -> None:
        values = self.next_values(count)
        if inline:
            with self.mq.producer() as producer:
                for value in values:
                    producer.send(topic, value, key=value[:2])
        else:
            self.mq.publish(topic, pa.table({"value": values, "key": [value[:2] for value in values]}))

    @rule(messages=contents)
    def publish_with_keys(self, messages: list[tuple[str, str | None]]) -> None:
        keys, values = zip(*messages, strict=True)
        for topic in (COMPACTED, WHOLE):
            self.mq.publish(topic, pa.table({"key": keys, "value": pa.array(values, pa.string())}))

    def begin_transaction(self, name: str) -> Any:
        if name not in self.producers:
            self.producers[name] = self.mq.producer(name, transaction_timeout_ms=900_000)
            self.producers[name].begin_transaction()
        return self.producers[name]

    @rule(topic=topics, name=names)
    def send_in_transaction(self, topic: str, name: str) -> None:
        producer = self.begin_transaction(name)
        producer.send(topic, *self.next_values(1))
        producer.flush()

    @rule(messages=contents, name=names)
    def send_with_keys_in_transaction(self, messages: list[tuple[str, str | None]], name: str) -> None:
        producer = self.begin_transaction(name)
        for topic in (COMPACTED, WHOLE):
            for key, value in messages:
                producer.send(topic, value, key=key)
            producer.flush()

    @rule(commits=st.booleans())
    @precondition(lambda self: self.producers)
    def end_transaction(self, commits: bool) -> None:
        _, producer = self.producers.popitem()
        with producer, suppress(LakeMQError):  # its topic may be gone
            producer.commit_transaction() if commits else producer.abort_transaction()

    @rule(topic=topics)
    def delay(self, topic: str) -> None:
        self.mq.publish(topic, pa.table({"value": self.next_values(2), "delay_ms": [30, 60]}))

    @rule(topic=topics)
    def expire(self, topic: str) -> None:
        self.mq.publish(topic, pa.table({"value": self.next_values(2), "ttl_ms": [1, None]}))

    @rule(topic=topics, size_bytes=st.sampled_from([1, 3_000]))
    def retain(self, topic: str, size_bytes: int) -> None:
        """Let retention delete the oldest messages, also later ones, until the topic is replaced."""
        self.mq.topics.alter(topic, config={"retention.bytes": size_bytes})

    @rule(topics=st.sampled_from([("a",), ("b.c",), (COMPACTED, WHOLE)]), partition=st.integers(0, 1))
    def delete_records(self, topics: tuple[str, ...], partition: int) -> None:
        end = self.mq.end_offsets(topics[0])[partition]
        for topic in topics:
            self.mq.topics.delete_records(topic, {partition: end // 2})

    @rule()
    def let_tombstones_age(self) -> None:
        self.clock.advance(seconds=TOMBSTONES_MS / 1_000)

    @rule(topic=topics)
    @precondition(lambda self: not self.producers)
    def replace_topic(self, topic: str) -> None:
        self.mq.topics.delete(topic)
        self.mq.topics.create(topic, 2)

    @rule()
    def add_partition(self) -> None:
        count = self.mq.topics.describe("b.c").partitions
        self.mq.topics.alter("b.c", partitions=min(count + 1, 4))

    @rule()
    def reject_and_redrive(self) -> None:
        with self.mq.consumer("g", topics=["a"], auto_offset_reset="earliest") as consumer:
            consumer.reject(list(consumer.poll(timeout_ms=100)), error="no good")
            consumer.flush()
        with suppress(LakeMQError):
            self.mq.dead_letters.redrive("a.dlq")

    @rule()
    def wait(self) -> None:
        """Wait until the table is right. Delayed messages and dead letters may come meanwhile."""
        until(lambda: are_all_final(self.mq) and not find_difference(self.mq))
        check_each_added_once(self.mq)
        self.check_seen_messages()
        self.check_newest_messages()

    @rule()
    def read_from_final_files(self) -> None:
        """Wait until messages are read from final files, and nothing has changed by that."""
        read_from_final_files(self.mq, self.clock)
        self.wait()

    def check_seen_messages(self) -> None:
        """Check that each message that was once read is as it was, unless it was deleted or has expired."""
        topics = self.mq.state().topics
        values: dict[tuple[int, int, int], bytes] = {}
        for topic_id, topic in topics.items():
            if topic.topic == COMPACTED:
                continue
            rows = self.mq.fetch(topic.topic, include_expired=True).to_arrow()
            columns = (rows.column(name).to_pylist() for name in ("partition", "offset", "value"))
            values |= {(topic_id, partition, offset): value for partition, offset, value in zip(*columns, strict=True)}
        for place, value in self.seen.items():
            topic_id, partition, offset = place
            if topic_id in topics and offset >= topics[topic_id].log_starts[partition]:
                assert values[place] == value
        self.seen = values

    def check_newest_messages(self) -> None:
        """Check that the compacted topic has the newest message of each key, unless that is an old tombstone."""
        whole, shown = self.read(WHOLE), self.read(COMPACTED)
        assert shown.items() <= whole.items()
        old_tombstones = self.find_old_tombstones()
        newest = {(partition, key): offset for (partition, offset), (key, _) in sorted(whole.items())}
        shown_keys = {(partition, key) for (partition, _), (key, _) in shown.items()}
        for (partition, key), offset in newest.items():
            may_go = (partition, offset) in old_tombstones and (partition, key) not in shown_keys
            assert may_go or (partition, offset) in shown

    def find_old_tombstones(self) -> set[tuple[int, int]]:
        """Return the places of tombstones that compaction may have removed by now."""
        latest_ms = self.clock.now_ms() - TOMBSTONES_MS
        messages = [message for message in self.mq.fetch(WHOLE) if message.value is None]
        return {(m.partition, m.offset) for m in messages if m.timestamp.timestamp() * 1000 <= latest_ms}

    def read(self, topic: str) -> dict[tuple[int, int], tuple[bytes, bytes | None]]:
        messages = self.mq.fetch(topic)
        return {(message.partition, message.offset): (message.key, message.value) for message in messages}

    def is_compacted(self) -> bool:
        let_readers_move_on(self.mq, self.clock)
        shown = self.read(COMPACTED)
        return len({(partition, key) for (partition, _), (key, _) in shown.items()}) == len(shown)

    @rule()
    def wait_for_compaction(self) -> None:
        wait_until(self.is_compacted, "compaction", PATIENCE_S)
        self.check_newest_messages()

    @rule()
    def replace_leader(self) -> None:
        for leader in list(self.mq._open.serving):
            leader.close()
        self.mq.serving()

    def teardown(self) -> None:
        try:
            while self.producers:
                self.end_transaction(True)
            self.wait_for_compaction()
            self.read_from_final_files()
            broken = [outcome.rule for outcome in audit(self.mq.namespace, None).outcomes if outcome.broken]
            assert [rule for rule in broken if not rule.is_warning] == []
        finally:
            self.open.close()
            self.folder.cleanup()


@pytest.mark.hypothesis
def test_final_messages_equal_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LONG_RUN", 2)
    run_state_machine_as_test(FinalMessages, settings=runs(30, 15))
