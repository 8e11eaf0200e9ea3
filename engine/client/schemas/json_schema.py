"""JSON Schema: validated by jsonschema-rs, with bounds for patterns, and the Arrow type and reading of its values."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from math import isfinite
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from lakemq.tables.specs.spec import TIME

from ...namespace.extras import needs
from ...protocol.errors import InvalidConfig
from .budgets import (
    MAX_CHECKS,
    BeyondBudgetError,
    JsonSchemaExpansion,
    PartBudget,
    count_items,
    count_name_bytes,
    list_objects,
    measure_depth,
    parse_json,
)
from .columns import JsonText, is_json_text, json_text_field, to_json_text

# The time that patterns of a JSON Schema take: the letters of a pattern, multiplied by the bytes of its texts.
#
# The engine of jsonschema-rs follows all ways through a pattern at once. So `[ab]{5000}` may take 5000 steps for each
# byte of a text. Neither texts nor patterns can be bounded alone: `.{1,1000}` is common, and so are long texts.


MAX_STEPS = 100_000_000
"""Steps that the patterns of one value may take: about a second."""

_TOKEN = re.compile(
    r"""\\[pPuUxX]\{[^}]*\} | \\.                         # one letter
      | \[\^?\]?(?:\\.|[^\]\\])*\]                        # a class of letters
      | \(\?(?P<flags>[a-zA-Z-]*)\)                       # flags, which hold no letters
      | (?P<open>\((?:\?(?:P?<[^>]*>|(?P<scope>[a-zA-Z-]*):))?)
      | (?P<close>\))
      | \{\s*(?P<least>\d+)\s*(?:,\s*(?P<most>\d*)\s*)?\}
      | .""",
    re.VERBOSE | re.DOTALL,
)
_NO_LETTERS = frozenset("*+?")


def count_letters(pattern: str) -> int:
    """Return how many letters a pattern has, each counted as often as it is repeated: 81 for `(a{9}){9}`.

    Raises:
        InvalidConfig: the pattern has comments, in which anything may stand.
    """
    sums, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        if "x" in (token["flags"] or token["scope"] or ""):
            raise InvalidConfig(
                "A pattern of the schema has the flag x, which is not of JSON Schema.",
                found=pattern,
                expected="a pattern without comments",
            )
        if token["open"]:
            sums.append(0)
        elif token["close"]:
            last = max(1, sums.pop() if len(sums) > 1 else 0)  # the engine goes through empty groups, too
            sums[-1] += last
        elif token["least"]:
            times = max(1, int(token["most"] or token["least"]))
            sums[-1] += last * (times - 1)
            last *= times
        elif token["flags"] is None and token[0] not in _NO_LETTERS:
            last = 1
            sums[-1] += 1
    return sum(sums)


def list_patterns(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield each keyword of a JSON Schema that may hold a pattern, with the pattern."""
    for part in list_objects(schema):
        if isinstance(pattern := part.get("pattern"), str):
            yield "pattern", pattern
        if isinstance(by_pattern := part.get("patternProperties"), Mapping):
            yield from (("patternProperties", pattern) for pattern in by_pattern)


class PatternBudget(threading.local):
    """Counts the steps of the patterns of one value. Each thread has a budget of its own."""

    def __init__(self) -> None:
        self._steps = 0

    def restart(self) -> None:
        """Begin a value."""
        self._steps = 0

    def spend(self, letters: int, size_bytes: int) -> None:
        """Count the steps of a pattern on a text. Raises BeyondBudgetError: the value takes too many."""
        self._steps += size_bytes * min(letters, size_bytes)
        self.check()

    def check(self) -> None:
        """Raise BeyondBudgetError if too many steps were counted: jsonschema-rs takes that of `spend` for a misfit."""
        if self._steps > MAX_STEPS:
            raise BeyondBudgetError(
                f"found texts that are too long for the patterns of the schema, expected at most {MAX_STEPS} steps,"
                " which are bytes of a text times letters of its pattern"
            )


