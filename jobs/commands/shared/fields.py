"""Convert the fields of a file into the columns of messages."""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.errors import InvalidRecord
from lakemq.jobs.commands.shared.times import parse_moment
from lakemq.tables.specs.messages import HEADERS
from lakemq.tables.specs.spec import TIME

_INT64 = 2**63 - 1
_DIGITS = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True)
class Columns:
    """The field of the file for each part of a message. None: no such part; for the value: the whole row."""

    key: str | None = None
    value: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None

    def fields_by_part(self) -> dict[str, str]:
        """Return the fields by part of a message, without the parts that have none."""
        return {part: field for part, field in vars(self).items() if field is not None}


class FieldCounts:
    """Counts how many lines of a file have each named field, and how many lack it.

    A field that no line so far has is taken for a mistyped name and refused. A field with the value null is present.
    """

    def __init__(self, columns: Columns) -> None:
        self._named = columns.fields_by_part()
        self._having, self._lacking = Counter[str](), Counter[str]()

    def add(self, objects: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> None:
        """Count these lines. Raises InvalidRecord for a field that no line so far has."""
        for field in {field for part, field in self._named.items() if part != "value"}:
            having = sum(field in object_ or f"{field}_base64" in object_ for object_ in objects)
            self._having[field] += having
            self._lacking[field] += len(objects) - having
            if objects and not self._having[field]:
                raise InvalidRecord(
                    f"No line up to line {numbers[-1]} has a field {field!r}.",
                    found=sorted(objects[0])[:10],
                    expected="the name of a field (null where a message has none)",
                )

    def lacking(self) -> dict[str, int]:
        """Return the number of lines without the field, for each field that some lines lack."""
        return {field: count for field, count in sorted(self._lacking.items()) if count}


def lines_table(lines: Sequence[bytes], key_separator: bytes | None = None) -> pa.Table:
    """Return a table in which each line is a value, or with a separator a key and a value."""
    if key_separator is None:
        return pa.table({"value": pa.array(lines, pa.binary())})
    split = [line.partition(key_separator) for line in lines]
    keys = [before if separator else None for before, separator, _ in split]
    values = [after if separator else before for before, separator, after in split]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def json_table(lines: Sequence[bytes], first: int, columns: Columns, counts: FieldCounts) -> pa.Table:
    """Return a message per line of JSON. `first` is the number of the first line. Blank lines are skipped.

    counts: the fields of all lines of the file, to which these lines are added.

    Raises InvalidRecord, which names the line: it is not JSON or not an object, or a field is missing or has the wrong
    type.
    """
    decode, parts = msgspec.json.Decoder().decode, columns.fields_by_part()
    kept_lines: list[bytes] = []
    objects: list[Any] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            object_ = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRecord(f"Line {number} is not JSON: {error}") from None
        except RecursionError:
            raise InvalidRecord(f"Line {number} is nested too deeply.") from None
        if parts and not isinstance(object_, dict):
            raise InvalidRecord(f"Line {number} has no fields.", found=type(object_).__name__, expected="a JSON object")
        kept_lines.append(line)
        objects.append(object_)
        numbers.append(number)
    counts.add(objects if parts else (), numbers)
    fields = {
        part: [_field(o, field, n, part) for o, n in zip(objects, numbers, strict=True)]
        for part, field in parts.items()
    }
    made = {part: _CONVERT[part](values, _Locations("Line", numbers)) for part, values in fields.items()}
    return pa.table({"value": pa.array(kept_lines, pa.binary()), **made})


def _field(object_: dict[str, Any], field: str, number: int, part: str) -> Any:
    if field in object_:
        return object_[field]
    if f"{field}_base64" in object_:
        return _from_base64(object_[f"{field}_base64"], f"Line {number}")
    if part == "value":
        raise InvalidRecord(f"Line {number} has no field {field!r}.", found=sorted(object_)[:10])
    return None


def rows_table(rows: pa.Table, first: int, columns: Columns) -> pa.Table:
    """Return a message per row. `first` is the number of the first row.

    Raises InvalidRecord: a column is missing, or a field has the wrong type; then it names the row.
    """
    places = _Locations("Row", range(first, first + rows.num_rows))
    made: dict[str, Any] = {}
    for part, field in columns.fields_by_part().items():
        plain, encoded = (rows.column(n) if n in rows.column_names else None for n in (field, f"{field}_base64"))
        if plain is None and encoded is None:
            raise InvalidRecord(f"There is no column {field!r}.", found=rows.column_names[:20])
        if plain is not None and part in ("key", "value") and _is_plain(plain.type):
            made[part] = plain.cast(pa.binary())
        elif plain is not None:
            made[part] = _CONVERT[part](_without_text(part, _to_objects(rows.select([field]), places)[field]), places)
        if encoded is not None and part in ("key", "value"):
            decoded = [
                None if t is None else _from_base64(t, places.name(i)) for i, t in enumerate(encoded.to_pylist())
            ]
            binary = pa.chunked_array([pa.array(decoded, pa.binary())])
            made[part] = pc.coalesce(made[part], binary) if part in made else binary
    if "value" not in made:
        objects = _to_objects(rows, places)
        values = [{name: column[i] for name, column in objects.items()} for i in range(rows.num_rows)]
        made["value"] = pa.array(map(msgspec.json.encode, values), pa.binary())
    return pa.table(made)


def _to_objects(rows: pa.Table, places: _Locations) -> dict[str, list[Any]]:
    """Return columns as Python objects. Raises InvalidRecord: one has a time that Python cannot hold."""
    types = [_to_microseconds(field.type) for field in rows.schema]
    try:
        cast = rows.cast(pa.schema([field.with_type(type) for field, type in zip(rows.schema, types, strict=True)]))
        objects: dict[str, list[Any]] = cast.to_pydict()
        return objects
    except (ValueError, OverflowError):
        for name, type in zip(rows.column_names, types, strict=True):
            for index in range(rows.num_rows):
                try:
                    rows[name].slice(index, 1).cast(type).to_pylist()
                except (ValueError, OverflowError):
                    raise InvalidRecord(
                        f"{places.name(index)}: column {name!r} has a time that cannot be converted without a loss.",
                        found=str(rows.schema.field(name).type),
                        expected="whole microseconds of the years 1 to 9999, or text",
                    ) from None
        raise


def _to_microseconds(type: pa.DataType) -> pa.DataType:
    """Return a type of times with the unit of Python's. Arrow would use pandas for nanoseconds, if it is loaded."""
    if pa.types.is_timestamp(type) and type.unit == "ns":
        return pa.timestamp("us", type.tz)
    return pa.time64("us") if type == pa.time64("ns") else pa.duration("us") if type == pa.duration("ns") else type


def _is_plain(type: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(type) for test in tests)


def _without_text(part: str, values: list[Any]) -> list[Any]:
    """Parse the texts of a CSV: headers are JSON, partitions are digits."""
    if part == "headers":
        return [_json_or(v) if isinstance(v, str) else v for v in values]
    if part == "partition":
        return [int(v) if isinstance(v, str) and _DIGITS.fullmatch(v) else v for v in values]
    return values


def _json_or(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _from_base64(text: object, place: str) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except binascii.Error:
        raise InvalidRecord(f"{place}: this is not base64.", found=str(text)[:40]) from None


# -- parts of a message ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Locations:
    """The lines or rows that values come from, for error messages."""

    kind: str
    numbers: Sequence[int]

    def name(self, index: int) -> str:
        return f"{self.kind} {self.numbers[index]}"


def _texts(values: Sequence[Any], places: _Locations) -> pa.Array:
    """Convert keys or values to bytes: text as UTF-8, anything else as its JSON."""
    return pa.array([_as_bytes(v, i, places) for i, v in enumerate(values)], pa.binary())


def _as_bytes(value: Any, index: int, places: _Locations) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    except RecursionError:
        raise InvalidRecord(f"{places.name(index)} is nested too deeply.") from None


def _times(values: Sequence[Any], places: _Locations) -> pa.Array:
    """Convert timestamps from epoch milliseconds or ISO 8601. The engine refuses those out of range later."""
    return pa.array([_microseconds(v, i, places) for i, v in enumerate(values)], pa.int64()).cast(TIME)


def _microseconds(value: Any, index: int, places: _Locations) -> int | None:
    try:
        if isinstance(value, str):
            value = parse_moment(value)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return round((aware - _EPOCH).total_seconds() * 1e6)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return max(-_INT64, min(_INT64, value * 1000))
    except ValueError:
        pass
    raise InvalidRecord(
        f"{places.name(index)}: this is not a time.", found=str(value)[:40], expected="epoch milliseconds or ISO 8601"
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _partitions(values: Sequence[Any], places: _Locations) -> pa.Array:
    for i, value in enumerate(values):
        good = value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31)
        if not good:
            raise InvalidRecord(
                f"{places.name(i)}: this is not a partition.", found=str(value)[:40], expected="a number"
            )
    return pa.array(values, pa.int64())


def _header_lists(values: Sequence[Any], places: _Locations) -> pa.Array:
    """Convert headers: an object of texts, or a list of {"key": ..., "value": ...} as `lakemq fetch` prints them."""
    return pa.array([_header_list(v, i, places) for i, v in enumerate(values)], HEADERS)


def _header_list(value: Any, index: int, places: _Locations) -> list[dict[str, Any]] | None:
    place = places.name(index)
    if value is None:
        return None
    if isinstance(value, dict):
        value = [{"key": key, "value": text} for key, text in value.items()]
    if isinstance(value, list) and all(isinstance(h, dict) and isinstance(h.get("key"), str) for h in value):
        return [
            {
                "key": header["key"],
                "value": _from_base64(header["value_base64"], place)
                if "value_base64" in header
                else _as_bytes(header.get("value"), index, places),
            }
            for header in value
        ]
    raise InvalidRecord(
        f"{place}: these are not headers.",
        found=str(value)[:40],
        expected='{"name": "text"} or [{"key": ..., "value": ...}]',
    )


_CONVERT: dict[str, Callable[[Sequence[Any], _Locations], pa.Array]] = {
    "key": _texts,
    "value": _texts,
    "headers": _header_lists,
    "timestamp": _times,
    "partition": _partitions,
}
