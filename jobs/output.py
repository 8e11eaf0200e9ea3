"""Print records and messages to stdout as a table, JSON lines or CSV, and notes to stderr.

JSON and CSV lose nothing: a key or value that is not UTF-8 is printed as `key_base64` or `value_base64`. Tables are for
people: control characters, which a terminal would obey, are escaped.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

Record = Mapping[str, Any]

# The width of a table in a pipe: as wide as it needs to be.
_WIDE = 100_000

_SIZES = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


class Output(StrEnum):
    """The output formats."""

    table = "table"
    json = "json"
    csv = "csv"


def note(text: str) -> None:
    """Print one line for the user on stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Return the text in one line, with control characters escaped."""
    return escape_control_characters(" ".join(text.split()))


MOST_NAMED = 5


def name_some(names: Sequence[str], between: str = ", ") -> str:
    """Return the first names in one text, and how many more there are."""
    more = [f"and {len(names) - MOST_NAMED:,} more"] if len(names) > MOST_NAMED else []
    return between.join([*names[:MOST_NAMED], *more])


def escape_control_characters(text: str) -> str:
    """Return the text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def print_records(records: Iterable[Record], output: Output, columns: Sequence[str]) -> None:
    """Print records. `columns`: the fields of a table or a CSV; JSON has all fields."""
    if output is Output.json:
        for record in records:
            print(to_json(to_readable(record)))
    elif output is Output.csv:
        lines = _CsvLines(sys.stdout)
        lines.write(columns)
        for record in records:
            lines.write([record.get(c) for c in columns])
    else:
        _show_table(list(records), columns)


def to_json(value: Any) -> str:
    """Return compact JSON on one line, with times as ISO 8601 and control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_to_plain)
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _to_plain(value: Any) -> Any:
    """Convert a value that JSON lacks to text. A decimal becomes a number if a double represents it exactly."""
    if isinstance(value, datetime):
        return to_iso(value)
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else str(value)
    return str(value)


def to_readable(value: Any) -> Any:
    """Return the value with its bytes as text. Bytes that are not UTF-8 become `<name>_base64`, or `base64:...`.

    Keys of a map become text, and so do NaN and Infinity, which JSON lacks.
    """
    if isinstance(value, Mapping):
        record: dict[str, Any] = {}
        for key, item in value.items():
            name = _cell(key)
            if isinstance(item, bytes):
                _put_bytes(record, name, item)
            else:
                record[name] = to_readable(item)
        return record
    if isinstance(value, list | tuple):
        return [to_readable(item) for item in value]
    if isinstance(value, bytes):
        text = decode_utf8(value)
        return f"base64:{base64.b64encode(value).decode()}" if text is None else text
    if isinstance(value, float) and not math.isfinite(value):
        return to_json(value)
    return value


def to_iso(time: datetime) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds, or microseconds if it has them."""
    utc = time.astimezone(UTC) if time.tzinfo else time
    precision = "microseconds" if utc.microsecond % 1000 else "milliseconds"
    return utc.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def format_setting(value: Any) -> str:
    """Return the value of a setting as a user writes it: `true`, a list with commas, nothing for no value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(format_setting, value))
    return to_json(value) if isinstance(value, Mapping) else str(value)


def format_size(size_bytes: int | None) -> str:
    """Return a number of bytes in a unit that suits it; a dash for None."""
    if size_bytes is None:
        return "-"
    unit_bytes, unit = next((pair for pair in _SIZES if size_bytes >= pair[0]), (1, "B"))
    return f"{size_bytes / unit_bytes:.4g} {unit}"


def _cell(value: Any) -> str:
    """Return a value as text for a table or a CSV."""
    if isinstance(value, str):
        return value
    plain = to_readable(value)
    if not isinstance(plain, str | int | float | list | dict | None):
        plain = _to_plain(plain)
    return plain if isinstance(plain, str) else to_json(plain)


def _show_table(records: Sequence[Record], columns: Sequence[str]) -> None:
    from rich.console import Console

    if sys.stdout.isatty():
        print_table(Console(), records, columns)
        return
    plain = Console(file=StringIO(), no_color=True, width=_WIDE, force_terminal=False)
    print_table(plain, records, columns)
    print("\n".join(line.rstrip() for line in plain.file.getvalue().splitlines()))  # type: ignore[attr-defined]


def print_table(console: Console, records: Sequence[Record], columns: Sequence[str]) -> None:
    """Print a line for each record, or a block for each where a line would break a word or a number in two."""
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    rows = [["" if (value := record.get(name)) is None else _cell(value) for name in columns] for record in records]
    table, blocks = (
        Table(box=None, header_style="bold", pad_edge=False, show_header=has_header) for has_header in (True, False)
    )
    for name, cells in zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True):
        has_numbers = bool(records) and all(_is_number(record.get(name)) for record in records)
        is_words = not any(" " in cell for cell in cells)
        table.add_column(Text(name), justify="right" if has_numbers else "left", overflow="fold", no_wrap=is_words)
    blocks.add_column(style="bold")
    blocks.add_column(overflow="fold")
    for row in rows:
        texts = [Text(escape_control_characters(cell)) for cell in row]
        table.add_row(*texts)
        for name, text in zip(columns, texts, strict=True):
            blocks.add_row(Text(name), text)
        blocks.add_row()
    fits = Measurement.get(console, console.options.update(max_width=_WIDE), table).minimum <= console.width
    console.print(table if fits else blocks)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_QUOTED = re.compile(r'[,"\r\n]')


class _CsvLines:
    """Writes CSV in which null is an empty field and an empty text is two quotes, so that both can be read.

    At a terminal control characters are escaped: they could change what it shows.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_terminal = stream, stream.isatty()

    def write(self, values: Iterable[Any]) -> None:
        self._stream.write(",".join(map(self._field, values)) + "\n")

    def _field(self, value: Any) -> str:
        if value is None:
            return ""
        text = escape_control_characters(_cell(value)) if self._is_terminal else _cell(value)
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
"""Fields of a printed message. At most one of `key` and `key_base64` is set; the same holds for the value."""


