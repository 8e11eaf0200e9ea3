"""Defaults of Avro's fields: from the JSON of a schema to the values that a decoder returns.

fastavro takes a default as it stands in the schema, where bytes are text and a time or a decimal is what encodes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from .budgets import PartBudget

_RECORDS = ("record", "error")
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
    "error": (dict,),
}
"""Types of defaults in JSON. Those of all other types are text."""


def decode_defaults(schema: Any) -> Any:
    """Return a copy of a schema, as `parse_avro` returns it, with defaults as a decoder returns values.

    A default that is no value of its type is left out.
    """
    decoded = deepcopy(schema)
    _DefaultsDecoder(schema).replace(decoded)
    return decoded


def collect_named_types(schema: Any) -> dict[str, Any]:
    """Return full name -> definition of all named types within the schema."""
    named: dict[str, Any] = {}
    _add_named_type(schema, named)
    return named


def _add_named_type(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _add_named_type(branch, named)
    elif isinstance(schema, Mapping):
        if "name" in schema:
            named[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _add_named_type(field["type"], named)
        for key in ("type", "items", "values"):
            _add_named_type(schema.get(key), named)


class _DefaultsDecoder:
    def __init__(self, schema: Any) -> None:
        from fastavro.read import LOGICAL_READERS

        self._logical_readers = LOGICAL_READERS
        self._named = collect_named_types(schema)
        self._budget = PartBudget()
        self._replaced: set[int] = set()

    def replace(self, schema: Any) -> None:
        """Replace the defaults of all records, also of those that fastavro keeps by name."""
        if isinstance(schema, list):
            for branch in schema:
                self.replace(branch)
        elif isinstance(schema, dict) and id(schema) not in self._replaced:
            self._replaced.add(id(schema))
            for field in schema.get("fields", ()):
                self._replace_default(field)
                self.replace(field["type"])
            for part in (*schema.get("__named_schemas", {}).values(), *map(schema.get, ("type", "items", "values"))):
                self.replace(part)

    def _replace_default(self, field: dict[str, Any]) -> None:
        if "default" in field and id(field) not in self._replaced:
            self._replaced.add(id(field))
            try:
                field["default"] = self._decode(field["type"], field["default"])
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
                del field["default"]

    def _decode(self, schema: Any, default: Any) -> Any:
        if isinstance(schema, list):
            branches = [branch for branch in schema if self._is_of(branch, default)]
            return self._decode(branches[0], default)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self._decode(kind, default)
        if kind in _RECORDS:
            return {field["name"]: self._decode_field(field, default) for field in schema["fields"]}
        if kind == "array":
            return [self._decode(schema["items"], item) for item in default]
        if kind == "map":
            return {key: self._decode(schema["values"], item) for key, item in default.items()}
        if kind in ("bytes", "fixed"):
            default = default.encode("latin-1")
        elif kind in ("float", "double"):
            default = float(default)
        read = self._logical_readers.get(f"{kind}-{schema.get('logicalType')}")
        return read(default, schema, None) if read else default

    def _decode_field(self, field: Mapping[str, Any], default: Mapping[str, Any]) -> Any:
        if field["name"] in default:
            return self._decode(field["type"], default[field["name"]])
        self._budget.spend()
        return self._decode(field["type"], field["default"])

    def _is_of(self, schema: Any, default: Any) -> bool:
        """Return whether a default may be of a branch of a union."""
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self._is_of(kind, default)
        if kind == "enum":
            return default in schema["symbols"]
        is_bool = isinstance(default, bool)
        return isinstance(default, _JSON_TYPES.get(kind, (str,))) and is_bool == (kind == "boolean")
