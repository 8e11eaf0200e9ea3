"""`lakemq sql` reaches the tables and views of its namespace and nothing else, unless it is told so."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result
from unit.served import new_topic, served

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql.query import connect_duckdb
from lakemq.jobs.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with served(tmp_path_factory.mktemp("files")) as connection:
        topic = new_topic(connection)
        connection.publish(topic, pa.table({"value": ["there"]}))
    # all of it was projected when the lease was handed over
    with lakemq.connect(connection.namespace.path) as again:
        yield again


def sql(path: str | Path, query: str, *options: str, stdin: bytes = b"") -> Result:
    arguments = ["--path", str(path), "sql", "--dialect", "duckdb", *options, "--output", "csv", "--", query]
    return CliRunner().invoke(app, arguments, input=stdin)


OUTSIDE = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{file}'",
    "CREATE TABLE t(a VARCHAR); COPY t FROM '{file}'",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{namespace}/journal/out.parquet'",
    "SELECT * FROM read_parquet('{namespace}/journal/*.parquet')",
    "EXPORT DATABASE '{folder}/out'",
    "ATTACH '{file}' AS other (READ_ONLY)",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{file}'",
    "CREATE PERSISTENT SECRET (TYPE http)",
    "PRAGMA profiling_output = '{folder}/out.json'",
    "CALL enable_logging(storage = 'file', storage_config = {{'path': '{folder}/out'}})",
    "SELECT * FROM 'https://example.invalid/x.csv'",
]

SETTINGS = [
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET lock_configuration",
    "SET temp_directory = '{folder}'",
    "SET python_enable_replacements = true",
]


def test_nothing_outside_the_tables_is_read_or_written(
    mq: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder, working = tmp_path / "mine.csv", tmp_path / "folder", tmp_path / "working"
    file.write_text("mine\nhush\n")
    folder.mkdir()
    working.mkdir()
    monkeypatch.chdir(working)
    journal = Path(mq.namespace.path, "journal")
    before = sorted(os.listdir(journal))
    for query in (*OUTSIDE, *SETTINGS):
        result = sql(mq.namespace.path, query.format(file=file, folder=folder, namespace=mq.namespace.path))
        (line,) = result.stderr.splitlines()
        assert (result.exit_code, result.stdout) == (1, ""), query
        assert line.startswith("SQL_ERROR: ")
        assert "hush" not in line
        assert file.read_text() == "mine\nhush\n"
        assert os.listdir(folder) == os.listdir(working) == [], query
        assert {name for name in os.listdir(journal) if "out" in name} <= {*before}, query


def test_refused_files_name_the_option_allow_files(mq: Connection) -> None:
    assert sql(mq.namespace.path, "SELECT * FROM read_text('/etc/passwd')").stderr.endswith(
        "(`lakemq sql --allow-files` permits it.)\n"
    )


def test_allow_files_permits_files(mq: Connection, tmp_path: Path) -> None:
    query = f"SET threads = 1; COPY (SELECT decode(value) AS v FROM log) TO '{tmp_path}/out.csv'"
    assert sql(mq.namespace.path, query, "--allow-files").exit_code == 0
    assert (tmp_path / "out.csv").read_text() == "v\nthere\n"
    again = sql(mq.namespace.path, f"SELECT * FROM read_csv('{tmp_path}/out.csv')", "--allow-files")
    assert again.stdout == "v\nthere\n"


def test_tables_are_found_whatever_the_path_looks_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd, root = tmp_path / "o'd \u00fc; d", tmp_path / "mq"
    with served(root) as connection:
        connection.publish(new_topic(connection), pa.table({"value": ["there"]}))
    shutil.copytree(root, odd, ignore=shutil.ignore_patterns("*.sock"))
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(root)
    for path in (
        "./../mq/mq",
        f"{root}/mq//",
        f"{tmp_path}/link/mq",
        f"{odd}/mq",
        f"file://{root}/mq",
        f"file://{odd}/mq",
    ):
        assert sql(path, "SELECT decode(value) AS v FROM log").stdout == "v\nthere\n", path


def test_missing_statement_is_refused(mq: Connection) -> None:
    for query in ("", ";", " \n", "-- only a comment"):
        for result in (sql(mq.namespace.path, query), sql(mq.namespace.path, "-", stdin=query.encode())):
            (line,) = result.stderr.splitlines()
            assert (result.exit_code, result.stdout) == (1, "")
            assert line.startswith("INVALID_REQUEST: There is no statement to run.")


def test_folder_for_spilled_rows_is_private_and_removed(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    connection = connect_duckdb(mq.namespace)
    (folder,) = os.listdir(tmp_path)
    assert os.stat(tmp_path / folder).st_mode & 0o077 == 0
    connection.execute("SET VARIABLE x = 1")
    del connection
    assert os.listdir(tmp_path) == []
