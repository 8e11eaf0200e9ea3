"""Decide whether a topic's schema may become another one: for DDL, Avro and JSON Schema."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...namespace.extras import needs
from ...protocol.errors import IncompatibleSchema
from ...protocol.parameters import AVRO, COMPATIBILITY, DDL, TOPIC, SchemaVersion, append_schema, last_version
from . import SchemaRule
from .avro import parse_avro
from .avro_shape import find_logical_type, resolve_types
from .budgets import MAX_ALTERNATIVES, JsonSchemaExpansion, list_objects
from .ddl import Obstacle, find_struct_obstacle, parse_ddl
from .json_schema import parse_json_schema
from .topic_schema import build_schema_rule, compile_schema

# Compare Avro schemas: whether values of one can be read under another, by the rules of Avro's specification.
#
# fastavro resolves schemas value by value. Here they are compared as a whole, before there is a value.


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
    return _Comparison(finds_misreads_only=False).compare(resolve_types(reader), resolve_types(writer), "$")


def find_misread(reader: Any, writer: Any) -> Obstacle | None:
    """Return where a value that can be read has another logical type in the reader's schema; None: nowhere.

    A fingerprint does not cover logical types, and a number does not say what it counts. So a time in milliseconds
    would become one in microseconds.
    """
    return _Comparison(finds_misreads_only=True).compare(resolve_types(reader), resolve_types(writer), "$")


class _Comparison:
    def __init__(self, finds_misreads_only: bool) -> None:
        self._finds_misreads_only = finds_misreads_only

    def compare(self, reader: Any, writer: Any, place: str) -> Obstacle | None:
        if isinstance(writer, list):  # each branch may have been written
            return next((o for branch in writer if (o := self.compare(reader, branch, place))), None)
        obstacle = Obstacle(place, _show_avro(writer), _show_avro(reader))
        if isinstance(reader, list):
            branches = [branch for branch in reader if _is_resolved(branch, writer)]
            if any(self.compare(branch, writer, place) is None for branch in branches):
                return None
            return obstacle if branches else self._unless_misreads_only(obstacle)
        if not _is_resolved(reader, writer):
            return self._unless_misreads_only(obstacle)
        if find_logical_type(reader) != find_logical_type(writer):
            return obstacle
        kind = reader["type"]
        return self._compare_same_kind(kind, reader, writer, place) if kind == writer["type"] else None

    def _unless_misreads_only(self, obstacle: Obstacle) -> Obstacle | None:
        """Return the obstacle of values that cannot be read; None if only those count that are read wrongly."""
        return None if self._finds_misreads_only else obstacle

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
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            at = f"{place}.{field['name']}"
            names = (field["name"], *field.get("aliases", ()))
            other = next((written[name] for name in names if name in written), None)
            if other is None:
                if "default" not in field and not self._finds_misreads_only:
                    return Obstacle(at, "values without it", f"{_show_avro(field['type'])} with a default")
            elif obstacle := self.compare(field["type"], other["type"], at):
                return obstacle
        return None


def _is_resolved(reader: Any, writer: Any) -> bool:
    """Return whether a value is read, by its kind and its name; parts of it may not be."""
    kind, written = reader["type"], writer["type"]
    if kind != written:
        return (written, kind) in _PROMOTIONS
    return kind not in ("record", "error", "enum", "fixed") or _have_same_name(reader, writer)


def _have_same_name(reader: Any, writer: Any) -> bool:
    """Return whether the unqualified names are the same, or the reader has the writer's name as an alias."""
    name = writer["name"].rpartition(".")[2]
    return name in {full_name.rpartition(".")[2] for full_name in (reader["name"], *reader.get("aliases", ()))}


