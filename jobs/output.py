"""What a command prints: records and messages to stdout as a table, JSON lines or CSV; all else to stderr.

Nothing is lost on the way: a key or value that is not UTF-8 stands in JSON and CSV as `key_base64`, `value_base64`.
Tables are for eyes: what a terminal would obey is shown escaped.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import pyarrow as pa

Record = Mapping[str, Any]

# A table that goes into a pipe is as wide as it needs to be.
_WIDE = 100_000


class Output(str, Enum):
    """How records are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def note(text: str) -> None:
    """One line for whoever watches, on stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """The text without line breaks and without anything that a terminal would obey."""
    return shown(" ".join(text.split()))


def shown(text: str) -> str:
    """The text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def show(records: Iterable[Record], output: Output, columns: Sequence[str]) -> None:
    """Print records; `columns`: which of their fields a table or CSV has, JSON has all."""
    if output is Output.json:
        for record in records:
            print(to_json(readable(record)))
    elif output is Output.csv:
        lines = _CsvLines(sys.stdout)
        lines.write(columns)
        for record in records:
            lines.write([record.get(c) for c in columns])
    else:
        _show_table(list(records), columns)


def to_json(value: Any) -> str:
    """Compact JSON on one line; times as ISO 8601."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """What JSON does not have, as text; a decimal is a number where a double is just that number."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else str(value)
    return str(value)


def readable(value: Any) -> Any:
    """The value with its bytes as text; what is not UTF-8 as `<name>_base64` in an object, else as `base64:...`.

    Keys of a map are text, too, and so are NaN and Infinity, which no JSON has.
    """
    if isinstance(value, Mapping):
        record: dict[str, Any] = {}
        for key, one in value.items():
            name = _cell(key)
            if isinstance(one, bytes):
                _put(record, name, one)
            else:
                record[name] = readable(one)
        return record
    if isinstance(value, list | tuple):
        return [readable(one) for one in value]
    if isinstance(value, bytes):
        text = as_text(value)
        return f"base64:{base64.b64encode(value).decode()}" if text is None else text
    if isinstance(value, float) and not math.isfinite(value):
        return to_json(value)
    return value


def iso(time: datetime) -> str:
    """A time in UTC as ISO 8601, to the millisecond or, where it has them, the microsecond."""
    utc = time.astimezone(timezone.utc) if time.tzinfo else time
    precision = "microseconds" if utc.microsecond % 1000 else "milliseconds"
    return utc.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _cell(value: Any) -> str:
    """A value as text in a table or in CSV."""
    if isinstance(value, str):
        return value
    told = readable(value)
    if not isinstance(told, str | int | float | list | dict | None):
        told = _plain(told)
    return told if isinstance(told, str) else to_json(told)


