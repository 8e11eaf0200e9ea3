"""JSON values of an Arrow type: decoded by msgspec, which checks the types on the way."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from types import new_class
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from lakemq.tables.specs.spec import TIME

from .columns import JsonText, is_json_text, to_json_text

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
        required = {_keep_utf8(f.name): self._to_msgspec(f) for f in type if not f.nullable}
        optional = {_keep_utf8(f.name): self._to_msgspec(f) for f in type if f.nullable}
        # A class that inherits from the required fields, because `typing.Required` needs Python 3.11.
        base = TypedDict("Required", required)  # type: ignore[misc]
        return new_class("Fields", (base,), {"total": False}, lambda body: body.update(__annotations__=optional))


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
