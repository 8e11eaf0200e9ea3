"""Bad input at the command line: one clear line on stderr, nothing on stdout, its exit code, and nothing half done."""

import gzip
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

import lakemq
from lakemq import errors
from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app
from lakemq.jobs.output import one_line
from lakemq.jobs.process.exits import describe_error
from lakemq.jobs.process.streams import log_to_stderr
from lakemq.tables.storage.delta.store import NewerTable, NotATable

pytestmark = [pytest.mark.slow, pytest.mark.extended]


EXIT_CODES = {
    "INVALID_CONFIG": 3,
    "NOT_A_NAMESPACE": 3,
    "NEWER_FORMAT": 3,
    "NOT_LEADER": 4,
    "INVALID_RECORD": 5,
    "INVALID_TIMESTAMP": 5,
    "MESSAGE_TOO_LARGE": 5,
}
"""All else that is refused or fails: 1."""


def run(path: Path | str, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["--path", str(path), *arguments], input=stdin)


def refusal(path: Path | str, *arguments: str, stdin: bytes = b"") -> str:
    """The one line a refused command says."""
    result = run(path, *arguments, stdin=stdin)
    assert result.stdout == "", (result.stdout, result.stderr, result.exception)
    (line,) = result.stderr.splitlines()
    assert result.exit_code == EXIT_CODES.get(line.partition(":")[0], 1), line
    assert line.isprintable()
    name, colon, message = line.partition(": ")
    assert name.isupper() and colon and message, line  # noqa: PT018
    return line


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    path = tmp_path_factory.mktemp("cli") / "mq"
    config = {"final.interval.ms": 0}  # else the sequencer makes folders meanwhile
    with lakemq.connect(str(path), create=True, config=config) as first, first.serving():
        first.topics.create("t", partitions=2)
        first.publish("t", pa.table({"value": ["there"]}))
    # the first one has projected all of it when it handed over the lease
    with lakemq.connect(str(path), config=config) as connection, connection.serving():
        yield connection


@pytest.fixture
def path(mq: Connection) -> str:
    return mq.namespace.path


# -- settings -------------------------------------------------------------------------------------------


def test_bad_settings_of_topics_are_refused(path: str) -> None:
    for config, expected in (
        (["retention.ms=1", "retention.ms=2"], "INVALID_CONFIG: A setting is given twice."),
        (["retention.ms"], "INVALID_CONFIG: A setting must be written key=value."),
        (["retention.ms=soon"], "INVALID_CONFIG: retention.ms is not valid."),
        (["retention.m=1"], "INVALID_CONFIG: Unknown parameter; did you mean"),
        (["cleanup.policy=compress"], "INVALID_CONFIG: cleanup.policy is not valid."),
    ):
        options = [part for pair in config for part in ("--config", pair)]
        assert refusal(path, "topics", "create", "new", *options).startswith(expected)


def test_a_bad_storage_option_is_refused_without_showing_what_may_be_secret(path: str) -> None:
    twice = refusal(path, "--storage-option", "key=s3cret", "--storage-option", "key=s3cret2", "topics", "list")
    assert twice == "INVALID_CONFIG: A storage option occurs twice. Found 'key'."
    odd = refusal(path, "--storage-option", "s3cret", "topics", "list")
    assert odd.startswith("INVALID_CONFIG: A storage option is written KEY=VALUE, or KEY alone ")
    assert "s3cret" not in odd


# -- paths ----------------------------------------------------------------------------------------------


def test_a_path_with_nothing_there_says_how_to_make_a_namespace(tmp_path: Path) -> None:
    line = refusal(tmp_path / "none", "topics", "list")
    assert line.startswith("NOT_A_NAMESPACE: ")
    assert line.endswith(f"lakemq --path {tmp_path}/none init.")
    assert not (tmp_path / "none").exists()


