"""The shape of an Avro schema: whether its values are bounded, and how much one byte of a value can become.

fastavro checks nothing of this: a record that contains itself ends the process, and 15 bytes are a hundred million
nulls.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import pyarrow as pa

from lakemq.tables.specs.spec import TIME

from ...protocol.errors import InvalidConfig
from .budgets import MAX_DECIMAL_BYTES, BeyondBudgetError, PartBudget, list_objects

_RECORDS = ("record", "error")
_UNNAMED = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
RECORD_NAME = "-type"
"""Key of the name of a record that is in a union. No field has such a name."""


class AvroShape:
    """The shape of one schema, as `parse_avro` returns it.

    Attributes:
        names_records: whether a union has several named types, so that the name of a record must stand beside it.
        repeated_defaults: fields with a default, if a value may have records of any number; else 0.
    """

    def __init__(self, schema: Any) -> None:
        """Examine the schema. Raises InvalidConfig: it has a record within itself, or is beyond the budgets."""
        self.names_records = has_repeats = False
        defaults = 0
        for part in list_types(schema):
            _refuse_repetitions(part)
            if isinstance(part, Mapping):
                has_repeats |= part["type"] in ("array", "map")
                defaults += sum("default" in field for field in part.get("fields", ()))
            if isinstance(part, list):
                self.names_records |= sum(name_branch(branch) not in _UNNAMED for branch in part) > 1
        self.repeated_defaults = defaults if has_repeats else 0
        self._named = _collect_named_types(schema)
        self._sizes: dict[str, int] = {}
        PartBudget().spend(self._count(schema))
        _refuse_empty_items(resolve_types(schema), False)

    def _count(self, schema: Any) -> int:
        """Return the number of parts, with each named type counted as often as it is used."""
        if isinstance(schema, str) and schema not in self._named:
            return 1
        name = schema if isinstance(schema, str) else schema.get("name") if isinstance(schema, Mapping) else None
        if name is None:
            return 1 + sum(map(self._count, _list_parts(schema)))
        if name not in self._sizes:
            self._sizes[name] = 0
            self._sizes[name] = 1 + sum(map(self._count, _list_parts(self._named[name])))
        elif self._sizes[name] == 0:
            raise InvalidConfig(
                f"The Avro type {name} contains itself. Its values could be nested without end, and Spark has no type"
                " for them.",
                found=name,
                expected="a schema without recursion",
            )
        return self._sizes[name]


def _may_be_empty(schema: Any) -> bool:
    """Return whether a value may have no bytes. A branch of a union takes a byte."""
    if isinstance(schema, list):
        return False
    if schema["type"] in _RECORDS:
        return all(_may_be_empty(field["type"]) for field in schema["fields"])
    return schema["type"] == "null" or schema.get("size") == 0


def _refuse_empty_items(schema: Any, is_repeated: bool) -> None:
    """Refuse parts of no bytes where a value may have any number of them. schema: with all names resolved."""
    inner = list(_list_parts(schema))
    is_repeated |= isinstance(schema, Mapping) and schema["type"] in ("array", "map")
    is_counted = isinstance(schema, Mapping) and (schema["type"] in _RECORDS or schema["type"] == "array")
    if is_repeated and is_counted and any(map(_may_be_empty, inner)):
        raise InvalidConfig(
            "A few bytes of the Avro schema's values could have any number of parts, because these take no bytes.",
            found="null, an empty record or a fixed type of size 0 within an array or a map",
            expected="a type that takes bytes, or a union",
        )
    for part in inner:
        _refuse_empty_items(part, is_repeated)


class TypeResolver:
    """Replaces names of types by what they name, so that whoever walks through a schema meets definitions only.

    No type of the schema contains itself: see `AvroShape`.
    """

    def __init__(self, schema: Any) -> None:
        self._named = _collect_named_types(schema)
        self._resolved: dict[str, dict[str, Any]] = {}

    def resolve(self, schema: Any) -> Any:
        """Return a type of the schema as a definition, or as a list of these for a union."""
        if isinstance(schema, list):
            return [self.resolve(branch) for branch in schema]
        if isinstance(schema, str):
            if schema not in self._named:
                return {"type": schema}
            schema = self._named[schema]
        kind, name = schema["type"], schema.get("name", "")
        if not isinstance(kind, str) or kind in self._named:
            return self.resolve(kind)
        if name not in self._resolved:
            definition = {**schema, **{key: self.resolve(schema[key]) for key in ("items", "values") if key in schema}}
            if "fields" in schema:
                definition["fields"] = [{**field, "type": self.resolve(field["type"])} for field in schema["fields"]]
            if not name:
                return definition
            self._resolved[name] = definition
        return self._resolved[name]


def resolve_types(schema: Any) -> Any:
    """Return a schema, as `parse_avro` returns it, with all names of types replaced by what they name."""
    return TypeResolver(schema).resolve(schema)


_BOUNDED = "lakemq-decimal"


def bound_decimals(schema: Any) -> Any:
    """Return a copy of a schema under which fastavro refuses long decimals: they take it seconds.

    A long decimal raises BeyondBudgetError.
    """
    from fastavro.read import LOGICAL_READERS

    for kind, name in DECIMAL_TYPES:
        LOGICAL_READERS[f"{kind}-{_BOUNDED}"] = _build_decimal_reader(LOGICAL_READERS[f"{kind}-{name}"])
    bounded = deepcopy(schema)
    for part in list_objects(bounded):
        if isinstance(part, dict) and part.get("logicalType") == "decimal":
            part["logicalType"] = _BOUNDED
    return bounded


def _build_decimal_reader(read: Callable[..., Any]) -> Callable[..., Any]:
    def read_bounded(data: bytes, writer_schema: Any = None, reader_schema: Any = None) -> Any:
        if len(data) > MAX_DECIMAL_BYTES:
            raise BeyondBudgetError(f"found a decimal of more than {MAX_DECIMAL_BYTES} bytes")
        return read(data, writer_schema, reader_schema)

    return read_bounded


def _refuse_repetitions(schema: Any) -> None:
    """Refuse what Avro's specification does not allow and fastavro takes: it would read one of the two."""
    if isinstance(schema, list):
        kinds = Counter(map(name_branch, schema))
        if repeated := sorted(kind for kind, count in kinds.items() if count > 1):
            raise InvalidConfig(
                "A union of the Avro schema has one type twice.",
                found=repeated[0],
                expected="each type once; records, enums and fixed types by different names",
            )
        if "union" in kinds:
            raise InvalidConfig("A union of the Avro schema contains a union.", found="union", expected="its types")
    elif isinstance(schema, Mapping):
        names = Counter(field["name"] for field in schema.get("fields", ()))
        if repeated := sorted(name for name, count in names.items() if count > 1):
            raise InvalidConfig(
                f"The Avro record {schema['name']} has two fields of one name.",
                found=repeated[0],
                expected="each name once",
            )


