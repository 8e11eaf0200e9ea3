"""Decoded values as Arrow columns. Values are turned into columns field by field, which is several times as fast as
handing Arrow a dictionary per row.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

MAX_DIGITS = 38
"""Most digits of a decimal, in Spark and in Arrow's decimal128."""

_LEAST_TIME_US, _MOST_TIME_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""

SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""Floats that JSON lacks, by their text."""

_MARK = b"lakemq.read_as"
_JSON, _TEXT = b"json", b"text"

_encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")


class JsonText(str):
    """A part of a value that has no Arrow type of its own, as JSON."""


def to_json_text(part: object) -> JsonText:
    """Return a decoded part of a value as JSON. NaN and infinity, which JSON lacks, are text there."""
    text = _encoder.encode(part)
    if b"null" in text:  # msgspec writes NaN as null
        text = _encoder.encode(_name_special_floats(part))
    return JsonText(text.decode())


def _name_special_floats(part: Any) -> Any:
    if isinstance(part, float) and not isfinite(part):
        return next(name for name, number in SPECIAL_FLOATS.items() if repr(number) == repr(part))
    if isinstance(part, Mapping):
        return {key: _name_special_floats(value) for key, value in part.items()}
    return [*map(_name_special_floats, part)] if isinstance(part, list) else part


def json_text_field(name: str) -> pa.Field:
    """Return a field whose values are shown as JSON: their schema allows what one Arrow type does not hold."""
    return pa.field(name, pa.string(), metadata={_MARK: _JSON})


def text_field(name: str) -> pa.Field:
    """Return a field whose values are shown as text, such as UUIDs."""
    return pa.field(name, pa.string(), metadata={_MARK: _TEXT})


def is_json_text(field: pa.Field) -> bool:
    """Return whether the values of the field are shown as JSON."""
    return (field.metadata or {}).get(_MARK) == _JSON


def make_nullable(field: pa.Field) -> pa.Field:
    """Return the field as readers see it: null where a value is missing or does not fit, and without marks."""
    type = field.type
    if pa.types.is_struct(type):
        type = pa.struct([make_nullable(child) for child in type])
    elif pa.types.is_list(type):
        type = pa.list_(make_nullable(type.value_field))
    elif pa.types.is_map(type):
        type = pa.map_(pa.string(), make_nullable(type.item_field))
    return pa.field(field.name, type)


def to_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return decoded values as an array of the field's type.

    Args:
        values: what the decoders give: dicts for structs and maps, lists, and values of leaves; None is null.
        field: the type, with the marks of this module.
    """
    type = field.type
    if pa.types.is_struct(type):
        children = [to_array([None if v is None else v.get(f.name) for v in values], f) for f in type]
        is_null = pa.array([v is None for v in values], pa.bool_())
        plain = make_nullable(field).type
        return pa.StructArray.from_arrays(children, fields=list(plain), mask=is_null)
    if pa.types.is_list(type):
        items = to_array([item for v in values if v is not None for item in v], type.value_field)
        return pa.ListArray.from_arrays(_to_offsets(values), items, type=make_nullable(field).type)
    if pa.types.is_map(type):
        keys = pa.array([key for v in values if v is not None for key in v], pa.string())
        items = to_array([item for v in values if v is not None for item in v.values()], type.item_field)
        return pa.MapArray.from_arrays(_to_offsets(values), keys, items, type=make_nullable(field).type)
    mark = (field.metadata or {}).get(_MARK)
    if mark == _JSON:
        values = [v if v is None or isinstance(v, JsonText) else to_json_text(v) for v in values]
    elif mark == _TEXT:
        values = [None if v is None else str(v) for v in values]
    array = pa.array(values, type)
    if pa.types.is_timestamp(type):
        _refuse_other_years(array)
    return array


def _refuse_other_years(times: pa.Array) -> None:
    """Raise OverflowError for a time before year 1 or after 9999 in UTC. Arrow holds it, but Python cannot read it."""
    bounds = pc.min_max(times.view(pa.int64())).as_py()
    if bounds["min"] is not None and (bounds["min"] < _LEAST_TIME_US or bounds["max"] > _MOST_TIME_US):
        raise OverflowError("a time outside the years 1 to 9999")


def _to_offsets(values: Sequence[Any]) -> pa.Array:
    """Return where the list of each value begins; null for a null list."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += 0 if value is None else len(value)
    return pa.array([*offsets, end], pa.int32())
