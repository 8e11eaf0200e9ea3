"""A sequencer that serves for long: steps stay quick, and the tables stay small."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from faults.checks import check_all
from faults.messages import value_of
from faults.processes import TOPIC
from protocol_harness import letter_bytes

import lakemq
from lakemq.engine.client.rows.body import build_arrow_body
from lakemq.engine.client.rows.input_rows import read_columns
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.data_file import BODY_SCHEMA, new_file_id
from lakemq.engine.protocol.codec.letter import decode_answer
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.kinds import AnyResult
from lakemq.engine.protocol.values.log import Produce, Published, Ranges
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.store import NotATable, Store, TableHandle

STEPS = 2_000
SAMPLE = 100
CONFIG = {
    "project.interval.ms": 100,
    "checkpoint.interval": 15,
    "compact.min.files": 12,
    "reader.grace.ms": 1000,
    "merge.grace.ms": 1000,
    "lease.ms": 2000,
}


@pytest.fixture
def namespace(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A namespace whose tables keep log entries for a second instead of minutes, and are cleaned as often."""
    path = tmp_path / "namespace"
    shutil.copytree(template, path)
    for spec in TABLES:
        monkeypatch.setitem(vars(spec), "log_retention_ms", 1000)
    yield path
    shutil.rmtree(path)


class SteppingClient:
    """A client that puts one letter with one message at a time, and lets a sequencer of its own take a step."""

    def __init__(self, namespace: Path, **config: int) -> None:
        self._mq = lakemq.connect(str(namespace), config={**CONFIG, **config})
        self._clock, self._mailbox, self.store = SystemClock(), self._mq.namespace.mailbox, self._mq.namespace.store
        self._sequencer = Sequencer(self._mq.namespace, "long", self._clock, new_file_id)
        assert self._sequencer.try_lead()
        topic = self._mq.state().topic(TOPIC)
        self._ref, self._step = TopicRef(TOPIC, topic.topic_id, topic.partition_count), self._mq.state().step
        self.ask_count = 0

    def __enter__(self) -> SteppingClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self._sequencer.resign()
        self._mq.close()

    def ask(self) -> float:
        """Return the processor time of the step, in seconds. Unlike its duration, it does not depend on other
        processes.
        """
        now_ms = self._clock.now_ms()
        message = pa.table({"value": [value_of("p", self.ask_count + 1)]})
        body, _ = build_arrow_body(read_columns(message), TOPIC, now_ms)
        ranges = Ranges([0], [0], [-1], [0], [1], [now_ms], [now_ms])
        request = Produce([self._ref], ranges, self._step)
        letter = Letter("c", self.ask_count + 1, [request], now_ms)
        self._mailbox.put("c", letter.number, letter_bytes(letter, body.table.cast(BODY_SCHEMA)), now_ms)
        start_s = time.thread_time()
        assert self._sequencer.step().letters == 1
        took_s = time.thread_time() - start_s
        result = self._result(letter.number)
        assert isinstance(result, Published), result
        assert result.units[0].base_offset == self.ask_count
        self.ask_count += 1
        return took_s

    def _result(self, number: int) -> AnyResult:
        answer = self._mailbox.poll_answer("c", number)
        assert answer is not None
        self._mailbox.forget_answer("c", number)
        (result,) = decode_answer(answer).results
        return result


def compare_with_new(client: SteppingClient, path: Path) -> None:
    """Check that a step is as quick as in a new namespace. They alternate, because a processor can get slower by
    half.
    """
    with SteppingClient(path) as new:
        pairs = [(client.ask(), new.ask()) for _ in range(5 * SAMPLE)][SAMPLE:]
    late_s, early_s = (statistics.median(took_s) for took_s in zip(*pairs, strict=True))
    assert late_s <= 2 * early_s, f"a step took {early_s * 1000:.1f} ms, and {late_s * 1000:.1f} ms in the end"


def sizes(store: Store, path: Path) -> dict[str, tuple[int, int, int]]:
    """Return for each table the number of live files, data files on disk, and log entries."""
    return {
        spec.name: (
            len(open_table(store, spec).files()),
            len(list((path / spec.name).glob("*.parquet"))),
            len(list((path / spec.name / "_delta_log").iterdir())),
        )
        for spec in TABLES
    }


@pytest.mark.nightly
def test_steps_and_tables_stay_as_small_after_2000_steps(namespace: Path, template: Path):
    samples: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    with SteppingClient(namespace) as client:
        for number in range(STEPS):
            client.ask()
            if (number + 1) % SAMPLE == 0:
                for name, sizes_now in sizes(client.store, namespace).items():
                    samples[name].append(sizes_now)
        compare_with_new(client, Path(shutil.copytree(template, namespace.with_name("new"))))
        ask_count = client.ask_count
    half = len(samples["journal"]) // 2
    for name, sizes_now in samples.items():
        for kind, first, second in zip(
            ("live files", "data files", "log entries"), _most(sizes_now[:half]), _most(sizes_now[half:]), strict=True
        ):
            assert second <= 1.3 * first + 20, f"{name} had up to {first} {kind}, and up to {second} later"
    start_s = time.perf_counter()
    with lakemq.connect(str(namespace), config=CONFIG) as mq:
        new_sequencer = Sequencer(mq.namespace, "fresh", SystemClock(), new_file_id)
        assert new_sequencer.try_lead()
        assert time.perf_counter() - start_s < 10
        new_sequencer.resign()
    assert check_all(str(namespace), TOPIC, []).num_rows == ask_count


def _most(samples: list[tuple[int, int, int]]) -> list[int]:
    return [max(column) for column in zip(*samples, strict=True)]


def open_table(store: Store, spec: TableSpec) -> TableHandle:
    """Open a table. Its log entries are removed after a second, maybe during the opening. Then try again."""
    for _ in range(20):
        try:
            return store.open(spec)
        except NotATable:
            time.sleep(0.01)
    return store.open(spec)