def test_paths_that_no_namespace_can_have_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in ("s3x://a/b", "a%20b", "a\0b", "a?b", file):
        for command in (["init"], ["topics", "list"]):
            assert refusal(path, *command).startswith("NOT_A_NAMESPACE: ")
    assert file.read_text() == "mine"


def test_foreign_delta_table_at_the_path_is_refused_and_kept(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"a": [1]}))
    before = sorted(os.listdir(tmp_path))
    for command in (["init"], ["topics", "list"]):
        assert refusal(tmp_path, *command).startswith("NOT_A_NAMESPACE: ")
    assert sorted(os.listdir(tmp_path)) == before


# -- files ----------------------------------------------------------------------------------------------


def parquet_with_nanoseconds() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": ["a", "b"], "at": pa.array([1000, 1], pa.timestamp("ns"))}), sink)
    return sink.getvalue().to_pybytes()


def parquet_with_a_name_twice() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(["1"]), pa.array(["2"])], names=["a", "a"]), sink)
    return sink.getvalue().to_pybytes()


BAD_FILES: list[tuple[list[str], bytes, str]] = [
    ([], b"1\n{\n", "Line 2 is not JSON"),
    ([], b'"\xff"\n', "Line 1 is not JSON"),
    (["--key-column", "k"], b"7\n", "Line 1 has no fields."),
    (["--value-column", "v"], b'{"v":1}\n\n{"w":1}\n', "Line 3 has no field 'v'."),
    (["--timestamp-column", "t"], b'{"t":"yesterday"}\n', "Line 1: this is not a time."),
    (["--timestamp-column", "t"], b'{"t":true}\n', "Line 1: this is not a time."),
    (["--partition-column", "p"], b'{"p":"one"}\n', "Line 1: this is not a partition."),
    (["--headers-column", "h"], b'{"h":[1]}\n', "Line 1: these are not headers."),
    (["--key-column", "k"], b'{"k_base64":"?"}\n', "Line 1: this is not base64."),
    (["--format", "csv", "--key-column", "x"], b"a,b\n1,2\n", "There is no column 'x'."),
    (["--format", "csv"], b"a,a\n1,2\n", "A column occurs twice in the CSV's header."),
    (["--format", "csv"], b"a,b\n1,2\n1,2,3\n", "The CSV cannot be read"),
    (["--format", "csv", "--timestamp-column", "a"], b"a\n1\nx\n", "Row 2: this is not a time."),
    (["--format", "csv", "--timestamp-column", "a"], b"a\n20260131\n", "Row 1: this is not a time."),
    (["--format", "parquet"], parquet_with_a_name_twice(), "A column occurs twice in the Parquet file."),
    (["--format", "parquet"], b"PAR1 not really", "This is not a Parquet file"),
    (["--format", "parquet"], parquet_with_nanoseconds(), "Row 2: column 'at' has a time that cannot be converted"),
    (
        ["--format", "parquet", "--value-column", "v", "--timestamp-column", "at"],
        parquet_with_nanoseconds(),
        "Row 2: column 'at' has a time that cannot be converted",
    ),
    (["--format", "lines", "--key-column", "k"], b"x\n", "Plain lines have no columns."),
]


def test_bad_files_are_refused_naming_the_place(mq: Connection, path: str) -> None:
    ends = mq.end_offsets("t")
    for options, stdin, expected in BAD_FILES:
        line = refusal(path, "publish", "--topic", "t", *options, stdin=stdin)
        assert line.startswith(f"INVALID_RECORD: {expected}")
    assert mq.end_offsets("t") == ends


def test_publish_of_a_missing_file_is_refused(path: str, tmp_path: Path) -> None:
    line = refusal(path, "publish", str(tmp_path / "none.csv"), "--topic", "t")
    assert line == f"INVALID_REQUEST: The file cannot be read: No such file or directory. Found '{tmp_path}/none.csv'."