def build_keyword(budget: PatternBudget, build_matcher: Callable[[str], Any]) -> type:
    """Return the keyword `pattern` for jsonschema-rs, which matches within the budget."""

    class BudgetedPattern:
        def __init__(self, _parent: Any, pattern: str, _path: list[Any]) -> None:
            self._is_match = build_matcher(pattern).is_valid
            self._letters = count_letters(pattern)

        def validate(self, text: object) -> None:
            if isinstance(text, str):
                budget.spend(self._letters, len(text.encode()))
                if not self._is_match(text):
                    raise ValueError("the pattern does not match")

    return BudgetedPattern


# JSON values of an Arrow type: decoded by msgspec, which checks the types on the way.


TOO_DEEP = "found JSON that is nested too deeply"

_INDEX = re.compile(r"\[\d+\]")
_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_TOO_LARGE_FLOAT = 2.0**128 - 2.0**103
"""The least number that is rounded to infinity in 32 bits. The largest one is written as 3.4028235e38, which is rounded
down.
"""

_LEAVES: dict[pa.DataType, Any] = {
    pa.bool_(): bool,
    pa.float32(): Annotated[float, msgspec.Meta(gt=-_TOO_LARGE_FLOAT, lt=_TOO_LARGE_FLOAT)],
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): date,
    TIME: Annotated[datetime, msgspec.Meta(tz=True)],
    pa.timestamp("us"): Annotated[datetime, msgspec.Meta(tz=False)],
}


class JsonDecoder:
    """Decodes JSON values of one type: objects become dicts, with the declared fields only."""

    def __init__(self, field: pa.Field, has_integral_floats: bool = False) -> None:
        """has_integral_floats: 1.0 is a whole number, as in JSON Schema."""
        self._has_integral_floats = has_integral_floats
        self._decoder = msgspec.json.Decoder(self._to_msgspec(field), dec_hook=_decode_part, float_hook=Decimal)

    def decode(self, value: bytes) -> Any:
        """Return the decoded value. Raises ValueError, whose text holds names of the schema and types, no values."""
        try:
            return self._decoder.decode(value)
        except msgspec.DecodeError as error:
            raise ValueError(describe_decode_error(error)) from None
        except RecursionError:
            raise ValueError(TOO_DEEP) from None

    def _to_msgspec(self, field: pa.Field) -> Any:
        annotation = self._annotate(field)
        return annotation | None if field.nullable else annotation

    def _annotate(self, field: pa.Field) -> Any:
        type = field.type
        if is_json_text(field):
            return JsonText
        if pa.types.is_struct(type):
            return self._to_typed_dict(type)
        if pa.types.is_list(type):
            return list[self._to_msgspec(type.value_field)]  # type: ignore[misc]
        if pa.types.is_map(type):
            return dict[str, self._to_msgspec(type.item_field)]  # type: ignore[misc]
        if pa.types.is_decimal(type):
            return _make_decimal_class(type)
        if type in _BITS:
            half = 2 ** (_BITS[type] - 1)
            whole = Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]
            return whole | float if self._has_integral_floats else whole
        return _LEAVES[type]

    def _to_typed_dict(self, type: pa.StructType) -> Any:
        fields = {_keep_utf8(f.name): self._to_msgspec(f) for f in type}
        optional = {name: NotRequired[fields[name]] for name in (f.name for f in type if f.nullable)}
        return TypedDict("Fields", fields | optional)  # type: ignore[operator]


def _keep_utf8(name: str) -> str:
    """Return the name, with its UTF-8 kept in the object.

    msgspec compares names with the UTF-8 that the object already keeps. Python makes it when it is first asked for, and
    until then no name beyond ASCII is found.
    """
    msgspec.json.encode(name)
    return name


def describe_decode_error(error: msgspec.DecodeError) -> str:
    """Return what does not fit and where. Places in lists are left out, so that rows share their reasons."""
    if not isinstance(error, msgspec.ValidationError):
        return "found no JSON"
    text, _, path = _INDEX.sub("[...]", str(error)).replace("`", "").partition(" - at ")
    expected, _, type_name = text.removeprefix("Expected ").partition(", got ")
    if type_name:
        return f"at {path or '$'}: found {type_name}, expected {expected}"
    return f"at {path or '$'}: {text[0].lower()}{text[1:]}"


