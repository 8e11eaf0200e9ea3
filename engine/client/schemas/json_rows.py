"""Values as people write and read them: JSON in which times, decimals and bytes are text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from .json_schema import decode_json


def read_json_row(text: bytes, field: pa.Field) -> Any:
    """Return JSON as Python objects of the field's types, for an encoder. Raises ValueError, without the value."""
    try:
        return _convert(decode_json(text), field)
    except (binascii.Error, InvalidOperation, ValueError) as error:
        if isinstance(error, ValueError) and str(error).startswith("found"):
            raise
        raise ValueError("found text that is no time, no decimal or no base64") from None


def _convert(value: Any, field: pa.Field | None) -> Any:
    """Convert a part. Parts without a field are left to the encoder, which refuses or understands them."""
    type = None if field is None else field.type
    if type is None or value is None:
        return value
    if pa.types.is_struct(type) and isinstance(value, Mapping):
        fields = {child.name: child for child in type}
        return {name: _convert(part, fields.get(name)) for name, part in value.items()}
    if pa.types.is_map(type) and isinstance(value, Mapping):
        return {name: _convert(part, type.item_field) for name, part in value.items()}
    if pa.types.is_list(type) and isinstance(value, list):
        return [_convert(part, type.value_field) for part in value]
    if pa.types.is_decimal(type) and not isinstance(value, bool):
        return Decimal(str(value))
    return _convert_text(value, type) if isinstance(value, str) else value


def _convert_text(text: str, type: pa.DataType) -> Any:
    if pa.types.is_binary(type):
        return base64.b64decode(text, validate=True)
    if pa.types.is_date(type):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(type):
        return datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
    return text