def name_branch(branch: Any) -> str:
    """Return what must differ between the branches of a union: the name of a named type, or the type."""
    if isinstance(branch, list):
        return "union"
    return str(branch.get("name", branch["type"]) if isinstance(branch, Mapping) else branch)


def _list_parts(schema: Any) -> Iterable[Any]:
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, Mapping):
        return ()
    inner = [field["type"] for field in schema.get("fields", ())]
    kind = schema["type"]
    inner += [schema[key] for key in ("items", "values") if key in schema]
    return inner if isinstance(kind, str) else [*inner, kind]


# Defaults of Avro's fields: from the JSON of a schema to the values that a decoder returns.
#
# fastavro takes a default as it stands in the schema, where bytes are text and a time or a decimal is what encodes it.


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


def _collect_named_types(schema: Any) -> dict[str, Any]:
    """Return full name -> definition of all named types within the schema."""
    return {part["name"]: part for part in list_types(schema) if isinstance(part, Mapping) and "name" in part}


def list_types(schema: Any) -> Iterator[Any]:
    """Yield the schema and all types within it: names, unions and definitions."""
    yield schema
    for part in _list_parts(schema):
        yield from list_types(part)


class _DefaultsDecoder:
    def __init__(self, schema: Any) -> None:
        from fastavro.read import LOGICAL_READERS

        self._logical_readers = LOGICAL_READERS
        self._resolver = TypeResolver(schema)
        self._resolver.resolve(schema)  # with defaults as the schema has them
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
                field["default"] = self._decode(self._resolver.resolve(field["type"]), field["default"])
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
                del field["default"]

    def _decode(self, schema: Any, default: Any) -> Any:
        if isinstance(schema, list):
            branches = [branch for branch in schema if _is_of(branch, default)]
            return self._decode(branches[0], default)
        kind = schema["type"]
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


def _is_of(schema: Any, default: Any) -> bool:
    """Return whether a default may be of a branch of a union."""
    if schema["type"] == "enum":
        return default in schema["symbols"]
    is_bool = isinstance(default, bool)
    return isinstance(default, _JSON_TYPES.get(schema["type"], (str,))) and is_bool == (schema["type"] == "boolean")


LOGICAL_TYPES: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIME,
    ("long", "timestamp-micros"): TIME,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
TEXT_TYPES = (("string", "uuid"), ("int", "time-millis"), ("long", "time-micros"))
DECIMAL_TYPES = (("bytes", "decimal"), ("fixed", "decimal"))


def name_type(schema: Any) -> str:
    """Return the name of a type, with that of a record, for an error."""
    if not isinstance(schema, Mapping):
        return str(schema)
    return find_logical_type(schema) or f"{schema['type']} {schema.get('name', '')}".rstrip()


def find_logical_type(schema: Any) -> str:
    """Return the logical type of a parsed schema, with the digits of a decimal; empty without one.

    Logical types that fastavro does not know are ignored, as Avro's specification says.
    """
    if not isinstance(schema, Mapping):
        return ""
    logical = (str(schema["type"]), str(schema.get("logicalType")))
    if logical in DECIMAL_TYPES:
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    return logical[1] if logical in LOGICAL_TYPES or logical in TEXT_TYPES else ""


def is_null(branch: Any) -> bool:
    """Return whether a branch of a union is null."""
    return branch == "null" or (isinstance(branch, Mapping) and branch["type"] == "null")
