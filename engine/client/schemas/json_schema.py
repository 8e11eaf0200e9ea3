"""JSON Schema: validated by jsonschema-rs, with the Arrow type that its values have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from ...namespace.processes.extras import needs
from ...protocol.errors import InvalidConfig
from .budgets import (
    MAX_CHECKS,
    JsonSchemaExpansion,
    PartBudget,
    count_items,
    count_name_bytes,
    measure_depth,
    parse_json,
)
from .columns import json_text_field
from .json_patterns import MAX_STEPS, PatternBudget, build_keyword, count_letters, list_patterns
from .json_values import TOO_DEEP

_LEAVES = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_MAX_SHOWN = 80
_MOST_PATTERN_BYTES = 128 << 20
"""Most memory of all compiled patterns of a schema. By default each may take 10 MB."""
_LEAST_PATTERNS = 12
_MOST_DEPTH = 64
"""Levels beyond which a power of 2 is too large anyway."""
_APPLIES_TO_ITEMS = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems")
_EXCLUDES_NAMES = ("additionalProperties", "unevaluatedProperties")
_APPLIES_TO_NAMES = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")


def parse_json_schema(text: str) -> Any:
    """Return the schema as Python objects: a mapping, true or false.

    Raises:
        InvalidConfig: the text is no JSON Schema, or it refers to another document.
        MissingExtra: the extra `schemas` is not installed.
    """
    schema = parse_json(text, "a JSON Schema")
    build_validator(schema)
    return schema


def build_validator(schema: Any, budget: PatternBudget | None = None) -> Any:
    """Return a validator of jsonschema-rs. Raises InvalidConfig, MissingExtra.

    Args:
        schema: the schema.
        budget: counts what its patterns take; None: nothing counts it, which is faster.
    """
    with needs("schemas"):
        import jsonschema_rs
    # Patterns that take a time in proportion to the text. With look-around, one small value could take seconds.
    count = sum(1 for _ in list_patterns(schema))
    patterns = jsonschema_rs.RegexOptions(size_limit=_MOST_PATTERN_BYTES // max(_LEAST_PATTERNS, count))

    def build_matcher(pattern: str) -> Any:
        return jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=patterns)

    keywords = None if budget is None else {"pattern": build_keyword(budget, build_matcher)}
    try:
        return jsonschema_rs.validator_for(
            schema,
            retriever=_refuse_to_retrieve,
            pattern_options=patterns,
            keywords=keywords,
            validate_formats=False,  # until draft 7 jsonschema-rs checks them by default
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:  # ValidationError is a ValueError
        text = str(error).partition("\n")[0]
        raise InvalidConfig(
            "The schema is no valid JSON Schema.",
            found=text,
            expected="a JSON Schema whose patterns have no look-around and no back-references",
        ) from None


def _refuse_to_retrieve(uri: str) -> Any:
    # A schema of a topic must mean the same everywhere and always, and no publish may wait for a web server.
    raise ValueError("A schema may refer to its own parts only.")


class JsonSchemaCheck:
    """Checks values by one JSON Schema, within the budgets of its patterns and of its reasons."""

    def __init__(self, schema: Any) -> None:
        """Compile the schema. Raises InvalidConfig, MissingExtra."""
        self._schema = schema
        self._expansion = JsonSchemaExpansion(schema)
        self._validator = build_validator(schema)
        self._budget = PatternBudget()
        patterns = [(keyword, count_letters(pattern)) for keyword, pattern in list_patterns(schema)]
        self._most_letters = self._expansion.parts * max((letters for _, letters in patterns), default=0)
        """Letters of all patterns that one text may meet at most."""
        self._letters_of_names = sum(letters for keyword, letters in patterns if keyword == "patternProperties")

    @cached_property
    def _counting_validator(self) -> Any:
        return build_validator(self._schema, self._budget)

    def check(self, value: Any, size_bytes: int) -> None:
        """Check a decoded value. Raises ValueError, whose text holds nothing of the value."""
        if self._most_letters * size_bytes <= MAX_STEPS:
            return self._check_by(self._validator, value)
        self._budget.restart()
        if self._letters_of_names:
            self._budget.spend(self._letters_of_names, count_name_bytes(value))
        try:
            self._check_by(self._counting_validator, value)
        finally:
            self._budget.check()  # a value may seem to fit, or not to fit, because the budget ended

    def _check_by(self, validator: Any, value: Any) -> None:
        try:
            misfit = "" if validator.is_valid(value) else self._explain_misfit(validator, value)
        except ValueError:  # jsonschema-rs goes down 255 levels
            raise ValueError(TOO_DEEP) from None
        if misfit:
            raise ValueError(misfit)

    def _explain_misfit(self, validator: Any, value: Any) -> str:
        """Return why a value does not fit. Where branches differ at too many places, the text does not say where."""
        import jsonschema_rs

        if (expansion := self._expansion).has_branches:
            branching = max(1, expansion.loops) ** min(measure_depth(value), _MOST_DEPTH) if expansion.loops > 1 else 1
            if expansion.parts * branching * count_items(value) > MAX_CHECKS:
                return "at $: found a value that fits no branch of the schema, and is too large to say where"
        try:
            validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return describe_error(self._schema, error)
        raise AssertionError("a value fits and does not fit")  # is_valid and validate are the same validator


def describe_error(schema: Any, error: Any) -> str:
    """Return where a value does not fit, what was found and what the schema expects, without parts of the value."""
    path = list(error.schema_path)
    keyword = str(path[-1]) if path else "false"
    part = _find_part(schema, path)
    bound = "" if part is None else f" {json.dumps(part)}"
    if len(bound) > _MAX_SHOWN:
        bound = f"{bound[:_MAX_SHOWN]}..."
    type_name = _name_type(error.instance)
    if keyword == "required":
        type_name += f" without {getattr(error.kind, 'property', 'it')}"
    elif keyword in _EXCLUDES_NAMES:
        type_name = "an undeclared property"
    # behind a $ref, only this path leads from the root of the value
    return f"at {_format_place(list(error.evaluation_path))}: found {type_name}, expected {keyword}{bound}"


def _find_part(schema: Any, path: list[Any]) -> Any:
    for step in path:
        if not isinstance(schema, dict | list):
            return None
        try:
            schema = schema[step]
        except (LookupError, TypeError):  # it continues in another document
            return None
    return schema


def _format_place(path: list[Any]) -> str:
    """Return the place in the value, from names that the schema declares. Other names are the payload's."""
    place = "$"
    steps = iter(path[:-1])
    for step in steps:
        if step == "properties":
            place += f".{next(steps, '*')}"
        elif step in _APPLIES_TO_ITEMS:
            place += "[...]"
        elif step in _APPLIES_TO_NAMES:
            place += ".*"
    return place