def test_broken_gzip_is_refused(mq: Connection, path: str, tmp_path: Path) -> None:
    file, ends = tmp_path / "x.jsonl.gz", mq.end_offsets("t")
    packed = gzip.compress(bytes(range(48, 58)) * 100)
    for content in (b"{}\n", packed[:5], packed[:15]):
        file.write_bytes(content)
        line = refusal(path, "publish", str(file), "--topic", "t")
        assert line.startswith("INVALID_RECORD: The file cannot be unpacked")
    assert mq.end_offsets("t") == ends


def test_empty_files_publish_nothing(path: str) -> None:
    for format in ("jsonl", "lines", "csv"):
        result = run(path, "publish", "--topic", "t", "--format", format, "--output", "json")
        assert (result.exit_code, result.stdout) == (0, "")


# -- usage ----------------------------------------------------------------------------------------------


WRONG_USAGE = [
    ["nope"],
    ["fetch"],
    ["fetch", "t", "--from", "tomorrow"],
    ["fetch", "t", "--isolation", "none"],
    ["fetch", "t", "--limit", "-1"],
    ["topics", "alter", "t"],
    ["topics", "alter", "t", "--config", "a=1", "--reset", "a"],
    ["topics", "delete-records", "t", "--before", "0=x"],
    ["topics", "delete-records", "t", "--before", "0=-1"],
    ["topics", "delete-records", "t", "--before", "9" * 5000 + "=1"],
    ["sql", "SELECT 1", "--as-of", "9" * 5000],
    ["sql", "SELECT 1", "--as-of", str(2**63)],
    ["catalog", "--as-of", str(2**63)],
    ["publish", "data.bin", "--topic", "t"],
    ["publish", "--topic", "t", "--format", "xml"],
    ["publish", "--topic", "t", "--on-error", "ignore"],
    ["topics", "list", "--output", "xml"],
]


def test_wrong_usage_is_exit_code_2(path: str) -> None:
    for arguments in WRONG_USAGE:
        result = run(path, *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert "Usage: lakemq" in result.stderr, arguments
        assert "Traceback" not in result.stderr, arguments


def test_a_missing_path_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKEMQ_PATH", raising=False)
    result = CliRunner().invoke(app, ["topics", "list"])
    assert result.exit_code == 2
    assert "LAKEMQ_PATH" in result.stderr


# -- what is said ---------------------------------------------------------------------------------------


def test_errors_are_described_in_one_printable_line() -> None:
    assert one_line(describe_error(RuntimeError("a\n\x1b[31mb"))).startswith(
        "INTERNAL_ERROR: RuntimeError: a \\x1b[31mb "
    )
    assert (
        describe_error(OSError(28, "No space left on device", "/x"))
        == "KAFKA_STORAGE_ERROR: No space left on device: /x"
    )
    assert describe_error(pa.ArrowInvalid("bad")) == "KAFKA_STORAGE_ERROR: bad"
    assert describe_error(NotATable("topics: truncated")) == "NOT_A_NAMESPACE: topics: truncated."
    assert describe_error(NewerTable("topics: version 9")).startswith("NEWER_FORMAT: topics: version 9")


def test_engine_logs_lines_without_a_trace_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("lakemq.serve")
    before = list(logging.getLogger("lakemq").handlers)
    for trace in ("", "1"):
        monkeypatch.setenv("LAKEMQ_TRACE", trace)
        with log_to_stderr():
            log.info("not told")
            try:
                raise RuntimeError("two\nlines")
            except RuntimeError as error:
                log.error("goes on: %s", error, exc_info=True)
        lines = capsys.readouterr().err.splitlines()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ERROR goes on: two( lines)?", lines[0])
        assert (len(lines) == 1) == (trace == "")
    assert logging.getLogger("lakemq").handlers == before


def test_every_refusal_can_be_caught_by_name() -> None:
    assert {error.__name__ for error in errors.all_errors()} <= vars(errors).keys()
