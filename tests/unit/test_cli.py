"""The `lakemq` command, run in this process: what goes in comes out, in every format."""

import base64
import codecs
import gzip
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import Result
from unit.served import Lakemq, new_topic, read_objects, run_lakemq

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app, move_global_options_first
from lakemq.jobs.commands.shared.examples import EXAMPLES
from lakemq.jobs.commands.shared.rows import PIECE_BYTES, PIECE_ROWS
from lakemq.jobs.output import Output, message_records, print_records

pytestmark = pytest.mark.slow

NOT_UTF8 = b"\xff\x00\x1b[31m"


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.split("\n") if line]


def fetched(mq: Connection, topic: str) -> list[dict[str, Any]]:
    """The messages of a topic as `lakemq fetch` prints them."""
    return message_records(mq.fetch(topic).to_arrow())


# -- namespace and topics -------------------------------------------------------------------------------


def test_commands_work_without_a_running_sequencer(tmp_path: Path) -> None:
    path = tmp_path / "new"
    run_lakemq(str(path), "init")
    run_lakemq(str(path), "topics", "create", "t")
    run_lakemq(str(path), "publish", "--topic", "t", stdin=b"1\n")
    assert [m["value"] for m in objects(run_lakemq(str(path), "fetch", "t", "--output", "json"))] == ["1"]
    # the lease was handed over each time, and what is there stays as it is
    assert objects(run_lakemq(str(path), "step", "--output", "json")) == [{"letters": 0}]
    assert objects(run_lakemq(str(path), "step", "--until-idle", "--output", "json")) == [{"letters": 0}]
    assert objects(run_lakemq(str(path), "init", "--output", "json")) == [{"path": str(path), "topics": 1}]


def test_topics_commands_create_describe_alter_list_and_delete(lake: Lakemq) -> None:
    lake("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=1000", "--subscription", "air/>")
    (described,) = objects(lake("topics", "describe", "life", "--output", "json"))
    assert (described["partitions"], described["config"]) == (2, {"retention.ms": 1000})
    assert (described["subscriptions"], described["end_offsets"]) == (["air/>"], [0, 0])
    assert described["settings"]["cleanup.policy"] == "delete"
    lake("topics", "alter", "life", "--partitions", "3", "--reset", "retention.ms", "--no-subscriptions")
    (altered,) = objects(lake("topics", "describe", "life", "--output", "json"))
    assert (altered["partitions"], altered["config"], altered["subscriptions"]) == (3, {}, [])
    assert "life" in [t["topic"] for t in objects(lake("topics", "list", "--output", "json"))]
    lake("topics", "delete", "life", "--yes")
    assert "life" not in [t["topic"] for t in objects(lake("topics", "list", "--output", "json"))]


