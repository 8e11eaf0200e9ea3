"""Decoded values as Arrow columns. Values are turned into columns field by field, which is several times as fast as
handing Arrow a dictionary per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

MAX_DIGITS = 38
"""Most digits of a decimal, in Spark and in Arrow's decimal128."""

_MARK = b"lakemq.read_as"
_JSON, _TEXT = b"json", b"text"

_encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")


class JsonText(str):
    """A part of a value that has no Arrow type of its own, as JSON."""


def to_json_text(part: object) -> JsonText:
    """Return a decoded part of a value as JSON."""
    return JsonText(_encoder.encode(part).decode())


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
    return pa.array(values, type)


def _to_offsets(values: Sequence[Any]) -> pa.Array:
    """Return where the list of each value begins; null for a null list."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += 0 if value is None else len(value)
    return pa.array([*offsets, end], pa.int32())