def _name_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return next((name for type, name in names.items() if isinstance(value, type)), "number")


def decode_json(value: bytes) -> Any:
    """Return a JSON value as Python objects. Raises ValueError, without the value."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        raise ValueError("found no JSON") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def to_field(schema: Any, name: str = "value") -> pa.Field:
    """Return the type of values that fit the schema, as a field.

    Objects with declared properties become structs, arrays with one schema of items lists, and single types leaves; of
    these, `null` may be a second type. Everything else is shown as JSON text.
    """
    return _JsonSchemaConverter(schema).convert(schema, name)


class _JsonSchemaConverter:
    """Converts one document, of which `$ref` names parts."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._budget = PartBudget()
        self._open: list[str] = ["#"]
        """References that are being converted. One that occurs within itself has no Arrow type."""

    def convert(self, schema: Any, name: str) -> pa.Field:
        self._budget.spend()
        if not isinstance(schema, Mapping):
            return json_text_field(name)
        if "$ref" in schema:
            return self._convert_reference(str(schema["$ref"]), name)
        types = schema.get("type")
        listed = [types] if isinstance(types, str) else list(types or ())
        plain = [type for type in listed if type != "null"]
        if len(plain) != 1:
            return json_text_field(name)
        if plain[0] == "object" and schema.get("properties"):
            return pa.field(name, pa.struct([self.convert(part, key) for key, part in schema["properties"].items()]))
        if plain[0] == "array" and isinstance(schema.get("items"), Mapping) and "prefixItems" not in schema:
            return pa.field(name, pa.list_(self.convert(schema["items"], "item")))
        return pa.field(name, _LEAVES[plain[0]]) if plain[0] in _LEAVES else json_text_field(name)

    def _convert_reference(self, reference: str, name: str) -> pa.Field:
        steps = reference.removeprefix("#").split("/")[1:]
        part = _find_part(self._document, [step.replace("~1", "/").replace("~0", "~") for step in steps])
        if not reference.startswith("#") or part is None or reference in self._open:
            return json_text_field(name)
        self._open.append(reference)
        try:
            return self.convert(part, name)
        finally:
            self._open.pop()
