"""Tests of the stored format: only LakeMQ writes the tables, and other versions are refused."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from unit.pages import read_page
from unit.served import CONFIG

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.protocol.errors import NamespaceError, NewerFormat
from lakemq.engine.protocol.values.journal import FORMAT_VERSION
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import FINAL_MESSAGES, INBOX, SCHEDULES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import SCHEMA_VERSION, VERSION_PROPERTY
from lakemq.tables.specs.topics import TOPICS
from lakemq.tables.storage.delta.delta_log import WRITER_FEATURE
from lakemq.tables.storage.delta.store import NewerTable, OlderTable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new namespace."""
    open_namespace(str(tmp_path), create=True)
    return tmp_path


# -- other writers ------------------------------------------------------------------------------------------


def test_a_new_table_is_read_by_every_delta_reader(folder: Path) -> None:
    for spec in TABLES:
        table = DeltaTable(str(folder / spec.name))
        assert table.version() == 0
        assert table.to_pyarrow_dataset().to_table().num_rows == 0
        assert table.metadata().description == spec.comment
        assert table.protocol().min_reader_version == 1


def test_every_table_but_the_inbox_refuses_other_writers(folder: Path) -> None:
    write_deltalake(str(folder / INBOX.name), INBOX.empty(), mode="append")
    for spec in TABLES:
        if spec is not INBOX:
            with pytest.raises(DeltaError, match=WRITER_FEATURE):
                write_deltalake(str(folder / spec.name), spec.empty(), mode="append")


def remove_a_file(folder: Path) -> DeltaTable:
    """Let LakeMQ replace a file of `topics`, and return the table as another program sees it."""
    with lakemq.connect(str(folder), config=CONFIG) as mq:
        for name in "ab":
            with mq.serving():
                mq.topics.create(name)
        handle = mq.namespace.store.open(TOPICS)
        handle.replace_at(handle.version, [], handle.files()[:1])
    return DeltaTable(str(folder / TOPICS.name))


def test_vacuum_by_another_program_deletes_no_file(folder: Path) -> None:
    table = remove_a_file(folder)
    files = set((folder / TOPICS.name).iterdir())
    with pytest.raises(DeltaError, match=WRITER_FEATURE):
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert set((folder / TOPICS.name).iterdir()) == files


def test_checkpoint_and_cleanup_by_another_program_change_nothing(folder: Path) -> None:
    """Delta-rs does not ask the writer features before these two."""
    table = remove_a_file(folder)
    version, rows = table.version(), table.to_pyarrow_table()
    table.create_checkpoint()
    table.cleanup_metadata()
    handle = open_namespace(str(folder)).store.open(TOPICS)
    assert (handle.version, handle.read()) == (version, rows)


def test_cleanup_by_another_program_leaves_a_stream_the_entries_that_it_reads_again(folder: Path) -> None:
    """The leader keeps entries of `final_messages` while no new messages come, however old they are."""
    handle = open_namespace(str(folder)).store.open(FINAL_MESSAGES)
    for _ in range(3):
        handle.replace_at(handle.version, [])
    entries = sorted((folder / FINAL_MESSAGES.name / "_delta_log").glob("*.json"))
    long_ago = time.time() - 300 * 86_400
    for entry in entries:
        os.utime(entry, (long_ago, long_ago))
    table = DeltaTable(str(folder / FINAL_MESSAGES.name))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert sorted((folder / FINAL_MESSAGES.name / "_delta_log").glob("*.json")) == entries


# -- versions of the format ---------------------------------------------------------------------------------


def pretend_version(folder: Path, version: int) -> None:
    """Pretend that another version of LakeMQ wrote the journal."""
    entry = folder / JOURNAL.name / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"][VERSION_PROPERTY] = str(version)
    entry.write_text("\n".join(map(json.dumps, actions)))


def test_a_namespace_of_a_newer_version_is_refused(folder: Path) -> None:
    store = open_namespace(str(folder)).store
    pretend_version(folder, SCHEMA_VERSION + 1)
    with pytest.raises(NewerTable, match=f"schema version {SCHEMA_VERSION + 1}, this LakeMQ supports {SCHEMA_VERSION}"):
        store.open(JOURNAL)
    for create in (False, True):
        with pytest.raises(NewerFormat, match=r"NEWER_FORMAT.*schema version"):
            open_namespace(str(folder), create=create)


def test_a_namespace_of_an_older_version_is_refused(folder: Path) -> None:
    store = open_namespace(str(folder)).store
    pretend_version(folder, SCHEMA_VERSION - 1)
    with pytest.raises(OlderTable, match=f"schema version {SCHEMA_VERSION - 1}, this LakeMQ needs {SCHEMA_VERSION}"):
        store.open(JOURNAL)
    with pytest.raises(NamespaceError, match=r"older LakeMQ.*no command of this one migrates it"):
        open_namespace(str(folder))


@pytest.mark.parametrize("has_table", [False, True], ids=["without a table", "without a column"])
def test_a_namespace_that_lacks_a_table_or_a_column_is_refused(folder: Path, has_table: bool) -> None:
    """As one that was made before these existed. A sequencer ends, because no later try helps."""
    if has_table:
        entry = folder / SCHEDULES.name / "_delta_log" / f"{0:020d}.json"
        entry.write_text(entry.read_text().replace("time_zone", "zone"))
    else:
        shutil.rmtree(folder / SCHEDULES.name)
    lack = r"schedules: columns \['time_zone'\] are missing" if has_table else "schedules: there is no such table"
    refusal = rf"NOT_A_NAMESPACE: The namespace lacks .*\({lack}\): an older version made it.*Expected a new namespace"
    with Connection(open_namespace(str(folder))) as mq:
        with pytest.raises(NamespaceError, match=refusal):
            mq.schedules.list()
        sequencer = mq.sequencer()
        with pytest.raises(NamespaceError, match=refusal):
            sequencer.try_lead()
        sequencer.resign()


def test_page_of_upgrades_has_the_formats_of_this_version() -> None:
    version = re.escape(lakemq.__version__.removesuffix(".0"))
    row = rf"^\| {version}\b.*\| {SCHEMA_VERSION} \| {FORMAT_VERSION} \|$"
    assert re.search(row, read_page("operations.md"), re.MULTILINE)
