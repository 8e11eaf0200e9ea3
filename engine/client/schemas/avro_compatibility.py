"""Compare Avro schemas: whether values of one can be read under another, by the rules of Avro's specification.

fastavro resolves schemas value by value. Here they are compared as a whole, before there is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .avro import find_logical_type
from .avro_defaults import collect_named_types
from .ddl_compatibility import Obstacle

_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}
"""(writer, reader) of types that may differ."""


def find_avro_obstacle(reader: Any, writer: Any) -> Obstacle | None:
    """Return what keeps the reader's schema from reading the writer's values; None if it can read all of them.

    Args:
        reader: a schema, as `parse_avro` returns it.
        writer: the schema of the values.
    """
    return _Comparison(collect_named_types(reader), collect_named_types(writer)).compare(reader, writer, "$")


def find_misread(reader: Any, writer: Any) -> Obstacle | None:
    """Return where a value that can be read has another logical type in the reader's schema; None: nowhere.

    A fingerprint does not cover logical types, and a number does not say what it counts. So a time in milliseconds
    would become one in microseconds.
    """
    named = collect_named_types(reader), collect_named_types(writer)
    return _Comparison(*named, finds_misreads_only=True).compare(reader, writer, "$")


class _Comparison:
    def __init__(
        self, reader_types: Mapping[str, Any], writer_types: Mapping[str, Any], finds_misreads_only: bool = False
    ) -> None:
        self._reader_types, self._writer_types = reader_types, writer_types
        self._finds_misreads_only = finds_misreads_only
        self._compared: set[tuple[str, str]] = set()
        """Pairs of records that are compared, or were: a record may contain itself."""

    def compare(self, reader: Any, writer: Any, place: str) -> Obstacle | None:
        reader, writer = _look_up(reader, self._reader_types), _look_up(writer, self._writer_types)
        if isinstance(writer, list):  # each branch may have been written
            return next((o for branch in writer if (o := self.compare(reader, branch, place))), None)
        obstacle = Obstacle(place, _show(writer), _show(reader))
        if isinstance(reader, list):
            branches = [branch for branch in reader if _is_resolved(_look_up(branch, self._reader_types), writer)]
            if any(self._fits(branch, writer, place) for branch in branches):
                return None
            return obstacle if branches else self._unless_misreads_only(obstacle)
        if not _is_resolved(reader, writer):
            return self._unless_misreads_only(obstacle)
        if find_logical_type(reader) != find_logical_type(writer):
            return obstacle
        kind = _kind(reader)
        return self._compare_same_kind(kind, reader, writer, place) if kind == _kind(writer) else None

    def _unless_misreads_only(self, obstacle: Obstacle) -> Obstacle | None:
        """Return the obstacle of values that cannot be read; None if only those count that are read wrongly."""
        return None if self._finds_misreads_only else obstacle

    def _fits(self, branch: Any, writer: Any, place: str) -> bool:
        """Return whether a branch of a union fits. What a refused branch has assumed about records is forgotten."""
        before = set(self._compared)
        if self.compare(branch, writer, place) is None:
            return True
        self._compared = before
        return False

    def _compare_same_kind(self, kind: str, reader: Any, writer: Any, place: str) -> Obstacle | None:
        if kind in ("record", "error"):
            return self._compare_records(reader, writer, place)
        if kind == "array":
            return self.compare(reader["items"], writer["items"], f"{place}[...]")
        if kind == "map":
            return self.compare(reader["values"], writer["values"], f"{place}.*")
        if kind == "enum" and "default" not in reader:
            for symbol in writer["symbols"]:
                if symbol not in reader["symbols"]:
                    return self._unless_misreads_only(Obstacle(place, f"symbol {symbol}", ", ".join(reader["symbols"])))
        if kind == "fixed" and reader["size"] != writer["size"]:
            return self._unless_misreads_only(Obstacle(place, f"size {writer['size']}", f"size {reader['size']}"))
        return None

    def _compare_records(self, reader: Any, writer: Any, place: str) -> Obstacle | None:
        pair = reader["name"], writer["name"]
        if pair in self._compared:
            return None
        self._compared.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            at = f"{place}.{field['name']}"
            names = (field["name"], *field.get("aliases", ()))
            other = next((written[name] for name in names if name in written), None)
            if other is None:
                if "default" not in field and not self._finds_misreads_only:
                    return Obstacle(at, "values without it", f"{_show(field['type'])} with a default")
            elif obstacle := self.compare(field["type"], other["type"], at):
                return obstacle
        return None


def _look_up(schema: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, Mapping) and not isinstance(schema["type"], str):
        return _look_up(schema["type"], named)
    return schema


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, Mapping) else schema)


def _is_resolved(reader: Any, writer: Any) -> bool:
    """Return whether a value is read, by its kind and its name; parts of it may not be."""
    kind, written = _kind(reader), _kind(writer)
    if kind != written:
        return (written, kind) in _PROMOTIONS
    return kind not in ("record", "error", "enum", "fixed") or _have_same_name(reader, writer)


def _have_same_name(reader: Any, writer: Any) -> bool:
    """Return whether the unqualified names are the same, or the reader has the writer's name as an alias."""
    name = writer["name"].rpartition(".")[2]
    return name in {full_name.rpartition(".")[2] for full_name in (reader["name"], *reader.get("aliases", ()))}


def _show(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(map(_show, schema))
    if isinstance(schema, Mapping) and "name" in schema:
        return f"{schema['type']} {schema['name']}"
    logical_type = find_logical_type(schema)
    return f"{_kind(schema)} with logicalType {logical_type}" if logical_type else _kind(schema)
