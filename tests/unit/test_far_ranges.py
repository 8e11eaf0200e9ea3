"""Two hundred thousand waiting messages, each sent alone, over a year: their memory.

`tests/bench/far_delays.py` measures ten million in a process of their own.
"""

import importlib
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakemq
from lakemq.engine.namespace.load import load_state, read_watermark
from lakemq.engine.namespace.waiting_rows import LaterRanges
from lakemq.engine.protocol.values.state import State
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.native_calls import Workers

pytestmark = pytest.mark.extended

COUNT = 200_000
HELD_BYTES_PER_RANGE = 16
"""They take about 9. As objects they would take 600."""

PEAK_BYTES = 40 << 20
"""A read holds the hashes of all keys, 8 bytes each, and a piece of 65,536 rows."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = str(tmp_path_factory.mktemp("far") / "mq")
    with pytest.MonkeyPatch.context() as patches:
        patches.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
        far_delays: Any = importlib.import_module("far_delays")
    with lakemq.connect(folder, create=True) as mq:
        with mq.serving():
            mq.topics.create("w", 8)
        far_delays.write_far_ranges(folder, COUNT)
        yield mq.namespace.store


def load(store: Store) -> tuple[State, LaterRanges]:
    later = LaterRanges(Workers(1, "test-later"), time.time_ns() // 1_000_000)
    return load_state(store, read_watermark(store), later=later), later


@pytest.mark.slow
def test_ranges_take_few_bytes_each(store: Store) -> None:
    load(store)[0].delays.ranges.packed.complete()  # first allocations do not count
    tracemalloc.start()
    try:
        state, later = load(store)
        state.delays.ranges.packed.complete()
        later.stop()
        held_bytes, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(state.delays.ranges) == COUNT
    assert held_bytes < COUNT * HELD_BYTES_PER_RANGE + 600 * len(state.delays.ranges.unpacked)
    assert peak < PEAK_BYTES
    sizes = [block.size_bytes for block in state.delays.ranges.packed.blocks]
    assert sum(sizes) < 10 * COUNT
