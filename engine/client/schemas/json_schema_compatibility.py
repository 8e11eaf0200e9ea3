"""Whether all values of one JSON Schema fit another: jsonschema-rs decides it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...namespace.processes.extras import needs
from .ddl_compatibility import Obstacle

_OPENS = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_COMBINES = ("allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "$ref", "$dynamicRef", "$recursiveRef")
_DEFINITIONS = ("$defs", "definitions")
_MAX_SHOWN = 200


def find_json_schema_obstacle(reader: Any, writer: Any) -> Obstacle | None:
    """Return what keeps values that fit the writer's schema from fitting the reader's; None if all of them fit.

    A writer's values are taken to hold the properties that its schema declares, and no others, unless it says more
    about them. Otherwise no property could ever be added: an open object may hold anything under the new name.
    """
    closed = _close(writer, not _combines_definitions(writer))
    if reader == writer or _covers(reader, closed):
        return None
    return _find_place(reader, closed, "$") or Obstacle("$", _show(writer), _show(reader))


def _covers(reader: Any, writer: Any) -> bool:
    """Return whether it is proven that every value of the writer's schema fits the reader's."""
    with needs("schemas"):
        import jsonschema_rs
    try:
        canonical = [jsonschema_rs.canonicalize(schema, offline=True) for schema in (reader, writer)]
    except ValueError:
        return False
    return bool(canonical[0].covers(canonical[1]) == jsonschema_rs.canonical.Containment.YES)


def _combines_definitions(schema: Any) -> bool:
    """Return whether definitions may be parts of a combined schema, where closing them would exclude values."""
    text = json.dumps(schema)
    return any(f'"{keyword}"' in text for keyword in _COMBINES if "ef" not in keyword)


def _close(schema: Any, closes_definitions: bool) -> Any:
    """Return the schema with objects that hold the declared properties only.

    An object that is one part of a combined schema stays as it is, because its other properties are declared elsewhere.
    """
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for keyword in ("properties", *(_DEFINITIONS if closes_definitions else ())):
        if isinstance(schema.get(keyword), Mapping):
            closed[keyword] = {name: _close(part, closes_definitions) for name, part in schema[keyword].items()}
    if isinstance(schema.get("items"), Mapping):
        closed["items"] = _close(schema["items"], closes_definitions)
    if "properties" in schema and not any(keyword in schema for keyword in (*_OPENS, *_COMBINES)):
        closed["additionalProperties"] = False
    return closed


def _find_place(reader: Any, writer: Any, place: str) -> Obstacle | None:
    """Return the innermost part that does not fit, along declared properties and items; None if no single one does."""
    if not (isinstance(reader, Mapping) and isinstance(writer, Mapping)):
        return None
    if missing := sorted(set(reader.get("required", ())) - set(writer.get("required", ()))):
        return Obstacle(f"{place}.{missing[0]}", "values without it", f"required {json.dumps(reader['required'])}")
    written = writer.get("properties") or {}
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
    text = json.dumps(schema)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
