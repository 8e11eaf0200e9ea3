"""Budgets of schemas and values. A schema beyond them is refused before anything is compiled.

Whoever may create a topic decides what its publishers and readers compile. Text of 64 KB can describe a type of a
million parts, and a value of a few bytes can have a million items. The validating libraries have no bounds of
their own.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import pyarrow as pa

from ...protocol.errors import InvalidConfig

MAX_DEPTH = 64
"""Levels of a value's type. Arrow reads columns of at most 64 levels from a file."""
MAX_PARTS = 10_000
"""Parts of a schema, each named type or reference counted as often as it is used."""
MAX_CELLS = 1_000_000
"""Cells of the columns of one value, if it has fewer bytes."""
MAX_JSON_DEPTH = 255
"""Levels of a schema's JSON; jsonschema-rs reads no more."""
MAX_ALTERNATIVES = 256
"""Combinations of branches that two JSON Schemas are compared by. More take hundreds of megabytes."""
MAX_DECIMAL_BYTES = 4096
"""Bytes of an Avro decimal. fastavro takes a second for 100,000, and four times as long for twice as many."""
MAX_CHECKS = 100_000
"""Checks that the reason for a misfit may take: jsonschema-rs keeps an error of a kilobyte for each."""
_MAX_NESTED_REFERENCES = 20

_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class BeyondBudgetError(ValueError):
    """A value takes more than it may. The text holds nothing of the value."""


def parse_json(text: str, expected: str) -> Any:
    """Return the JSON of a schema. Raises InvalidConfig: it is no JSON, or nested too deeply."""
    try:
        document = json.loads(text)
        depth = measure_depth(document)
    except ValueError:
        raise InvalidConfig("The schema is no JSON.", found=text, expected=expected) from None
    except RecursionError:
        raise refuse_depth() from None
    if depth > MAX_JSON_DEPTH:
        raise refuse_depth(depth)
    return document


def list_levels(value: Any) -> Iterator[list[Any]]:
    """Yield the parts of a value, level by level: first the value itself. It takes no recursion."""
    level = [value]
    while level:
        yield level
        inner = [part.values() if isinstance(part, Mapping) else part for part in level if _is_container(part)]
        level = [child for children in inner for child in children]


def measure_depth(value: Any) -> int:
    """Return how many levels of lists and dictionaries a value has; 0 for a plain value."""
    return sum(any(map(_is_container, level)) for level in list_levels(value))


def count_items(value: Any) -> int:
    """Return how many parts a value has, itself included."""
    return sum(map(len, list_levels(value)))


def count_name_bytes(value: Any) -> int:
    """Return how many bytes the names of properties of a value have, inner ones included."""
    return sum(len(name.encode()) for part in list_objects(value) for name in part)


