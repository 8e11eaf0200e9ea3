"""Which Python values may be encoded in Avro without a change: fastavro would convert some, and cut others.

`AvroCheck` looks at all values of one part of a schema at once, and names the place of a misfit.
"""

import struct
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from .avro_shape import RECORD_NAME, find_logical_type, is_null, name_branch, name_type, resolve_types
from .columns import SPECIAL_FLOATS


class AvroMisfitError(ValueError):
    """A part of a value does not fit. place: from the part that is checked to the misfit, such as `.a[...]`."""

    def __init__(self, found: str, expected: str, place: str = "") -> None:
        super().__init__()
        self.found, self.expected, self.place = found, expected, place

    def __str__(self) -> str:
        return f"at ${self.place}: found {self.found}, expected {self.expected}"


_PartCheck = Callable[[Sequence[Any]], "Sequence[Any] | None"]
"""Checks all values of one part of the schema. Returns those to encode; None: the same. Raises AvroMisfitError."""


class _Branch(NamedTuple):
    """A branch of a union. rank: returns how well it holds a value that fits; `_EXACT` if it is read as given."""

    check: _PartCheck | None
    rank: Callable[[Any], float]
    is_record: bool


_EXACT = 2.0
_FROM_TEXT = 1.5  # text of JSON is a time or bytes only in a union without text


