"""Compare JSON Schemas: whether all values of one fit another. jsonschema-rs decides it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
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
    return _find_place(reader, closed, "$") or Obstacle("$", _show(writer), _show(reader))


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
        parts = list(_list_parts(document))
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


def _list_parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all dictionaries within a schema. Some, such as that of `properties`, are no schemas themselves."""
    if isinstance(schema, Mapping):
        yield schema
    if isinstance(schema, Mapping | list):
        for part in schema.values() if isinstance(schema, Mapping) else schema:
            yield from _list_parts(part)


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
    parts = {key: _reopen(part) for key, part in schema.items() if part != _ANY}
    return {key: part for key, part in parts.items() if not (is_closed and key == "additionalProperties")}
