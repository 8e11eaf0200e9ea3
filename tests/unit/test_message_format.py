"""Format strings and separators of `fetch`, `tail`, `consume` and `publish`, as in kcat."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from unit.served import new_name, new_topic

from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app
from lakemq.jobs.commands.shared.message_format import TOKENS, FormatPrinter, parse_format, unescape

pytestmark = pytest.mark.slow

NOT_UTF8 = b"\xff\x00\x1b[31m"
ROW = (
    "orders",
    3,
    42,
    1_700_000_000_123_456,
    b"k",
    b"value",
    [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
)
NULLS = ("orders", 0, 0, 0, None, None, None)


def render(text: str, row: tuple[object, ...] = ROW, escape: bool = False) -> bytes:
    return b"".join(part(row) for part in parse_format(text, escape))


@pytest.mark.parametrize(
    ("text", "expected", "of_nulls"),
    [
        ("%s", b"value", b""),
        ("%S", b"5", b"-1"),
        ("%R", b"\0\0\0\5", b"\xff\xff\xff\xff"),
        ("%k", b"k", b""),
        ("%K", b"1", b"-1"),
        ("%T", b"1700000000123", b"0"),
        ("%h", b"h=1,n=", b""),
        ("%t", b"orders", b"orders"),
        ("%p", b"3", b"0"),
        ("%o", b"42", b"0"),
        ("100%%", b"100%", b"100%"),
        (r"%k\t%s\n", b"k\tvalue\n", b"\t\n"),
        (r"\x1e%o\\é", b"\x1e42\\\xc3\xa9", b"\x1e0\\\xc3\xa9"),
    ],
)
def test_a_token_is_what_kcat_prints(text: str, expected: bytes, of_nulls: bytes) -> None:
    assert render(text) == expected
    assert render(text, NULLS) == of_nulls


def test_every_token_is_known() -> None:
    for token in TOKENS:
        assert render(f"%{token}") != b""


@pytest.mark.parametrize("text", ["%x", "%", r"\q", r"\x1", "\\"])
def test_a_wrong_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_format(text)


def test_a_terminal_gets_no_control_characters_of_messages() -> None:
    row = (*ROW[:5], NOT_UTF8, ROW[6])
    assert render("%s", row) == NOT_UTF8
    assert b"\x1b" not in render("%s", row, escape=True)
    assert render(r"%s\n", (*ROW[:5], "ä\x1b".encode(), None), escape=True) == "ä\\x1b\n".encode()


def test_escapes() -> None:
    assert unescape(r"a\tb\x00\0") == b"a\tb\0\0"
    with pytest.raises(ValueError, match="expected"):
        unescape(r"\z")


def test_bytes_come_out_as_they_went_in(mq: Connection) -> None:
    topic, printed = new_topic(mq), io.BytesIO()
    with mq.producer() as producer:
        producer.send(topic, NOT_UTF8, key=b"k\xfe", timestamp_ms=1_700_000_000_123, headers=[("h", b"\xfd")])
        producer.send(topic, None)
    printer = FormatPrinter(r"%o %T %k=%s %h;", printed)
    printer.write(mq.fetch(topic).to_arrow().slice(0, 1))
    assert printed.getvalue() == b"0 1700000000123 k\xfe=" + NOT_UTF8 + b" h=\xfd;"


def run(mq: Connection, *arguments: str, stdin: bytes = b"", code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["--path", str(Path(mq.namespace.path)), *arguments], input=stdin)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


def test_lines_with_keys_go_in_and_come_out(mq: Connection) -> None:
    topic = new_topic(mq)
    run(mq, "publish", "--topic", topic, "--key-separator", ":", stdin=b"a:1\nno key\nb:2:3\n:4\n")
    rows = mq.fetch(topic).to_arrow()
    assert list(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)) == [
        (b"a", b"1"),
        (None, b"no key"),
        (b"b", b"2:3"),
        (b"", b"4"),
    ]
    assert run(mq, "fetch", topic, "--key-separator", r"%\t").stdout_bytes == b"a%\t1\n%\tno key\nb%\t2:3\n%\t4\n"
    assert run(mq, "tail", topic, "-n", "1", "--print", r"%o/%K\n").stdout_bytes == b"3/0\n"
    group = new_name("format")
    printed = run(mq, "consume", topic, "--group", group, "--limit", "4", "--print", "%s,").stdout_bytes
    assert printed == b"1,no key,2:3,4,"


def test_contradicting_options_are_refused(mq: Connection) -> None:
    topic = new_topic(mq)
    for arguments in (
        ["fetch", topic, "--print", "%s", "--key-separator", ":"],
        ["fetch", topic, "--print", "%s", "--output", "json"],
        ["tail", topic, "--print", "%y"],
        ["publish", "--topic", topic, "--format", "csv", "--key-separator", ":"],
        ["publish", "--topic", topic, "--key-separator", r"\n"],
    ):
        run(mq, *arguments, code=2)