def _show_avro(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(map(_show_avro, schema))
    if "name" in schema:
        return f"{schema['type']} {schema['name']}"
    logical_type = find_logical_type(schema)
    return f"{schema['type']} with logicalType {logical_type}" if logical_type else str(schema["type"])


# Compare JSON Schemas: whether all values of one fit another. jsonschema-rs decides it.


_OVERLAPS = {
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "contains",
}
"""Keywords by which a second schema describes the same part of a value."""

_SELECTS_NAMES = {"patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"}
"""Keywords that decide about properties by other means than their declared names."""

_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_DESCRIBES_PARTS = {
    "properties",
    "items",
    "prefixItems",
    "additionalProperties",
    "unevaluatedProperties",
    "required",
    "dependentRequired",
    "const",
    "enum",
}
_SAYS_MORE = ("additionalProperties", "unevaluatedProperties")
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = ("properties", "dependentSchemas")
_PARTS = ("items", "prefixItems", "additionalProperties", "allOf", "anyOf", "oneOf", "then", "else")
_DEFINITION = re.compile(r"#/(\$defs|definitions)/[^/]+")
_OTHER = "\ufffflakemq.other"
"""Stands for all names of properties that a schema does not declare."""
_ANY = {"$comment": _OTHER}
"""The schema of properties about which a part says nothing."""
_MAX_ADDED_NAMES = 10_000
_MAX_SHOWN = 200


def find_json_schema_obstacle(reader: Any, writer: Any) -> Obstacle | None:
    """Return what keeps values that fit the writer's schema from fitting the reader's; None if all of them fit.

    A writer's values are taken to hold the properties that its schema declares and, if it is open, others whose names
    no schema declares. Otherwise no property could ever be added: an open object may hold anything under the new name.
    """
    closed = _Closing(writer).close()
    if reader == writer or _covers(reader, closed):
        return None
    return _find_place(reader, closed, "$") or Obstacle("$", _show_json(writer), _show_json(reader))


def _covers(reader: Any, writer: Any) -> bool:
    """Return whether it is proven that every value of the writer's schema fits the reader's."""
    with needs("schemas"):
        import jsonschema_rs
    if any(JsonSchemaExpansion(schema).count_alternatives() > MAX_ALTERNATIVES for schema in (reader, writer)):
        return False
    try:
        canonical = [
            jsonschema_rs.canonicalize(schema, offline=True, validate_formats=False) for schema in (reader, writer)
        ]
        return bool(canonical[0].covers(canonical[1]) == jsonschema_rs.canonical.Containment.YES)
    except ValueError:  # also for schemas of two drafts
        return False


class _Closing:
    """Closes the objects of one document: they hold declared properties, and one of a name that no schema declares.

    An object that one part describes holds the properties of that part. Where several parts may describe the same
    object (`allOf`, a `$ref` beside `properties`, ...), each of them allows the names that others declare. Then closing
    it changes nothing for values that have only declared names and the other one.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        parts = list(list_objects(document))
        self._has_overlap = any(map(_overlaps, parts))
        self._names = sorted({name for part in parts for name in _list_names(part)}) if self._has_overlap else []
        self._is_shared = self._has_overlap and any(map(_has_other_reference, parts))
        """Whether a reference may name a part that is no definition: then any part may be described twice."""
        objects = sum("properties" in part for part in parts)
        selects_names = any(_SELECTS_NAMES & part.keys() for part in parts)
        self._can_share = not selects_names and objects * len(self._names) <= _MAX_ADDED_NAMES

    def close(self) -> Any:
        return self._close(self._document, self._is_shared)

    def _close(self, schema: Any, is_shared: bool) -> Any:
        if isinstance(schema, list):
            return [self._close(part, is_shared) for part in schema]
        if not isinstance(schema, Mapping) or (is_shared and not self._can_share):
            return schema
        closed = dict(schema)
        for keyword in _DEFINITIONS:
            if isinstance(schema.get(keyword), Mapping):
                closed[keyword] = self._close_each(schema[keyword], is_shared or self._has_overlap)
        is_shared |= _overlaps(schema)
        if is_shared and not self._can_share:
            return closed
        for keyword in _BY_NAME:
            if isinstance(schema.get(keyword), Mapping):
                closed[keyword] = self._close_each(schema[keyword], is_shared)
        for keyword in _PARTS:
            if keyword in schema:
                closed[keyword] = self._close(schema[keyword], is_shared)
        is_open = not any(keyword in schema for keyword in (*_SAYS_MORE, *_SELECTS_NAMES))
        if is_open and isinstance(schema.get("properties"), Mapping):
            names = self._names if is_shared else _list_names(schema)
            closed["properties"] = {**dict.fromkeys([*names, _OTHER], _ANY), **closed["properties"]}
            closed["additionalProperties"] = False
        return closed

    def _close_each(self, schemas: Mapping[str, Any], is_shared: bool) -> dict[str, Any]:
        return {name: self._close(part, is_shared) for name, part in schemas.items()}


def _list_names(schema: Mapping[str, Any]) -> set[str]:
    """Return all names of properties that a part of a schema knows."""
    properties, dependent = schema.get("properties"), schema.get("dependentRequired")
    names = {*properties} if isinstance(properties, Mapping) else set()
    lists = [schema.get("required"), *(dependent.values() if isinstance(dependent, Mapping) else ())]
    names |= {name for listed in lists if isinstance(listed, list) for name in listed if isinstance(name, str)}
    choices = [schema.get("const"), *(enum if isinstance(enum := schema.get("enum"), list) else ())]
    return names | {name for choice in choices if isinstance(choice, Mapping) for name in choice}


def _has_other_reference(schema: Mapping[str, Any]) -> bool:
    references = [schema[keyword] for keyword in _REFERENCES if isinstance(schema.get(keyword), str)]
    return any(not _DEFINITION.fullmatch(reference) for reference in references)


def _overlaps(schema: Mapping[str, Any]) -> bool:
    """Return whether other parts of the schema may describe the same value."""
    has_reference, has_parts = bool(_REFERENCES & schema.keys()), bool(_DESCRIBES_PARTS & schema.keys())
    return (has_reference and has_parts) or bool(_OVERLAPS & schema.keys())


def _find_place(reader: Any, writer: Any, place: str, seen: frozenset[str] = frozenset()) -> Obstacle | None:
    """Return the innermost part that does not fit, along declared properties and items; None if no single one does.

    seen: references that were followed on the way, because a part may refer to itself.
    """
    if not (isinstance(reader, Mapping) and isinstance(writer, Mapping)):
        return None
    if missing := sorted(set(reader.get("required", ())) - set(writer.get("required", ()))):
        return Obstacle(f"{place}.{missing[0]}", "values without it", f"required {json.dumps(reader['required'])}")
    written = writer.get("properties") or {}
    if _OTHER in written and any(reader.get(keyword, True) is False for keyword in _SAYS_MORE):
        return Obstacle(place, "values with other properties", "the declared properties only")
    parts = [(f"{place}.{name}", part, written.get(name)) for name, part in (reader.get("properties") or {}).items()]
    parts.append((f"{place}[...]", reader.get("items"), writer.get("items")))
    for at, read_part, written_part in parts:
        if read_part is None or written_part is None:
            continue
        pair = _with_definitions(read_part, reader), _with_definitions(written_part, writer)
        if not _covers(*pair):
            followed = {part["$ref"] for part in (read_part, written_part) if _is_reference(part)}
            if followed and followed <= seen:
                continue  # it is the part that is looked at
            pair = _follow_reference(pair[0]), _follow_reference(pair[1])
            return _find_place(*pair, at, seen | followed) or Obstacle(at, _show_json(pair[1]), _show_json(pair[0]))
    return None


def _is_reference(part: Any) -> bool:
    return isinstance(part, Mapping) and bool(_DEFINITION.fullmatch(str(part.get("$ref"))))


def _follow_reference(part: Any) -> Any:
    """Return the definition to which a part refers, if the part says nothing else."""
    if not _is_reference(part) or part.keys() - {"$ref", *_DEFINITIONS}:
        return part
    _, keyword, name = part["$ref"].split("/")
    return _with_definitions(part.get(keyword, {}).get(name, part), part)


def _with_definitions(part: Any, whole: Mapping[str, Any]) -> Any:
    """Return a part that still finds what its references name."""
    if not isinstance(part, Mapping):
        return part
    return {**{keyword: whole[keyword] for keyword in _DEFINITIONS if keyword in whole}, **part}


def _show_json(schema: Any) -> str:
    if isinstance(schema, Mapping):
        schema = {key: part for key, part in schema.items() if key not in _DEFINITIONS}
    text = json.dumps(_reopen(schema))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _reopen(schema: Any) -> Any:
    """Return a schema that `_close` has changed as it was."""
    if isinstance(schema, list):
        return [_reopen(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    is_closed = _OTHER in schema.get("properties", ())
    parts = {key: _reopen(part) for key, part in schema.items() if part != _ANY}
    return {key: part for key, part in parts.items() if not (is_closed and key == "additionalProperties")}


def check_compatibility(topic: str, versions: Sequence[SchemaVersion], new: SchemaRule, compatibility: str) -> None:
    """Check a new schema against the newest version of the topic, and against older ones whose values it may spoil.

    Args:
        topic: its name.
        versions: the versions so far.
        new: the schema that is to be the next one.
        compatibility: backward, forward, full or none.

    Raises:
        IncompatibleSchema: the change is not admitted.
    """
    _check_logical_types(topic, versions, new)
    if not versions or compatibility == "none":
        return
    old = versions[-1]
    if old.type != new.type:
        raise IncompatibleSchema(
            f"The schema of {topic} is of another type, so no message of one can be read under the other.",
            found=f"schema.type={new.type}",
            expected=f"schema.type={old.type}, or schema.compatibility=none",
        )
    if compatibility in ("backward", "full"):
        _check_backward(topic, versions, new)
    if compatibility in ("forward", "full") and (obstacle := _find_obstacle(new.type, old.schema, new.text)):
        raise _refuse(f"Version {old.version} of {topic} cannot read messages of the new schema", obstacle)


def _check_backward(topic: str, versions: Sequence[SchemaVersion], new: SchemaRule) -> None:
    """Refuse a schema that cannot read a version's values, if the newest version can: stored values would become null.

    An older version may have had a field that later ones lack, and that comes back with another type.
    """
    newest = versions[-1]
    for version in reversed(versions):
        if version.type != new.type or not (obstacle := _find_obstacle(new.type, new.text, version.schema)):
            continue
        if version is newest or not _find_obstacle(new.type, newest.schema, version.schema):
            raise _refuse(f"The new schema cannot read messages of version {version.version} of {topic}", obstacle)


def _check_logical_types(topic: str, versions: Sequence[SchemaVersion], new: SchemaRule) -> None:
    """Refuse another logical type of an Avro field, with any compatibility: values would be read wrongly."""
    for version in versions if new.type == AVRO else ():
        if version.type == AVRO and (obstacle := find_misread(parse_avro(new.text), parse_avro(version.schema))):
            text = (
                f"The new schema would misread messages of version {version.version} of {topic}, because it has another"
                f" logical type at {obstacle.place}. Add a field of another name instead."
            )
            raise IncompatibleSchema(text, found=obstacle.readable, expected=obstacle.written)


def _find_obstacle(type: str, reader: str, writer: str) -> Obstacle | None:
    if type == DDL:
        return find_struct_obstacle(parse_ddl(reader), parse_ddl(writer))
    if type == AVRO:
        return find_avro_obstacle(parse_avro(reader), parse_avro(writer))
    return find_json_schema_obstacle(parse_json_schema(reader), parse_json_schema(writer))


def _refuse(text: str, obstacle: Obstacle) -> IncompatibleSchema:
    return IncompatibleSchema(f"{text}, at {obstacle.place}.", found=obstacle.written, expected=obstacle.readable)


def check_new_schema(config: Mapping[str, Any]) -> None:
    """Check the schema of a topic that is to be created. Raises InvalidConfig, MissingExtra."""
    if versions := append_schema((), config, 0):
        compile_schema(build_schema_rule(versions))


def check_changed_schema(
    topic: str, config: Mapping[str, Any], versions: tuple[SchemaVersion, ...], changes: Mapping[str, Any]
) -> int:
    """Check what a change of settings makes of a topic's schema, and return the version that it was compared with.

    Args:
        topic: its name.
        config: its settings now.
        versions: the versions of its schema now.
        changes: settings to set; None resets one.

    Raises:
        InvalidConfig: the new schema is not valid.
        IncompatibleSchema: the setting schema.compatibility, as it is after the change, does not admit it.
        MissingExtra: the extra `schemas` is not installed.
    """
    changed = {key: value for key, value in {**config, **changes}.items() if value is not None}
    after = append_schema(versions, changed, 0)
    if after != versions:
        rule = build_schema_rule(after)
        compile_schema(rule)
        compatibility = changed.get(COMPATIBILITY, TOPIC[COMPATIBILITY].default)
        check_compatibility(topic, versions, rule, compatibility)
    return last_version(versions)
