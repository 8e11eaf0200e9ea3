"""Tests of this folder share a busy namespace and a browser."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.webdriver import Tab, open_tab
from unit.busy_namespace import BusyNamespace, open_busy_namespace

from lakemq.engine.namespace.namespace import open_namespace
from lakemq.tables.specs.journal import SAMPLES, SampleRow


def add_samples(folder: Path) -> None:
    """Create the namespace with samples of the last hour: of a topic that comes in waves, and a group that stood still.

    They have step 0, so that the leader goes on after them.
    """
    store = open_namespace(str(folder / "mq"), create=True).store
    now_ms, rows, total, done = int(time.time() * 1000), [], 0, 0
    for minute in range(60):
        total += 900 + int(400 * math.sin(minute / 6))
        done = done if 25 <= minute < 40 else min(total - 20, done + 2_000)
        common = {"step": 0, "minute_ms": now_ms - 60_000 * (60 - minute)}
        rows += [
            SampleRow(**common, topic="payments", group="", offsets=total),
            SampleRow(**common, topic="payments", group="billing", offsets=done, lag=total - done),
            SampleRow(**common, topic="payments", group="audit", offsets=total - 90, lag=90),
            SampleRow(
                **common, topic="", group="", steps=300 + minute, step_p50_ms=3, step_p99_ms=9 + minute % 7, late_ms=40
            ),
        ]
    handle = store.open(SAMPLES)
    handle.append_at(handle.version, SAMPLES.table(rows), 0)


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyNamespace]:
    # a relative path, so that the pictures show none of this machine
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("pictures"))
    try:
        add_samples(Path("data"))
        with open_busy_namespace(Path("data")) as namespace:
            yield namespace
    finally:
        os.chdir(before)


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with open_tab(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
