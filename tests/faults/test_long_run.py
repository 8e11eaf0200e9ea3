"""A sequencer that serves for long: the tables stay small."""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.checks import check_all
from faults.messages import value_of
from faults.processes import TOPIC

import lakemq
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
def test_tables_do_not_grow_over_2000_steps(namespace: Path):
    samples: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    with lakemq.connect(str(namespace), config=CONFIG) as mq, mq.serving(), mq.producer(linger_ms=0) as producer:
        for number in range(STEPS):
            producer.send(TOPIC, value_of("p", number)).result()
            if (number + 1) % SAMPLE == 0:
                for name, sizes_now in sizes(mq.namespace.store, namespace).items():
                    samples[name].append(sizes_now)
    half = len(samples["journal"]) // 2
    for name, sizes_now in samples.items():
        for kind, first, second in zip(
            ("live files", "data files", "log entries"), _most(sizes_now[:half]), _most(sizes_now[half:]), strict=True
        ):
            assert second <= 1.3 * first + 20, f"{name} had up to {first} {kind}, and up to {second} later"
    assert check_all(str(namespace), TOPIC, []).num_rows == STEPS


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
