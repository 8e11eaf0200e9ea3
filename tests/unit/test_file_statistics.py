"""The statistics of a file in Delta's log are true for every row in it, and every reader can read them."""

from pathlib import Path
from threading import Lock

import pyarrow as pa
import pytest

from lakemq.engine.maintenance.final_table import FinalTable
from lakemq.engine.maintenance.housekeeping import Housekeeping
from lakemq.engine.maintenance.merging import DataFileMerger
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.data_file import file_name, new_file_id
from lakemq.engine.namespace.load import BEGINNING
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.namespace.progress import Sampler
from lakemq.engine.protocol.values.journal import JournalEntry, Step
from lakemq.engine.protocol.values.log import DataFile, FilesAdded
from lakemq.engine.protocol.values.state import State
from lakemq.engine.sequencer.projector import Projector, plan_projection
from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.storage.delta.commits import StoredFile, compute_statistics

pytestmark = [pytest.mark.slow, pytest.mark.extended]

FILE = 0x0123456789ABCDEF
LAST_MS = 253_402_300_799_999


def register_file(folder: Path, low_ms: int, high_ms: int) -> StoredFile:
    namespace = open_namespace(str(folder), create=True)
    clock = SystemClock()
    data_files = DataFileMerger(namespace.store, namespace.config, clock, new_file_id, Lock())
    housekeeping = Housekeeping(namespace.files, namespace.config, clock, BEGINNING, clock.now_ms, data_files)
    (folder / file_name(FILE)).write_bytes(b"!")
    file = DataFile(FILE, 1, 7, low_ms, high_ms, 7)
    step = Step(1, 0, 1, [JournalEntry(FilesAdded([file]))])
    work = plan_projection(State(step=1), [step], 0, Sampler(State()))
    final_table = FinalTable(namespace.files, namespace.config, clock, new_file_id)
    Projector(namespace.store, BEGINNING, housekeeping, final_table, clock.steady_ms).write(work, lambda: None)
    (stored,) = namespace.store.open(MESSAGES).files()
    return stored


def test_a_file_is_known_by_its_id_rows_and_times(tmp_path: Path) -> None:
    stored = register_file(tmp_path, 1_000, 2_000)
    assert (stored.path, stored.record_count) == ("0123456789abcdef.parquet", 7)
    bounds = {name: stored.statistics[name] for name in ("min.file_id", "max.file_id", "min.row", "max.row")}
    assert bounds == {"min.file_id": FILE, "max.file_id": FILE, "min.row": 0, "max.row": 6}
    assert stored.statistics["min.timestamp"].timestamp() == 1
    assert 2 < stored.statistics["max.timestamp"].timestamp() <= 2.001


@pytest.mark.parametrize(("low_ms", "high_ms"), [(-1, 0), (0, LAST_MS), (0, 2**53), (-(2**53), 2**53)])
def test_times_nobody_can_read_are_left_out(tmp_path: Path, low_ms: int, high_ms: int) -> None:
    """Rows were refused for their timestamp. One of them made the table unreadable."""
    stored = register_file(tmp_path, low_ms, high_ms)
    assert stored.statistics.get("min.timestamp") is None
    assert stored.statistics["max.row"] == 6


def test_long_texts_bound_no_merged_file() -> None:
    """The texts of a client's results or a topic's settings would stand in the log at full length."""
    rows = pa.table({"step": [3, 9], "name": ["b", "a"], "results": ["[" + "x" * 100 + "]", "[]"], "none": [None, "y"]})
    statistics = compute_statistics(rows)
    assert statistics["minValues"] == {"step": 3, "name": "a", "none": "y"}
    assert statistics["maxValues"] == {"step": 9, "name": "b", "none": "y"}
    assert statistics["nullCount"] == {"step": 0, "name": 0, "none": 1}
