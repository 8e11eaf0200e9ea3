"""Rows of Python as JSON, and JSON as people write it, in which times, decimals and bytes are text, as such rows."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from .columns import is_json_text, read_shown_type
from .json_schema import decode_json
from .json_values import TOO_DEEP


def encode_json_row(row: Any) -> bytes:
    """Return Python objects as JSON. Raises ValueError, without parts of the row: JSON cannot hold one of them."""
    try:
        text = _encoder.encode(row)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (TypeError, ValueError, OverflowError):
        raise ValueError(_find_foreign(row, "$") or "found a value that JSON cannot hold") from None
    # Numbers that JSON does not have become null, or a word that is no JSON.
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


def read_json_row(text: bytes, field: pa.Field) -> Any:
    """Return JSON as Python objects of the field's types, for an encoder. Raises ValueError, without the value."""
    try:
        decode_json(text)
        return _convert(_decoder.decode(text), field)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (binascii.Error, InvalidOperation, ValueError) as error:
        if isinstance(error, ValueError) and str(error).startswith("found"):
            raise
        raise ValueError("found text that is no time, no decimal or no base64") from None


_decoder = msgspec.json.Decoder(float_hook=Decimal)


def _convert(value: Any, field: pa.Field | None) -> Any:
    """Convert a part. Parts without a type are left to the encoder, which refuses or understands them."""
    if field is None or is_json_text(field):
        return _to_floats(value)
    type, shown = field.type, read_shown_type(field)
    if value is None:
        return value
    if pa.types.is_struct(type) and isinstance(value, Mapping):
        fields = {child.name: child for child in type}
        return {name: _convert(part, fields.get(name)) for name, part in value.items()}
    if pa.types.is_map(type) and isinstance(value, Mapping):
        return {name: _convert(part, type.item_field) for name, part in value.items()}
    if pa.types.is_list(type) and isinstance(value, list):
        return [_convert(part, type.value_field) for part in value]
    if (pa.types.is_decimal(type) or shown == "decimal") and not isinstance(value, bool):
        return Decimal(str(value))
    if shown.startswith("time") and isinstance(value, str):
        return time.fromisoformat(value)
    return _convert_text(value, type) if isinstance(value, str) else _to_floats(value)


def _to_floats(value: Any) -> Any:
    """Return a part with its numbers as JSON has them. They are read as decimals, which lose no digits."""
    if isinstance(value, Mapping):
        return {name: _to_floats(part) for name, part in value.items()}
    if isinstance(value, list):
        return list(map(_to_floats, value))
    return float(value) if isinstance(value, Decimal) else value


def _convert_text(text: str, type: pa.DataType) -> Any:
    if pa.types.is_binary(type):
        return base64.b64decode(text, validate=True)
    if pa.types.is_date(type):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(type):
        return datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
    return text
