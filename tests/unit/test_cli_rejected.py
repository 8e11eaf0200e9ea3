"""`lakemq publish` of what cannot be what was meant: refused, or counted on stderr, and seen in the exit code."""

import re
from itertools import product

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result
from unit.served import new_topic

from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app
from lakemq.jobs.commands.shared.fields import Columns, rows_table

pytestmark = pytest.mark.slow

DEEP = 10_000


def publish(mq: Connection, topic: str, *options: str, lines: bytes) -> Result:
    return CliRunner().invoke(app, ["--path", mq.namespace.path, "publish", "--topic", topic, *options], input=lines)


def keys(mq: Connection, topic: str) -> list[bytes | None]:
    return [message.key for message in mq.fetch(topic)]


def test_fields_that_no_line_has_are_refused(mq: Connection) -> None:
    topic = new_topic(mq)
    for part in ("key", "headers", "timestamp", "partition", "value"):
        result = publish(mq, topic, f"--{part}-column", "usre", lines=b'{"user":"ann"}\n{"user":"bob"}\n')
        assert (result.exit_code, result.stdout) == (5, ""), part
        assert re.fullmatch(r"INVALID_RECORD: .*'usre'.*\['user'\].*\n", result.stderr), result.stderr
    assert keys(mq, topic) == []


def test_digits_of_a_csv_column_are_read_as_partition() -> None:
    made = rows_table(pa.table({"n": ["0", "-1", "2147483647"], "value": ["x"] * 3}), 1, Columns(partition="n"))
    assert made["partition"].to_pylist() == [0, -1, 2**31 - 1]


def test_lines_without_a_field_that_others_have_are_published_and_counted(mq: Connection) -> None:
    topic = new_topic(mq)
    lines = b'{"user":"ann"}\n{"uesr":"bob"}\n{"user":null}\n{"user_base64":"eA=="}\n{}\n'
    result = publish(mq, topic, "--key-column", "user", lines=lines)
    assert result.exit_code == 0
    assert result.stderr == "lines without a field 'user': 2; they were published without it\n"
    assert keys(mq, topic) == [b"ann", None, None, b"x", None]


def test_json_that_is_nested_too_deeply_is_refused_with_its_line(mq: Connection) -> None:
    topic = new_topic(mq)
    nestings = ((b"[", b"]"), (b'{"a":', b"}"))
    for options, (left, right) in product(([], ["--value-column", "v"], ["--headers-column", "v"]), nestings):
        deep = left * DEEP + b"1" + right * DEEP
        result = publish(mq, topic, *options, lines=b'{"v":{"a":"1"}}\n{"v":' + deep + b"}\n")
        assert (result.exit_code, result.stdout) == (5, "")
        assert result.stderr == "INVALID_RECORD: Line 2 is nested too deeply.\n"
    assert keys(mq, topic) == []
