"""Migrations have no gaps and end at the version that the code writes.

Other versions are refused with a clear error.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.protocol.errors import NamespaceError, NewerFormat
from lakemq.tables.migrations import Migration, all_migrations, migrate
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import SCHEMA_VERSION, VERSION_PROPERTY
from lakemq.tables.storage.coordination.step_objects import step_name
from lakemq.tables.storage.delta.store import NewerTable, NotATable, OlderTable, Store
from lakemq.tables.storage.object_stores.files import LocalFiles


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(LocalFiles(str(tmp_path)))


def test_numbers_have_no_gap_and_end_at_the_schema_version() -> None:
    assert [migration.number for migration in all_migrations()] == list(range(1, SCHEMA_VERSION + 1))
    assert all(re.match(r"[A-Z].*\.$", migration.description) for migration in all_migrations())


@pytest.mark.slow
def test_all_of_them_make_a_namespace(store: Store) -> None:
    store.files.put(step_name(0), b"")
    assert migrate(store, 0) == all_migrations()
    for spec in TABLES:
        assert store.open(spec).version == 0
    assert migrate(store, 0) == all_migrations()
    assert {store.open(spec).version for spec in TABLES} == {0}
    assert migrate(store, SCHEMA_VERSION) == []


@pytest.mark.slow
def test_tables_without_a_first_step_are_no_namespace(store: Store) -> None:
    with pytest.raises(NotATable, match=f"{step_name(0)} is missing"):
        migrate(store, 0)


def test_those_after_a_version_are_applied_in_order(store: Store) -> None:
    applied: list[int] = []
    migrations = [Migration(n, f"The {n}th.", lambda _, n=n: applied.append(n)) for n in (1, 2, 3, 4)]  # type: ignore[misc]
    assert migrate(store, 2, migrations) == migrations[2:]
    assert applied == [3, 4]


def test_one_that_fails_stops_those_after_it(store: Store) -> None:
    applied: list[int] = []

    def fail(_: Store) -> None:
        raise OSError("disk full")

    migrations = [Migration(1, "Fails.", fail), Migration(2, "Never.", lambda _: applied.append(2))]
    with pytest.raises(OSError, match="disk full"):
        migrate(store, 0, migrations)
    assert applied == []


def pretend(folder: Path, table: str, version: str) -> None:
    """Pretend that another version wrote the table."""
    entry = folder / table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"][VERSION_PROPERTY] = version
    entry.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.slow
def test_a_namespace_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = open_namespace(str(tmp_path), create=True).store
    pretend(tmp_path, JOURNAL.name, str(SCHEMA_VERSION + 1))
    with pytest.raises(NewerTable, match=f"schema version {SCHEMA_VERSION + 1}, this LakeMQ supports {SCHEMA_VERSION}"):
        store.open(JOURNAL)
    for create in (False, True):
        with pytest.raises(NewerFormat, match=r"NEWER_FORMAT.*schema version"):
            open_namespace(str(tmp_path), create=create)


@pytest.mark.slow
def test_a_namespace_of_an_older_version_is_refused(tmp_path: Path) -> None:
    store = open_namespace(str(tmp_path), create=True).store
    pretend(tmp_path, JOURNAL.name, str(SCHEMA_VERSION - 1))
    with pytest.raises(OlderTable, match=f"schema version {SCHEMA_VERSION - 1}, this LakeMQ needs {SCHEMA_VERSION}"):
        store.open(JOURNAL)
    with pytest.raises(NamespaceError, match=r"older LakeMQ.*no command of this one migrates it"):
        open_namespace(str(tmp_path))