def decode_utf8(data: bytes) -> str | None:
    """Decode bytes as UTF-8; None if they are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _put_bytes(record: dict[str, Any], name: str, data: bytes | None) -> None:
    text = None if data is None else decode_utf8(data)
    if data is not None and text is None:
        record[f"{name}_base64"] = base64.b64encode(data).decode()
    else:
        record[name] = text


def message_records(table: pa.Table) -> list[dict[str, Any]]:
    """FetchResult rows as records: key and value as text, or else as `key_base64`, `value_base64`."""
    parts = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    records: list[dict[str, Any]] = [
        {"topic": topic, "partition": partition, "offset": offset, "timestamp": time}
        for topic, partition, offset, time in zip(*parts, _times(table.column("timestamp")), strict=True)
    ]
    for name in ("key", "value"):
        for record, data in zip(records, table.column(name).to_pylist(), strict=True):
            _put_bytes(record, name, data)
    headers = table.column("headers")
    listed = [None] * len(records) if headers.null_count == len(records) else headers.to_pylist()
    for record, pairs in zip(records, listed, strict=True):
        record["headers"] = [_header(pair) for pair in pairs or ()]
    return records


def _header(pair: Mapping[str, Any]) -> dict[str, Any]:
    header = {"key": pair["key"]}
    _put_bytes(header, "value", pair["value"])
    return header


def _times(column: pa.ChunkedArray) -> list[str]:
    """Convert a column of times as `to_iso` does, but all at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = column.cast(pa.timestamp("ms", "UTC"), safe=False)
    texts = pc.strftime(whole, "%Y-%m-%dT%H:%M:%SZ")
    if pc.all(pc.equal(whole.cast(column.type), column), min_count=0).as_py():
        return list(texts.to_pylist())
    fine = pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
    return list(pc.if_else(pc.equal(whole.cast(column.type), column), texts, fine).to_pylist())


class MessagePrinter:
    """Prints fetched messages as they arrive, without keeping them."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._stream = sys.stdout
        self._begun = False

    def write(self, table: pa.Table) -> None:
        """Print the rows of a fetched table."""
        write = {Output.json: self._json, Output.csv: self._csv, Output.table: self._table}[self._output]
        for first in range(0, table.num_rows, _BATCH_ROWS):
            write(message_records(table.slice(first, _BATCH_ROWS)))
        self._stream.flush()

    def close(self) -> None:
        """Print the header if no message was printed."""
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
            headers = " ".join(f"{h['key']}={_message_text(h, 'value')}" for h in record["headers"])
            line = _TABLE_LINE.format(
                record["partition"],
                record["offset"],
                record["timestamp"],
                escape_control_characters(_message_text(record, "key")),
                escape_control_characters(_message_text(record, "value")),
            )
            self._stream.write(line + (f"  [{escape_control_characters(headers)}]" if headers else "") + "\n")


_BATCH_ROWS = 10_000

_TABLE_LINE = "{:>9}  {:>10}  {:<24}  {:<16}  {}"


def _message_text(record: Record, name: str) -> str:
    if f"{name}_base64" in record:
        return f"base64:{record[f'{name}_base64']}"
    return "(null)" if record[name] is None else str(record[name])