class AvroCheck:
    """Checks Python values before they are encoded, or after they were decoded, column by column.

    fastavro coerces most leaves: it takes any object as a boolean, 5.5 as the int 5, "5" as the double 5.0, and a time
    without a zone as one of this machine's zone. It also reads and writes an `int` of 64 bits, and a decimal of more
    digits than its type has.
    """

    def __init__(self, schema: Any, is_decoded: bool = False, is_json: bool = False) -> None:
        """is_decoded: fastavro has decoded the values, so that only numbers may be out of range. is_json: they are of
        JSON, and become those of the schema.
        """
        self._is_decoded, self._is_json = is_decoded, is_json
        self._check = self._compile(resolve_types(schema))

    def check(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values to encode, with (branch, value) for each value of a union of several types.

        fastavro would take the first branch that can write the value, not the one that holds it best.

        Raises AvroMisfitError: a value does not fit. The error has no parts of it.
        """
        converted = None if self._check is None else self._check(values)
        return values if converted is None else converted

    def _compile(self, schema: Any) -> _PartCheck | None:
        if isinstance(schema, list):
            return self._compile_union(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._compile_record(schema)
        if kind in ("array", "map"):
            return self._compile_items(schema, kind)
        leaf = _build_leaf(kind, schema)
        if self._is_json:
            return _build_json_leaf(schema, leaf)
        is_counted = (find_logical_type(schema) or kind).startswith(("int", "decimal"))
        return None if self._is_decoded and not is_counted else leaf

    def _compile_record(self, schema: Mapping[str, Any]) -> _PartCheck:
        fields = [(field["name"], "default" in field, self._compile(field["type"])) for field in schema["fields"]]
        return _build_decoded_fields(fields) if self._is_decoded else _build_fields(fields, name_type(schema))

    def _compile_items(self, schema: Mapping[str, Any], kind: str) -> _PartCheck | None:
        check_items = self._compile(schema["items" if kind == "array" else "values"])
        if self._is_decoded and check_items is None:
            return None
        step = "[...]" if kind == "array" else ".*"

        def check(values: Sequence[Any]) -> Sequence[Any] | None:
            items: list[Any] = []
            for value in values:
                if not (_is_list(value) if kind == "array" else isinstance(value, Mapping)):
                    raise AvroMisfitError(_name_class(value), kind)
                if kind == "map" and not all(isinstance(key, str) for key in value):
                    raise AvroMisfitError("a key that is no text", "map")
                items.extend(value.values() if kind == "map" else value)
            if (converted := _check_within(step, check_items, items)) is None:
                return None
            parts = iter(converted)
            if kind == "map":
                return [{key: next(parts) for key in value} for value in values]
            return [[next(parts) for _ in value] for value in values]

        return check

    def _compile_union(self, schema: list[Any]) -> _PartCheck | None:
        branches = {name_branch(branch): self._compile_branch(branch) for branch in schema if not is_null(branch)}
        checks = [branch.check for branch in branches.values()]
        if self._is_decoded and (None in checks or not checks):
            return None  # the value may be of the branch that it fits always
        expected = " or ".join(map(name_type, schema))

        def check(values: Sequence[Any]) -> Sequence[Any] | None:
            present = values
            if len(branches) < len(schema):
                present = [value for value in values if value is not None]
            converted: Sequence[Any] | None
            if len(branches) == 1 and tuple not in set(map(type, present)):
                try:
                    converted = _check_within("", checks[0], present)
                except AvroMisfitError as misfit:
                    misfit.expected = misfit.expected if misfit.place else expected
                    raise
                if converted is not None:  # fastavro knows no branches within a value whose branch it is not told
                    converted = [(*branches, part) for part in converted]
            else:
                converted = [_choose_branch(branches, value, expected) for value in present]
            if converted is None or len(present) == len(values):
                return converted
            parts = iter(converted)
            return [None if value is None else next(parts) for value in values]

        return check

    def _compile_branch(self, branch: Any) -> _Branch:
        is_record = branch["type"] in ("record", "error")
        build_rank = _build_record_rank if is_record else _build_rank
        rank = (lambda _: _EXACT) if self._is_decoded else build_rank(branch)
        check = self._compile(branch)
        return _Branch(_refuse_others(branch, check) if self._is_decoded and is_record else check, rank, is_record)


def _refuse_others(schema: Mapping[str, Any], check_record: _PartCheck | None) -> _PartCheck:
    """Return a check of decoded records that refuses values of other branches, also if no field may be out of range."""
    count = len(schema["fields"])

    def check(values: Sequence[Any]) -> None:
        if any(type(value) is not dict or len(value) != count for value in values):
            raise AvroMisfitError("another type", "a record")
        _check_within("", check_record, values)

    return check


def _choose_branch(branches: Mapping[str, _Branch], value: Any, expected: str) -> tuple[str, Any]:
    """Return the name of the branch of a union that holds a value best, with the value. Raises AvroMisfitError.

    A tuple names its branch, as fastavro has it, and a record may name it with `RECORD_NAME`. Of branches that hold the
    value equally well the first one is taken.
    """
    names: Iterable[str] = branches
    records = [name for name, branch in branches.items() if branch.is_record]
    if isinstance(value, tuple) and len(value) == 2:
        if value == ("null", None):
            return value
        names, value = [name for name in branches if name == value[0]], value[1]
    elif isinstance(value, Mapping) and value.get(RECORD_NAME) in records:
        names, value = [value[RECORD_NAME]], {key: part for key, part in value.items() if key != RECORD_NAME}
    misfits: list[AvroMisfitError] = []
    best, choice = 0.0, ("", value)
    for name in names:
        try:
            converted = _check_within("", branches[name].check, [value])
        except AvroMisfitError as misfit:
            misfits.append(misfit)
            continue
        to_encode = value if converted is None else converted[0]
        rank = branches[name].rank(to_encode)
        if isinstance(value, str) and not isinstance(to_encode, str):
            rank = min(rank, _FROM_TEXT)
        elif isinstance(value, Decimal) and isinstance(to_encode, float) and Decimal(repr(to_encode)) != value:
            rank = 1
        if rank > best:
            best, choice = rank, (name, to_encode)
        if best == _EXACT:
            break
    if best:
        return choice
    if isinstance(value, Mapping) and RECORD_NAME in value:
        raise AvroMisfitError(f"a {RECORD_NAME} that names no record of the union", expected)
    deepest = max(misfits, key=lambda misfit: misfit.place.count("."), default=None)
    raise deepest if deepest and deepest.place else AvroMisfitError(_name_class(value), expected)


def _build_record_rank(schema: Mapping[str, Any]) -> Callable[[Any], float]:
    """Return what ranks records: below a map if they lack fields, and the more they have, the better."""
    count = len(schema["fields"])
    return lambda value: _EXACT if len(value) >= count else 1 + len(value) / count


def _build_rank(schema: Mapping[str, Any]) -> Callable[[Any], float]:
    if kind := find_logical_type(schema):
        prepare, convert = _find_logical_functions(schema)
        return lambda value: _EXACT if convert(prepare(value, schema), schema, None) == value else 1
    kind = str(schema["type"])
    if kind not in ("float", "double"):
        return lambda value: _EXACT
    form = f"<{kind[0]}"
    return lambda value: (
        1
        if isinstance(value, Integral) or (value == value and struct.unpack(form, struct.pack(form, value)) != (value,))
        else _EXACT
    )


def _check_within(step: str, check: _PartCheck | None, values: Sequence[Any]) -> Sequence[Any] | None:
    if check is None or not values:
        return None
    try:
        return check(values)
    except AvroMisfitError as misfit:
        misfit.place = step + misfit.place
        raise


def _build_fields(fields: list[tuple[str, bool, _PartCheck | None]], expected: str) -> _PartCheck:
    """Return the check of a record. fields: name, whether it may be left out, and its check."""
    declared = {name for name, _, _ in fields}

    def check(values: Sequence[Any]) -> Sequence[Any] | None:
        rows: list[dict[str, Any]] = []
        for value in values:
            if type(value) is not dict and not isinstance(value, Mapping):
                raise AvroMisfitError(_name_class(value), expected)
        count = 0
        for name, is_optional, check_field in fields:
            column = [value[name] for value in values if name in value]
            count += len(column)
            if len(column) < len(values) and not is_optional:
                raise AvroMisfitError(f"no field {name}", "one, because it has no default")
            if (converted := _check_within(f".{name}", check_field, column)) is not None:
                rows = rows or list(map(dict, values))
                parts = iter(converted)
                for row in rows:
                    if name in row:
                        row[name] = next(parts)
        if count < sum(map(len, values)):
            undeclared = sorted({str(name) for value in values for name in value if name not in declared})
            raise AvroMisfitError(
                f"fields that the schema does not declare: {', '.join(undeclared)}", f"those of {expected}"
            )
        return rows or None

    return check


def _build_decoded_fields(fields: list[tuple[str, bool, _PartCheck | None]]) -> _PartCheck:
    checked = [(name, check_field) for name, _, check_field in fields if check_field is not None]

    def check(values: Sequence[Any]) -> None:
        for name, check_field in checked:
            try:
                column = [value[name] for value in values]
            except KeyError:  # of a map
                raise AvroMisfitError("another type", "a record") from None
            _check_within(f".{name}", check_field, column)

    return check


class _LeafRule(NamedTuple):
    """How values of a leaf are checked.

    find: returns what was found, if it does not fit; else an empty text. is_quick: returns whether it is sure that all
    values fit.
    """

    find: Callable[[Any], str]
    is_quick: Callable[[Sequence[Any]], bool] = lambda _: False


def _build_leaf(kind: str, schema: dict[str, Any]) -> _PartCheck:
    rule = _LEAF_RULES[kind] if kind in _LEAF_RULES else _LeafRule(_find_other(kind, schema))
    if logical_type := find_logical_type(schema):
        rule = _build_logical_rule(logical_type, schema, rule)
    expected = name_type(schema)

    def check(values: Sequence[Any]) -> None:
        if not rule.is_quick(values):
            for value in values:
                if reason := rule.find(value):
                    raise AvroMisfitError(reason, expected)

    return check


def _build_json_leaf(schema: Mapping[str, Any], check_leaf: _PartCheck) -> _PartCheck:
    kind = str(schema["type"])
    read = _JSON_READERS.get(find_logical_type(schema).partition("(")[0] or kind)

    def convert(value: Any) -> Any:
        if read is not None and isinstance(value, str):
            with suppress(ValueError, ArithmeticError):
                return read(value)
        if read is Decimal and isinstance(value, int) and not isinstance(value, bool):
            return Decimal(value)
        return float(value) if isinstance(value, Decimal) and read is not Decimal else value

    def check(values: Sequence[Any]) -> Sequence[Any]:
        converted = list(map(convert, values))
        check_leaf(converted)
        return converted

    return check


def _read_special_float(text: str) -> float:
    if text not in SPECIAL_FLOATS:
        raise ValueError("no number")
    return SPECIAL_FLOATS[text]


_JSON_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("float", "double"), _read_special_float),
    "bytes": partial(b64decode, validate=True),
    "fixed": partial(b64decode, validate=True),
    "decimal": Decimal,
    "date": date.fromisoformat,
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), datetime.fromisoformat),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros"), datetime.fromisoformat),
    **dict.fromkeys(("time-millis", "time-micros"), time.fromisoformat),
}
"""Type -> what reads its values from text of JSON."""

_OUT_OF_RANGE = "a number out of range"


def _name_class(value: Any) -> str:
    return type(value).__name__


def _is_list(value: Any) -> bool:
    """Return whether a value is an array. fastavro takes everything that it can iterate over, such as text."""
    is_text = isinstance(value, str | bytes | bytearray | memoryview)
    return isinstance(value, Sequence | np.ndarray) and not is_text


def _are_of(values: Sequence[Any], *types: type) -> bool:
    classes = list(map(type, values))  # to count the first type takes half the time of a set
    return classes.count(types[0]) == len(classes) or set(types).issuperset(classes)


def _find_unless(fits: Callable[[Any], bool]) -> Callable[[Any], str]:
    return lambda value: "" if fits(value) else _name_class(value)


def _build_whole_rule(bits: int) -> _LeafRule:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def find(value: Any) -> str:
        if not isinstance(value, Integral) or isinstance(value, bool):
            return _name_class(value)
        return "" if least <= value <= most else _OUT_OF_RANGE

    def is_quick(values: Sequence[Any]) -> bool:
        return _are_of(values, int) and min(values) >= least and max(values) <= most

    return _LeafRule(find, is_quick)


def _build_float_rule(letter: str, bits: int) -> _LeafRule:
    """letter: of a float or a double, as `struct` has it; bits: of its digits. Infinity and NaN fit."""

    def find(value: Any) -> str:
        if not isinstance(value, Real) or isinstance(value, bool):
            return _name_class(value)
        if not has_room([value]):
            return _OUT_OF_RANGE
        if not isinstance(value, Integral):
            return ""
        (read,) = struct.unpack(f"<{letter}", struct.pack(f"<{letter}", value))
        return "" if int(read) == int(value) else f"a whole number of more than {bits} bits"

    def has_room(values: Sequence[Any]) -> bool:
        try:
            struct.pack(f"<{len(values)}{letter}", *values)  # without `<` it makes infinity of what is too large
        except (OverflowError, struct.error):
            return False
        return True

    def is_quick(values: Sequence[Any]) -> bool:
        return _are_of(values, float) and (letter == "d" or has_room(values))

    return _LeafRule(find, is_quick)


_LEAF_RULES = {
    "null": _LeafRule(_find_unless(lambda value: value is None)),
    "boolean": _LeafRule(
        _find_unless(lambda value: isinstance(value, bool | np.bool_)), lambda values: _are_of(values, bool)
    ),
    "int": _build_whole_rule(32),
    "long": _build_whole_rule(64),
    "float": _build_float_rule("f", 24),
    "double": _build_float_rule("d", 53),
    "string": _LeafRule(_find_unless(lambda value: isinstance(value, str)), lambda values: _are_of(values, str)),
    "bytes": _LeafRule(
        _find_unless(lambda value: isinstance(value, bytes | bytearray)), lambda values: _are_of(values, bytes)
    ),
}


def _find_other(kind: str, schema: Mapping[str, Any]) -> Callable[[Any], str]:
    """Return what finds misfits of a fixed type or an enum."""
    if kind == "enum":
        return lambda value: "" if value in schema["symbols"] else "no symbol of it"

    def find(value: Any) -> str:
        if not isinstance(value, bytes | bytearray):
            return _name_class(value)
        return "" if len(value) == schema["size"] else f"{len(value)} bytes"

    return find


def _find_logical_functions(schema: Mapping[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return fastavro's functions from a logical type to its underlying type, and back."""
    from fastavro import read, write

    kind = f"{schema['type']}-{schema['logicalType']}"
    return write.LOGICAL_WRITERS[kind], read.LOGICAL_READERS[kind]


def _build_logical_rule(logical_type: str, schema: dict[str, Any], base: _LeafRule) -> _LeafRule:
    """Return the rule of a logical type. A value of the underlying type fits, too, if it can be read."""
    prepare, convert = _find_logical_functions(schema)
    native, find_native = _NATIVE_RULES.get(logical_type) or _build_decimal_rule(schema)

    def find(value: Any) -> str:
        if isinstance(value, native):
            return find_native(value)
        try:
            underlying = prepare(value, schema)  # a date may be text
            if reason := base.find(underlying):
                return reason
            converted = convert(int(underlying) if isinstance(underlying, Integral) else underlying, schema, None)
        except (ValueError, OverflowError, AttributeError):
            return "text of another form" if isinstance(value, str) else _OUT_OF_RANGE
        if isinstance(value, str) and str(converted) != value.lower():
            return "text of another form"  # Python reads UUIDs in forms that other readers refuse
        return "" if isinstance(value, str) else find_native(converted)

    return _LeafRule(find)


def _find_zone(value: datetime | time) -> str:
    return "" if value.tzinfo is not None else "a time without a zone"


def _find_no_zone(value: datetime | time) -> str:
    return "" if value.tzinfo is None else "a time with a zone"


def _find_time_of_day(value: date) -> str:
    return "datetime" if isinstance(value, datetime) and value.timetz() != time() else ""


_NATIVE_RULES: dict[str, tuple[type, Callable[[Any], str]]] = {
    "date": (date, _find_time_of_day),
    "timestamp-millis": (datetime, _find_zone),
    "timestamp-micros": (datetime, _find_zone),
    "local-timestamp-millis": (datetime, _find_no_zone),
    "local-timestamp-micros": (datetime, _find_no_zone),
    "time-millis": (time, _find_no_zone),
    "time-micros": (time, _find_no_zone),
    "uuid": (UUID, lambda _: ""),
}
"""Logical type -> the class of its values, and what finds those that would be changed."""


def _build_decimal_rule(schema: Mapping[str, Any]) -> tuple[type, Callable[[Any], str]]:
    scale = schema.get("scale", 0)
    most_whole = schema["precision"] - scale

    def find(value: Decimal) -> str:
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int):
            return "no number"
        has_room = -exponent <= scale and (value == 0 or value.adjusted() < most_whole)
        return "" if has_room else "a decimal with more digits"

    return Decimal, find
