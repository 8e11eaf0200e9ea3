"""Loss of power at any moment: acknowledged messages are there, and so are all files on which they depend."""

import re
from pathlib import Path

import pytest
from faults.checks import check_all
from faults.messages import Acknowledged
from faults.power import LOSSES, Disk, Loss, Note, RecordedDisk, disk_after, read_tellings
from faults.processes import PATIENCE_S, QUICK, TOPIC, start
from faults.shims import compile_library
from targets import nightly_but

pytestmark = [pytest.mark.slow, pytest.mark.extended]

ROUNDS, COUNT = 2, 30
ENTRY = re.compile(r"/_delta_log/(\d{20})\.json$")
CHECKPOINT = re.compile(r"/_delta_log/(\d{20})\.checkpoint.*\.parquet$")


@pytest.fixture(scope="module")
def recorded_disk(tmp_path_factory: pytest.TempPathFactory) -> RecordedDisk:
    """A namespace that a process has made and filled, and a record of all changes of its disk."""
    folder = tmp_path_factory.mktemp("power")
    disk = RecordedDisk(compile_library("disk_shim", folder), folder)
    arguments = {"topic": TOPIC, "publisher": "p", "rounds": ROUNDS, "count": COUNT, "notes": str(disk.notes_file)}
    with (
        (folder / "children.log").open("w") as log,
        start("fill", log, None, disk.environ, path=f"{disk.root}/namespace", config=QUICK, **arguments) as child,
    ):
        assert child.wait(PATIENCE_S) == 0, (folder / "children.log").read_text()
    return disk


@pytest.fixture(scope="module")
def notes(recorded_disk: RecordedDisk) -> list[Note]:
    notes = recorded_disk.notes()
    assert len(read_tellings(notes)) == ROUNDS * COUNT
    assert any(note.kind == "gone" and ENTRY.search(note.path) for note in notes), "no log entry was ever removed"
    return notes


def test_tables_survive_power_loss_before_first_acknowledgement(recorded_disk: RecordedDisk, notes: list[Note]):
    """The first acknowledgement comes when the first version of every table would survive."""
    first = next(i for i, note in enumerate(notes) if note.kind == "told")
    disk = disk_after(notes[:first])
    versions = [path for path in disk.names if path.endswith(f"/_delta_log/{0:020d}.json")]
    assert len(versions) > 10
    assert [path for path in versions if not disk.survives(path, str(recorded_disk.root))] == []


def test_log_entry_is_removed_after_its_checkpoint_is_durable(recorded_disk: RecordedDisk, notes: list[Note]):
    """The checkpoint's name in `_last_checkpoint` would survive, too."""
    root, disk, too_early = str(recorded_disk.root), Disk(), set[str]()
    for note in notes:
        disk.follow(note)
        entry = ENTRY.search(note.path) if note.kind == "gone" else None
        if entry and not _covers_entry(disk, note.path.rpartition("/")[0], int(entry[1]), root):
            too_early.add("/".join(note.path.split("/")[-3:]))
    assert not too_early, f"{len(too_early)} entries: {sorted(too_early)[:3]}"


def _covers_entry(disk: Disk, log: str, version: int, root: str) -> bool:
    checkpoints = [path for path in disk.names if path.startswith(f"{log}/") and CHECKPOINT.search(path)]
    whole = [path for path in checkpoints if disk.survives(path, root)]
    return any(int(CHECKPOINT.search(path)[1]) >= version for path in whole) and disk.survives(  # type: ignore[index]
        f"{log}/_last_checkpoint", root
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("after", nightly_but([COUNT + 1], [1, COUNT + 1, ROUNDS * COUNT]))
def test_acknowledged_messages_survive_power_loss(
    loss: Loss, after: int, recorded_disk: RecordedDisk, notes: list[Note], tmp_path: Path
):
    """Power is lost right after so many acknowledgements. The namespace goes on, and no message is missing."""
    moments = [i for i, note in enumerate(notes) if note.kind == "told"]
    until = notes[: moments[after - 1] + 1]
    recorded_disk.restore(disk_after(until), loss, tmp_path)
    acknowledged = [Acknowledged(*fields) for fields in read_tellings(until)]  # type: ignore[arg-type]
    assert len(acknowledged) == after
    check_all(str(tmp_path / "namespace"), TOPIC, acknowledged)


@pytest.mark.parametrize("loss", nightly_but(["removals only"], LOSSES))
def test_namespace_survives_power_loss_after_removal_of_log_entries(
    loss: Loss, recorded_disk: RecordedDisk, notes: list[Note], tmp_path: Path
):
    """Power is lost right after the last removal of a log entry, in any table."""
    last = max(i for i, note in enumerate(notes) if note.kind == "gone" and ENTRY.search(note.path))
    until = notes[: last + 1]
    recorded_disk.restore(disk_after(until), loss, tmp_path)
    check_all(str(tmp_path / "namespace"), TOPIC, [Acknowledged(*fields) for fields in read_tellings(until)])  # type: ignore[arg-type]