def _show_table(records: Sequence[Record], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        numbers = bool(records) and all(_is_number(r.get(name)) for r in records)
        table.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
    for record in records:
        values = (record.get(name) for name in columns)
        table.add_row(*(Text("" if v is None else shown(_cell(v))) for v in values))
    if sys.stdout.isatty():
        Console().print(table)
        return
    plain = Console(file=StringIO(), no_color=True, width=_WIDE, force_terminal=False)
    plain.print(table)
    print("\n".join(line.rstrip() for line in plain.file.getvalue().splitlines()))  # type: ignore[attr-defined]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_QUOTED = re.compile(r'[,"\r\n]')


class _CsvLines:
    """CSV in which null is nothing at all and an empty text is two quotes, so that both can be read back."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, values: Iterable[Any]) -> None:
        self._stream.write(",".join(map(self._field, values)) + "\n")

    @staticmethod
    def _field(value: Any) -> str:
        if value is None:
            return ""
        text = _cell(value)
        if text == "" or _QUOTED.search(text):
            return '"' + text.replace('"', '""') + '"'
        return text


# -- messages -------------------------------------------------------------------------------------------

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "key_base64",
    "value",
    "value_base64",
    "headers",
)
"""Fields of a printed message. Of `key` and `key_base64` one is null, and so with the value."""


def as_text(data: bytes) -> str | None:
    """The bytes as UTF-8, None: they are not."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _put(record: dict[str, Any], name: str, data: bytes | None) -> None:
    text = None if data is None else as_text(data)
    if data is not None and text is None:
        record[f"{name}_base64"] = base64.b64encode(data).decode()
    else:
        record[name] = text


def message_records(table: pa.Table) -> list[dict[str, Any]]:
    """Fetched rows as records: key and value as text, or else as `key_base64`, `value_base64`."""
    parts = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    records: list[dict[str, Any]] = [
        {"topic": topic, "partition": partition, "offset": offset, "timestamp": time}
        for topic, partition, offset, time in zip(*parts, _times(table.column("timestamp")), strict=True)
    ]
    for name in ("key", "value"):
        for record, data in zip(records, table.column(name).to_pylist(), strict=True):
            _put(record, name, data)
    headers = table.column("headers")
    listed = [None] * len(records) if headers.null_count == len(records) else headers.to_pylist()
    for record, pairs in zip(records, listed, strict=True):
        record["headers"] = [_header(pair) for pair in pairs or ()]
    return records


def _header(pair: Mapping[str, Any]) -> dict[str, Any]:
    header = {"key": pair["key"]}
    _put(header, "value", pair["value"])
    return header


def _times(column: pa.ChunkedArray) -> list[str]:
    """As `iso`, for many."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = column.cast(pa.timestamp("ms", "UTC"), safe=False)
    texts = pc.strftime(whole, "%Y-%m-%dT%H:%M:%SZ")
    if pc.all(pc.equal(whole.cast(column.type), column), min_count=0).as_py():
        return list(texts.to_pylist())
    fine = pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
    return list(pc.if_else(pc.equal(whole.cast(column.type), column), texts, fine).to_pylist())


class MessagePrinter:
    """Prints fetched messages as they come, without keeping them."""

    def __init__(self, output: Output, stream: TextIO | None = None) -> None:
        self._output = output
        self._stream = stream or sys.stdout
        self._begun = False

    def write(self, table: pa.Table) -> None:
        """Print the rows of a fetched table."""
        write = {Output.json: self._json, Output.csv: self._csv, Output.table: self._table}[self._output]
        for first in range(0, table.num_rows, _BATCH_ROWS):
            write(message_records(table.slice(first, _BATCH_ROWS)))
        self._stream.flush()

    def close(self) -> None:
        """The header at least, where there is one."""
        if not self._begun and self._output is not Output.json:
            self.write_header()
            self._stream.flush()

    def write_header(self) -> None:
        if self._begun:
            return
        self._begun = True
        if self._output is Output.csv:
            _CsvLines(self._stream).write(COLUMNS)
        else:
            line = _TABLE_LINE.format("partition", "offset", "timestamp", "key", "value")
            bold = self._stream.isatty()
            self._stream.write(f"\x1b[1m{line}\x1b[0m\n" if bold else f"{line}\n")

    def _json(self, records: Sequence[Record]) -> None:
        self._stream.write("".join(to_json(record) + "\n" for record in records))

    def _csv(self, records: Sequence[Record]) -> None:
        self.write_header()
        lines = _CsvLines(self._stream)
        for record in records:
            values = [record.get(name) for name in COLUMNS]
            values[-1] = to_json(record["headers"]) if record["headers"] else None
            lines.write(values)

    def _table(self, records: Sequence[Record]) -> None:
        self.write_header()
        for record in records:
            headers = " ".join(f"{h['key']}={_seen(h, 'value')}" for h in record["headers"])
            line = _TABLE_LINE.format(
                record["partition"],
                record["offset"],
                record["timestamp"],
                shown(_seen(record, "key")),
                shown(_seen(record, "value")),
            )
            self._stream.write(line + (f"  [{shown(headers)}]" if headers else "") + "\n")


_BATCH_ROWS = 10_000

_TABLE_LINE = "{:>9}  {:>10}  {:<24}  {:<16}  {}"


def _seen(record: Record, name: str) -> str:
    if f"{name}_base64" in record:
        return f"base64:{record[f'{name}_base64']}"
    return "(null)" if record[name] is None else str(record[name])
