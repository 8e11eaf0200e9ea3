"""Print messages by a format string, as kcat -f does: '%k: %s\\n'; and read schemas from files."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from lakemq.jobs.output import decode_utf8, escape_control_characters

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = {
    "s": "value",
    "S": "length of the value, -1: null",
    "R": "length of the value in four bytes, big-endian",
    "k": "key",
    "K": "length of the key, -1: null",
    "T": "timestamp in ms",
    "h": "headers: name=value,...",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "%": "a percent sign",
}
"""The letters that may follow a percent sign; they are those of kcat."""

_BATCH_ROWS = 10_000
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PARTS = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|[^%\\]+", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

Row = tuple[Any, ...]
Part = Callable[[Row], bytes]


def parse_format(text: str, escape: bool = False) -> list[Part]:
    """Return the functions that make the parts of a message's text.

    Args:
        text: a format string with tokens such as %s, and escapes such as \\n, \\t and \\x1e.
        escape: show control characters of keys, values and headers as escapes, because a terminal would obey them.

    Raises:
        ValueError: a token or an escape is unknown.
    """
    show = _escape_bytes if escape else bytes
    makers: dict[str, Part] = {
        "s": lambda row: show(row[5] or b""),
        "S": lambda row: _length(row[5]),
        "R": lambda row: struct.pack(">i", -1 if row[5] is None else len(row[5])),
        "k": lambda row: show(row[4] or b""),
        "K": lambda row: _length(row[4]),
        "T": lambda row: b"%d" % (row[3] // 1000),
        "h": lambda row: show(_join_headers(row[6])),
        "t": lambda row: row[0].encode(),
        "p": lambda row: b"%d" % row[1],
        "o": lambda row: b"%d" % row[2],
    }
    return [_constant(part) if isinstance(part, bytes) else makers[part] for part in _split(text)]


def _split(text: str) -> Iterator[str | bytes]:
    """Yield the letter of each token, and the bytes between tokens."""
    for match in _PARTS.finditer(text):
        token, escaped = match.groups()
        if token == "%":
            yield b"%"
        elif token is not None:
            if token not in TOKENS:
                raise ValueError(f"found %{token}, expected one of {', '.join('%' + name for name in TOKENS)}")
            yield token
        elif escaped is not None:
            yield unescape(match[0])
        else:
            yield match[0].encode()


def unescape(text: str) -> bytes:
    """Replace escapes (\\n, \\r, \\t, \\0, \\\\, \\xNN) by what they stand for. Raises ValueError."""

    def replace(match: re.Match[bytes]) -> bytes:
        name = match[1].decode(errors="replace")
        if len(name) == 3:
            return bytes([int(name[1:], 16)])
        if name not in _ESCAPES:
            raise ValueError(f"found \\{name}, expected \\n, \\r, \\t, \\0, \\\\ or \\xNN")
        return _ESCAPES[name]

    return re.sub(rb"\\(x[0-9A-Fa-f]{2}|.?)", replace, text.encode(), flags=re.DOTALL)


def _constant(text: bytes) -> Part:
    return lambda row: text


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _join_headers(headers: list[dict[str, Any]] | None) -> bytes:
    return b",".join(header["key"].encode() + b"=" + (header["value"] or b"") for header in headers or ())


def _escape_bytes(data: bytes) -> bytes:
    text = decode_utf8(data)
    return escape_control_characters(repr(data)[2:-1] if text is None else text).encode()


class FormatPrinter:
    """Prints fetched messages by a format string, as they arrive. Takes the place of a `MessagePrinter`."""

    def __init__(self, text: str, stream: BinaryIO | None = None) -> None:
        """Raises ValueError: the format string is wrong."""
        self._stream = stream or sys.stdout.buffer
        self._parts = parse_format(text, escape=stream is None and sys.stdout.isatty())

    def write(self, table: pa.Table) -> None:
        """Print the rows of a fetched table."""
        import pyarrow as pa

        for first in range(0, table.num_rows, _BATCH_ROWS):
            rows = table.slice(first, _BATCH_ROWS)
            times = rows["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            columns = [times if name == "timestamp" else rows[name].to_pylist() for name in _COLUMNS]
            lines = (part(row) for row in zip(*columns, strict=True) for part in self._parts)
            self._stream.write(b"".join(lines))
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: a format has no header."""


# Schemas of topics in files: `--schema orders.avsc`.


_TYPES = {".avsc": "avro", ".json": "json", ".ddl": "ddl", ".sql": "ddl"}
_NAMES = ".avsc for Avro, .json for JSON Schema, .ddl for the DDL of a struct"

SchemaFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"File with the schema of the values: {_NAMES}."),
]


def read_schema_settings(path: Path | None) -> dict[str, str]:
    """Return the settings `schema` and `schema.type` for a file; none without a file."""
    if path is None:
        return {}
    if path.suffix not in _TYPES:
        raise typer.BadParameter(f"{path.name} does not say what it is; expected {_NAMES}", param_hint="--schema")
    try:
        return {"schema": path.read_text(encoding="utf-8").strip(), "schema.type": _TYPES[path.suffix]}
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint="--schema") from None