def list_objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all dictionaries within a value. In a schema, some are no schemas themselves, as that of `properties`."""
    for level in list_levels(value):
        yield from (part for part in level if isinstance(part, Mapping))


def refuse_depth(depth: int | None = None) -> InvalidConfig:
    """Return the error of a schema that is nested too deeply. depth: its levels, if they were counted."""
    return InvalidConfig(
        "The schema is nested too deeply.",
        found="more levels than can be read" if depth is None else f"{depth} levels",
        expected=f"at most {MAX_DEPTH} levels of types, and {MAX_JSON_DEPTH} of JSON",
    )


class PartBudget:
    """Counts the parts of one schema while they are expanded."""

    def __init__(self) -> None:
        self._parts = 0

    def spend(self, parts: int = 1) -> None:
        """Count parts. Raises InvalidConfig: there are too many."""
        self._parts += parts
        if self._parts > MAX_PARTS:
            raise InvalidConfig(
                "The schema has too many parts. Each named type and each reference counts as often as it is used.",
                found=f"more than {MAX_PARTS}",
                expected=f"at most {MAX_PARTS}",
            )


def check_field(field: pa.Field) -> None:
    """Check the type of a schema's values.

    Raises InvalidConfig: it has too many levels or parts, or fields that Spark cannot tell apart.
    """
    budget, depth, level = PartBudget(), 0, [field.type]
    while level:
        depth += 1
        budget.spend(len(level))
        for type in filter(pa.types.is_struct, level):
            _refuse_equal_names([child.name for child in type])
        level = [child for type in level for child in _list_inner_types(type)]
    if depth > MAX_DEPTH:
        raise refuse_depth(depth)


def _refuse_equal_names(names: Sequence[str]) -> None:
    lowered = [name.lower() for name in names]
    if len(set(lowered)) < len(names):
        repeated = next(name for name in lowered if lowered.count(name) > 1)
        raise InvalidConfig(
            "Two fields of the schema differ only in case, or in nothing. Spark cannot tell them apart.",
            found=" and ".join(name for name in names if name.lower() == repeated),
            expected="names that differ in more than case",
        )


def _list_inner_types(type: pa.DataType) -> Iterable[pa.DataType]:
    if pa.types.is_map(type):
        return [type.item_type]
    return [type.field(index).type for index in range(type.num_fields)]


def has_repeated_parts(type: pa.DataType) -> bool:
    """Return whether a value of the type may have more cells than the type has parts."""
    is_repeated = pa.types.is_list(type) or pa.types.is_map(type)
    return is_repeated or any(map(has_repeated_parts, _list_inner_types(type)))


def count_cells(values: Iterable[Any], type: pa.DataType, most: int) -> int:
    """Return how many cells the columns of decoded values have. It stops counting soon after `most`.

    Arrow also keeps a cell for each column of a struct that is null.
    """
    places = list(values)
    cells = len(places)
    for child in type if pa.types.is_struct(type) else ():
        if cells > most:
            break
        parts = (None if value is None else value.get(child.name) for value in places)
        cells += count_cells(parts, child.type, most - cells)
    if cells <= most and (pa.types.is_list(type) or pa.types.is_map(type)):
        items = (item for v in places if v for item in (v.values() if isinstance(v, Mapping) else v))
        cells += count_cells(items, next(iter(_list_inner_types(type))), most - cells)
    return cells


class JsonSchemaExpansion:
    """The parts of one JSON Schema, with each reference followed.

    Attributes:
        parts: how many there are. A reference within the part that it names counts once.
        loops: references within the part that they name.
        has_branches: whether an error may have other errors as its causes.
    """

    def __init__(self, document: Any) -> None:
        """Expand the schema. Raises InvalidConfig: it has too many parts."""
        self._document = document
        self._sizes: dict[int, int] = {}
        """id of a part that a reference names -> its size; 0 while it is expanded."""
        self._anchors: dict[str, Any] = {}
        self.loops = 0
        self.has_branches = False
        self._index(document)
        self._sizes[id(document)] = 0
        self.parts = self._count(document)
        PartBudget().spend(self.parts)

    def _index(self, document: Any) -> None:
        references, has_nested_id = 0, False
        for part in list_objects(document):
            references += sum(keyword in part for keyword in _REFERENCES)
            has_nested_id |= part is not document and isinstance(part.get("$id", part.get("id")), str)
            self.has_branches |= "anyOf" in part or "oneOf" in part
            names = [part.get("$anchor"), part.get("$dynamicAnchor")]
            self._anchors |= {f"#{name}": part for name in names if isinstance(name, str)}
        if has_nested_id and references > _MAX_NESTED_REFERENCES:
            raise InvalidConfig(
                "The schema has an $id within itself, so its references are not counted one by one.",
                found=f"{references} references",
                expected=f"at most {_MAX_NESTED_REFERENCES}, or no $id but the outermost",
            )

    def _count(self, schema: Any) -> int:
        if isinstance(schema, list):
            return sum(map(self._count, schema))
        if not isinstance(schema, Mapping):
            return 0
        size = 1 + sum(self._count(part) for keyword, part in schema.items() if keyword not in _DEFINITIONS)
        for keyword in _REFERENCES:
            if isinstance(reference := schema.get(keyword), str):
                size += self._count_target(reference)
        return size

    def _count_target(self, reference: str) -> int:
        part = self.find(reference)
        if not isinstance(part, Mapping):
            return 1
        size = self._sizes.get(id(part))
        if size is None:
            self._sizes[id(part)] = 0
            size = self._sizes[id(part)] = self._count(part)
        elif size == 0:
            self.loops += 1
        return max(size, 1)

    def find(self, reference: str) -> Any:
        """Return the part that a reference names; None if there is none."""
        own = self._document.get("$id", self._document.get("id")) if isinstance(self._document, Mapping) else None
        if isinstance(own, str):
            reference = "#" + reference.removeprefix(own.rstrip("#")).removeprefix("#")
        if reference in self._anchors:
            return self._anchors[reference]
        part = self._document
        for step in reference.removeprefix("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                part = part[int(key) if isinstance(part, list) else key]
            except (LookupError, TypeError, ValueError):
                return None
        return part

    def count_alternatives(self) -> int:
        """Return how many combinations of branches describe one part of a value, at most `MAX_ALTERNATIVES` + 1."""
        return self._alternatives(self._document, {})

    def _alternatives(self, schema: Any, counted: dict[int, int]) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) not in counted:
            counted[id(schema)] = 1
            product = 1
            for keyword, part in schema.items():
                product = min(product * self._alternatives_of(keyword, part, counted), MAX_ALTERNATIVES + 1)
            counted[id(schema)] = product
        return counted[id(schema)]

    def _alternatives_of(self, keyword: str, part: Any, counted: dict[int, int]) -> int:
        if keyword in _REFERENCES and isinstance(part, str):
            return self._alternatives(self.find(part), counted)
        if keyword in _DEFINITIONS or not _is_container(part):
            return 1
        if keyword in _BY_NAME and isinstance(part, Mapping):
            return max((self._alternatives(child, counted) for child in part.values()), default=1)
        if isinstance(part, Mapping):
            return (2 if keyword == "if" else 1) * self._alternatives(part, counted)
        alternatives = [self._alternatives(child, counted) for child in part]
        return max(1, sum(alternatives)) if keyword in ("anyOf", "oneOf") else prod(alternatives)


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)