def _decode_part(type: type, part: object) -> object:
    if type is JsonText:
        return to_json_text(part)
    return type(part)


def _make_decimal_class(declared: pa.Decimal128Type) -> type:
    """Return a class of decimals that have room in the declared type."""
    most_whole = declared.precision - declared.scale
    name = f"decimal({declared.precision},{declared.scale})"

    class Bounded(Decimal):
        def __new__(cls, part: object) -> Bounded:
            try:
                number = super().__new__(cls, part if isinstance(part, int | str | Decimal) else "NaN")
            except InvalidOperation:
                raise ValueError(f"Expected {name}") from None
            _, digits, exponent = number.as_tuple()
            is_finite = isinstance(exponent, int) and not isinstance(part, bool)
            if not is_finite or -exponent > declared.scale or len(digits) + exponent > most_whole:  # type: ignore[operator]
                raise ValueError(f"Expected {name}")
            return number

    return Bounded


# The schema: parsed, made a validator, and turned into the Arrow type that its values have.


_LEAF_KEYWORDS = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
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
        return pa.field(name, _LEAF_KEYWORDS[plain[0]]) if plain[0] in _LEAF_KEYWORDS else json_text_field(name)

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


def encode_json_row(row: Any) -> bytes:
    """Return Python objects as JSON. Raises ValueError, without parts of the row: JSON cannot hold one of them."""
    try:
        text = _encoder.encode(row)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (TypeError, ValueError, OverflowError):
        raise ValueError(_find_foreign(row, "$") or "found a value that JSON cannot hold") from None
    # Numbers that JSON does not have become null, or a word outside JSON.
    nulls = text.count(b"null")
    is_clear = not nulls or (isinstance(row, dict) and nulls == sum(part is None for part in row.values()))
    if (not is_clear or b"NaN" in text or b"Infinity" in text) and (reason := _find_foreign(row, "$")):
        raise ValueError(reason)
    return text


def _to_builtin(part: object) -> object:
    """Return an object of a subclass, such as a number of NumPy, as JSON knows it. Raises TypeError: it has none."""
    if isinstance(part, np.bool_ | np.integer | np.floating | np.ndarray):
        return part.tolist()
    if isinstance(part, datetime | date) and part == part:  # NaT of pandas is a datetime
        return part.isoformat()
    for base in (int, float, str):
        if isinstance(part, base):
            return base(part)
    raise TypeError


_encoder = msgspec.json.Encoder(enc_hook=_to_builtin, decimal_format="number")


def _find_foreign(part: Any, place: str) -> str:
    """Return what JSON cannot hold, and where; an empty text if there is nothing."""
    if part is None or type(part) in (int, bool) or (type(part) is str and part.isascii()):
        return ""
    if isinstance(part, Mapping):
        for key, value in part.items():
            reason = "" if type(key) is str else _find_unencodable({key: None}, place)
            if reason := reason or _find_foreign(value, f"{place}.{key}"):
                return reason
        return ""
    if isinstance(part, list | tuple | np.ndarray):
        return next((reason for item in part if (reason := _find_foreign(item, f"{place}[...]"))), "")
    if isinstance(part, float | Decimal | np.floating):
        return "" if isfinite(part) else f"at {place}: found NaN or an infinite number, which JSON cannot hold"
    return _find_unencodable(part, place)


def _find_unencodable(part: Any, place: str) -> str:
    try:
        _encoder.encode(part)
    except (TypeError, ValueError, OverflowError):
        return f"at {place}: found {type(part).__name__}, which JSON cannot hold"
    return ""


def read_json(text: bytes) -> Any:
    """Return JSON as Python objects, numbers with a point as decimals. Raises ValueError, without the value."""
    try:
        decode_json(text)
        return _decoder.decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


_decoder = msgspec.json.Decoder(float_hook=Decimal)