def test_deletion_names_the_groups_that_read_the_topic(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("doomed", partitions=2)
    mq.groups.create("others")
    mq.groups.reset_offsets("others", "doomed", "earliest")
    with mq.consumer("readers", topics=["doomed"], auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout_ms=1_000)
        mq.publish("doomed", pa.table({"value": ["a", "b", "c"]}))
        refused = lake("topics", "delete", "doomed", code=2).stderr
    assert "in 2 partitions, read by readers (1 member, 3 unread), others (0 members, 3 unread)?" in refused


def test_a_schema_comes_from_a_file_and_is_described(lake: Lakemq, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(
        '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}\n', encoding="utf-8"
    )
    lake("topics", "create", "with-schema", "--schema", str(file))
    file.write_text(file.read_text(encoding="utf-8").replace("int", "string"), encoding="utf-8")
    refused = lake("topics", "alter", "with-schema", "--schema", str(file), code=3)
    assert "INCOMPATIBLE_SCHEMA" in refused.stderr
    file.write_text(file.read_text(encoding="utf-8").replace("string", "long"), encoding="utf-8")
    lake("topics", "alter", "with-schema", "--schema", str(file))
    (described,) = objects(lake("topics", "describe", "with-schema", "--output", "json"))
    assert [(s["version"], s["type"], s["state"]) for s in described["schemas"]] == [
        (1, "avro", "past"),
        (2, "avro", "in force"),
    ]
    assert "in force" in lake("topics", "describe", "with-schema").stdout
    for bad in (tmp_path / "order.txt", tmp_path / "none.json"):
        assert "--schema" in lake("topics", "create", "x", "--schema", str(bad), code=2).stderr


def test_create_if_not_exists_accepts_an_existing_topic(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("twice", partitions=2)
    lake("topics", "create", "twice", "--partitions", "2", "--if-not-exists")
    lake("topics", "create", "twice", "--partitions", "3", "--if-not-exists", code=1)


# -- publish --------------------------------------------------------------------------------------------


def test_each_json_line_is_published_as_a_value(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("whole")
    lines = [b'{"a": 1}', b"  [1,2] ", b'"text"']
    result = lake("publish", "--topic", "whole", "--output", "json", stdin=b"\n".join(lines) + b"\n\n")
    assert objects(result) == [{"topic": "whole", "partition": 0, "first_offset": 0, "last_offset": 2, "messages": 3}]
    assert [m["value"] for m in fetched(mq, "whole")] == [line.decode() for line in lines]


@pytest.mark.parametrize("file_format", ["jsonl", "lines"])
def test_byte_order_mark_is_no_part_of_the_first_line(lake: Lakemq, mq: Connection, file_format: str) -> None:
    mq.topics.create(f"marked-{file_format}")
    for stdin in (codecs.BOM_UTF8 + b"1", codecs.BOM_UTF8 + b"2\n3\n"):
        lake("publish", "--topic", f"marked-{file_format}", "--format", file_format, stdin=stdin)
    assert [m["value"] for m in fetched(mq, f"marked-{file_format}")] == ["1", "2", "3"]


def test_fields_of_json_lines_become_the_parts_of_a_message(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("parts", partitions=4)
    lines = [
        {"k": "N1", "v": "text", "h": {"a": "1"}, "t": "2024-05-01T12:00:00.123Z", "p": 3},
        {"k": 7, "v": {"nested": [1]}, "h": [{"key": "x", "value_base64": "/w=="}], "t": 1714564800000, "p": 1},
        {"k": None, "v": None, "h": None, "t": None, "p": 0},
        {"v_base64": base64.b64encode(NOT_UTF8).decode(), "p": 2},
    ]
    options = [f"--{part}-column={part[0]}" for part in ("key", "value", "headers", "timestamp", "partition")]
    lake("publish", "--topic", "parts", *options, stdin="\n".join(map(json.dumps, lines)).encode())
    null, second, coded, first = fetched(mq, "parts")
    assert (first["key"], first["value"], first["partition"]) == ("N1", "text", 3)
    assert (first["headers"], first["timestamp"]) == ([{"key": "a", "value": "1"}], "2024-05-01T12:00:00.123Z")
    assert (second["key"], second["value"], second["timestamp"]) == ("7", '{"nested":[1]}', "2024-05-01T12:00:00.000Z")
    assert second["headers"] == [{"key": "x", "value_base64": "/w=="}]
    assert (null["key"], null["value"], null["headers"]) == (None, None, [])
    assert "value" not in coded
    assert base64.b64decode(coded["value_base64"]) == NOT_UTF8


def test_command_encodes_and_decodes_by_the_schema(lake: Lakemq, mq: Connection) -> None:
    fields = [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "n", "type": "int"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    mq.topics.create("coded", config={"schema": schema, "schema.type": "avro"})
    line = b'{"at":"2024-05-01T12:00:00Z","n":1}'
    lake("publish", "--topic", "coded", "--encode", stdin=line)
    for command in (["fetch", "coded"], ["tail", "coded"], ["consume", "coded", "--group", "g", "--limit", "1"]):
        assert lake(*command, "--decode", "--print", "%s").stdout.encode() == line
    result = lake("publish", "--topic", "coded", "--encode", stdin=b'{"at": 0, "n": 1, "more": 2}', code=5)
    assert result.stderr.startswith("SCHEMA_MISMATCH: Row 0 does not fit version 1 of the schema of coded")


def test_csv_stays_text_and_tells_null_from_empty(lake: Lakemq, mq: Connection, tmp_path: Path) -> None:
    mq.topics.create("csv")
    file = tmp_path / "rows.csv"
    file.write_bytes('\ufeffid,code,"a,b"\r\n1,007,"two\nlines"\r\n2,"",x\r\n3,,"say ""hi"""\r\n'.encode())
    lake("publish", str(file), "--topic", "csv", "--key-column", "id", "--value-column", "code")
    assert [(m["key"], m["value"]) for m in fetched(mq, "csv")] == [("1", "007"), ("2", ""), ("3", None)]
    mq.topics.create("csv-whole")
    lake("publish", str(file), "--topic", "csv-whole")
    assert [json.loads(m["value"]) for m in fetched(mq, "csv-whole")] == [
        {"id": "1", "code": "007", "a,b": "two\nlines"},
        {"id": "2", "code": "", "a,b": "x"},
        {"id": "3", "code": None, "a,b": 'say "hi"'},
    ]


@pytest.mark.parametrize("by_pipe", [False, True])
def test_parquet_columns_keep_their_bytes(lake: Lakemq, mq: Connection, tmp_path: Path, by_pipe: bool) -> None:
    topic = f"parquet-{by_pipe}"
    mq.topics.create(topic)
    file = tmp_path / "rows.parquet"
    rows = pa.table({"k": [b"a", None], "v": [NOT_UTF8, b"plain"], "n": [1, 2]})
    pq.write_table(rows, file)
    source, stdin = ("-", file.read_bytes()) if by_pipe else (str(file), b"")
    options = ["--topic", topic, "--format", "parquet", "--key-column", "k", "--value-column", "v"]
    lake("publish", source, *options, stdin=stdin)
    first, second = fetched(mq, topic)
    assert (first["key"], base64.b64decode(first["value_base64"])) == ("a", NOT_UTF8)
    assert (second["key"], second["value"]) == (None, "plain")


def test_gzip_is_unpacked(lake: Lakemq, mq: Connection, tmp_path: Path) -> None:
    mq.topics.create("gzip")
    file = tmp_path / "lines.txt.gz"
    file.write_bytes(gzip.compress(b"a\nb\r\n"))
    lake("publish", str(file), "--topic", "gzip")
    assert [m["value"] for m in fetched(mq, "gzip")] == ["a", "b"]


def test_rows_that_cannot_be_messages_are_counted_on_stderr(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("refusing")
    options = ["--topic", "refusing", "--partition-column", "p", "--value-column", "v"]
    lines = b'{"p": 0, "v": "good"}\n{"p": 9, "v": "bad"}\n'
    result = lake("publish", *options, stdin=lines, code=5)
    reason, count = result.stderr.splitlines()
    assert "1 row is rejected: UNKNOWN_TOPIC_OR_PARTITION" in reason
    assert count == "rows rejected: 1; the table rejected_rows has the reasons"
    failed = lake("publish", *options, "--on-error", "fail", stdin=lines, code=1)
    assert failed.stderr.startswith("UNKNOWN_TOPIC_OR_PARTITION: ")
    assert [m["value"] for m in fetched(mq, "refusing")] == ["good"]


def test_large_file_is_published_in_order(lake: Lakemq, mq: Connection, tmp_path: Path) -> None:
    mq.topics.create("pieces")
    file = tmp_path / "numbers.jsonl"
    file.write_text("".join(f"{i:6000}\n" for i in range(1500)))
    assert file.stat().st_size > 2 * PIECE_BYTES
    (result,) = objects(lake("publish", str(file), "--topic", "pieces", "--output", "json"))
    assert result["messages"] == 1500
    assert [int(m["value"]) for m in fetched(mq, "pieces")] == list(range(1500))


def test_publish_counts_messages_sent_before_an_error(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("half")
    lines = b"1\n2\n" * PIECE_ROWS + b"five\n"
    published, error, *_ = lake("publish", "--topic", "half", stdin=lines, code=5).stderr.splitlines()
    assert published == f"messages published before the error: {2 * PIECE_ROWS}"
    assert error.startswith(f"INVALID_RECORD: Line {2 * PIECE_ROWS + 1} is not JSON")
    assert mq.end_offsets("half") == {0: 2 * PIECE_ROWS}


def test_output_of_fetch_can_be_published_again(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("source")
    odd = ["", "a,b", 'q"q', "new\nline", " sp ", "\u00fc\u2028"]
    with mq.producer() as producer:
        for i, text in enumerate(odd):
            producer.send("source", text, key=str(i), headers=[("h", b"\xfe"), ("h", None)], timestamp_ms=i)
        producer.send("source", NOT_UTF8, key=NOT_UTF8, timestamp_ms=77)
        producer.send("source", None, timestamp_ms=78)
    first = fetched(mq, "source")
    assert objects(lake("fetch", "source", "--output", "json")) == first
    for output, format in (("json", "jsonl"), ("csv", "csv")):
        copy = f"copy-{output}"
        mq.topics.create(copy)
        printed = lake("fetch", "source", "--output", output).stdout_bytes
        parts = [f"--{part}-column={part}{'s' if part == 'header' else ''}" for part in ("key", "value", "timestamp")]
        lake("publish", "--topic", copy, "--format", format, *parts, "--headers-column", "headers", stdin=printed)
        assert [{**m, "topic": "source"} for m in fetched(mq, copy)] == first


# -- fetch and tail -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten(mq: Connection) -> str:
    """A topic of two partitions with messages 0..4 each, their offset being their value and their time in seconds."""
    mq.topics.create("ten", partitions=2)
    lines = [{"v": str(i), "p": p, "t": i * 1000} for i in range(5) for p in (0, 1)]
    options = ["--value-column=v", "--partition-column=p", "--timestamp-column=t"]
    run_lakemq(mq.namespace.path, "publish", "--topic=ten", *options, stdin="\n".join(map(json.dumps, lines)).encode())
    return "ten"


def test_fetch_command_returns_the_messages_of_its_range(lake: Lakemq, ten: str) -> None:
    for options, expected in (
        ("", [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]),
        ("--from 3", [(0, 3), (0, 4), (1, 3), (1, 4)]),
        ("--from 1 --to 2", [(0, 1), (1, 1)]),
        ("--from latest", []),
        ("--from earliest --to 1970-01-01T00:00:02Z --partition 1", [(1, 0), (1, 1)]),
        ("--from 1970-01-01T01:00:04+01:00", [(0, 4), (1, 4)]),
        ("--partition 0 --partition 1 --limit 6", [(0, i) for i in range(5)] + [(1, 0)]),
        ("--limit 0", []),
        ("--isolation read_uncommitted --limit 1", [(0, 0)]),
    ):
        messages = objects(lake("fetch", ten, *options.split(), "--output", "json"))
        assert [(m["partition"], m["offset"]) for m in messages] == expected, options
        assert all(m["value"] == str(m["offset"]) for m in messages)


def test_tables_escape_control_characters(lake: Lakemq, mq: Connection) -> None:
    mq.topics.create("escape")
    lake("publish", "--topic", "escape", "--format", "lines", stdin=b"\x1b[31mred\x07[bold]x[/bold]\n\xff\n")
    shown = lake("fetch", "escape").stdout
    assert "\\x1b[31mred\\x07[bold]x[/bold]" in shown
    assert "base64:/w==" in shown
    assert "\x1b" not in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("output", [Output.csv, Output.json])
def test_control_characters_of_a_message_do_not_reach_a_terminal(output: Output) -> None:
    with redirect_stdout(Terminal()) as terminal:
        print_records([{"value": "a\x1b[31m\x9b1m\u202eb"}], output, ["value"])
    assert terminal.getvalue().replace("\n", "").isprintable()


# -- A command starts quickly: it loads nothing heavy that it has no use for -----------------------------


_COMMAND = """
import sys
from lakemq.jobs.cli import main
try:
    main(["--path", sys.argv[1], "topics", "list"])
except SystemExit as end:
    assert not end.code, end
print(sorted({"pandas", "pyspark", "duckdb", "lakemq.engine.sequencer.sequencer"} & set(sys.modules)))
import pandas, pyarrow
print(pyarrow.array(pandas.Series([1, 2], dtype="Int64")).type, pyarrow.table({"a": [1]}).to_pandas().shape)
"""


@pytest.mark.extended
def test_command_loads_no_engine_and_no_pandas(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    lakemq.connect(path, create=True).close()
    done = subprocess.run([sys.executable, "-c", _COMMAND, path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["[]", "int64 (1, 1)"], "and who wants pandas later has it"


# The examples of each command are read as that command. `test_cli_json.py` runs every command.


GLOBAL_OPTIONS = {"--path", "--conf", "--storage-option", "--output"}


def test_examples_of_help_parse_as_their_commands() -> None:
    for words, line in ((words, line) for words, lines in EXAMPLES.items() for line in lines):
        name, *arguments = shlex.split(line)
        assert name == "lakemq"
        rest = move_global_options_first(arguments)
        while rest[0] in GLOBAL_OPTIONS:
            rest = rest[2:]
        own, command = words.split(), typer.main.get_command(app)
        assert rest[: len(own)] == own, line
        for word in own:
            command = command.commands[word]  # type: ignore[attr-defined]
        command.make_context(words, rest[len(own) :])


FIRST_MS = 1_700_000_000_000


@pytest.fixture
def run(mq: Connection) -> Callable[..., list[dict[str, Any]]]:
    return partial(read_objects, mq.namespace.path, "offsets")


def publish_minutes(mq: Connection, topic: str, count: int) -> None:
    """Publish a message per minute to partition 0."""
    with mq.producer() as producer:
        for minute in range(count):
            producer.send(topic, b"v", partition=0, timestamp_ms=FIRST_MS + 60_000 * minute)


def test_get_offsets_returns_log_start_and_end(mq: Connection, run: Any) -> None:
    topic = new_topic(mq, partitions=2)
    publish_minutes(mq, topic, 5)
    mq.topics.delete_records(topic, {0: 2})
    assert [row["offset"] for row in run(topic, "--time", "earliest")] == [2, 0]
    assert [row["offset"] for row in run(topic)] == [5, 0]
    assert run(topic, "--partition", "1") == [{"topic": topic, "partition": 1, "offset": 0, "timestamp": None}]


def test_get_offsets_returns_the_first_message_at_or_after_a_time(mq: Connection, run: Any) -> None:
    topic = new_topic(mq, partitions=2)
    publish_minutes(mq, topic, 5)
    expected = {"topic": topic, "partition": 0, "offset": 3, "timestamp": "2023-11-14T22:16:20.000Z"}
    assert run(topic, "--time", str(FIRST_MS + 150_000))[0] == expected
    rows = run(topic, "--time", "2023-11-14T22:16:20")
    assert rows == [expected, {"topic": topic, "partition": 1, "offset": None, "timestamp": None}]
    assert run(topic, "--time", "2023-11-14T22:18:00")[0]["offset"] is None


def test_wrong_arguments_are_refused(mq: Connection, lake: Lakemq) -> None:
    topic = new_topic(mq)
    assert "earliest or latest" in " ".join(lake("offsets", topic, "--time", "noon", code=2).stderr.split())
    for wrong in ([topic, "--partition", "7"], ["nothing"]):
        assert "UNKNOWN_TOPIC_OR_PARTITION" in lake("offsets", *wrong, code=1).stderr
