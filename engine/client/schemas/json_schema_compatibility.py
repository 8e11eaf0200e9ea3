"""Compare JSON Schemas: whether all values of one fit another. jsonschema-rs decides it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...namespace.processes.extras import needs
from .budgets import MAX_ALTERNATIVES, JsonSchemaExpansion
from .ddl_compatibility import Obstacle

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

_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_DESCRIBES_PARTS = {"properties", "items", "prefixItems", "additionalProperties", "unevaluatedProperties"}
_SAYS_MORE = ("additionalProperties", "unevaluatedProperties")
_DEFINITIONS = ("$defs", "definitions")
_OTHER = "\ufffflakemq.other"
"""Stands for all names of properties that a schema does not declare."""
_MAX_SHOWN = 200


def find_json_schema_obstacle(reader: Any, writer: Any) -> Obstacle | None:
    """Return what keeps values that fit the writer's schema from fitting the reader's; None if all of them fit.

    A writer's values are taken to hold the properties that its schema declares and, if it is open, others whose names
    no schema declares. Otherwise no property could ever be added: an open object may hold anything under the new name.
    """
    closed = _close(writer, not _has_overlap(writer))
    if reader == writer or _covers(reader, closed):
        return None
    return _find_place(reader, closed, "$") or Obstacle("$", _show(writer), _show(reader))


def _covers(reader: Any, writer: Any) -> bool:
    """Return whether it is proven that every value of the writer's schema fits the reader's."""
    with needs("schemas"):
        import jsonschema_rs
    if any(JsonSchemaExpansion(schema).count_alternatives() > MAX_ALTERNATIVES for schema in (reader, writer)):
        return False
    try:
        canonical = [jsonschema_rs.canonicalize(schema, offline=True) for schema in (reader, writer)]
        return bool(canonical[0].covers(canonical[1]) == jsonschema_rs.canonical.Containment.YES)
    except ValueError:  # also for schemas of two drafts
        return False


def _has_overlap(schema: Any) -> bool:
    """Return whether somewhere two schemas may describe the same part of a value.

    If one of them is a definition, closing it would exclude values that the other one declares.
    """
    if isinstance(schema, list):
        return any(map(_has_overlap, schema))
    if not isinstance(schema, Mapping):
        return False
    return _overlaps(schema) or any(map(_has_overlap, schema.values()))


def _overlaps(schema: Mapping[str, Any]) -> bool:
    has_reference, has_parts = bool(_REFERENCES & schema.keys()), bool(_DESCRIBES_PARTS & schema.keys())
    return (has_reference and has_parts) or bool(_OVERLAPS & schema.keys())


def _close(schema: Any, closes_definitions: bool) -> Any:
    """Return the schema with objects that hold the declared properties, and one of a name that no schema declares.

    A part that several schemas describe stays as it is, because its other properties are declared elsewhere.
    """
    if not isinstance(schema, Mapping):
        return schema
    overlaps = _overlaps(schema)
    closed = dict(schema)
    for keyword in (*(_DEFINITIONS if closes_definitions else ()), *(() if overlaps else ("properties",))):
        if isinstance(schema.get(keyword), Mapping):
            closed[keyword] = {name: _close(part, closes_definitions) for name, part in schema[keyword].items()}
    if overlaps:
        return closed
    if isinstance(schema.get("items"), Mapping):
        closed["items"] = _close(schema["items"], closes_definitions)
    if "properties" in schema and not any(keyword in schema for keyword in _SAYS_MORE):
        closed["properties"] = {**closed["properties"], _OTHER: True}
        closed["additionalProperties"] = False
    return closed


def _find_place(reader: Any, writer: Any, place: str) -> Obstacle | None:
    """Return the innermost part that does not fit, along declared properties and items; None if no single one does."""
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
            return _find_place(*pair, at) or Obstacle(at, _show(written_part), _show(read_part))
    return None


def _with_definitions(part: Any, whole: Mapping[str, Any]) -> Any:
    """Return a part that still finds what its references name."""
    if not isinstance(part, Mapping):
        return part
    return {**{keyword: whole[keyword] for keyword in _DEFINITIONS if keyword in whole}, **part}


def _show(schema: Any) -> str:
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
    parts = {key: _reopen(part) for key, part in schema.items() if key != _OTHER}
    return {key: part for key, part in parts.items() if not (is_closed and key == "additionalProperties")}
