"""Encode one request as JSON and check it, in the call that makes it.

So a bad value fails in its own call, and not the requests of others that travel in the same letter.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import msgspec

from ..errors import MAX_SHOWN, InvalidRequest
from ..values.kinds import AnyRequest

_JSON_HAS = "what JSON has: text in Unicode, numbers, true, false, null"
_VALIDATION_MESSAGE = re.compile(r"Expected (?P<expected>.*), got .* - at (?:`key` in )?`\$\.(?P<field>.*)`", re.DOTALL)

# numpy's whole numbers and the like become ints; TypeError for anything else that JSON does not know
_encoder = msgspec.json.Encoder(enc_hook=operator.index)
_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)

# Caused by lone surrogates, too large numbers, cycles, wrong types, and comparing numpy arrays. Other exceptions, for
# example from a signal handler, are not about the value.
_ENCODING_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError)


def encode_request(request: AnyRequest) -> bytes:
    """Return JSON that decodes to an equal request. Raises InvalidRequest, which names the field."""
    decoded: AnyRequest | None = None
    try:
        text = _encoder.encode(request)
        decoded = _decoder.decode(text)
        if decoded == request:
            return text
        problem: Exception | None = None  # JSON changed the value, for example bytes, a date or not-a-number
    except _ENCODING_ERRORS as error:
        problem = error
    raise _invalid_request_error(request, decoded, problem) from problem


def _invalid_request_error(
    request: AnyRequest, decoded: AnyRequest | None, problem: Exception | None
) -> InvalidRequest:
    if match := _VALIDATION_MESSAGE.fullmatch(str(problem)):
        field, expected = match["field"], match["expected"].replace("`", "")
    else:
        names = getattr(request, "__struct_fields__", ())
        field, expected = (
            next((name for name in names if not _survives_encoding(request, decoded, name)), ""),
            _JSON_HAS,
        )
    value = getattr(request, re.split(r"[.\[]", field)[0], request)
    subject = f"{field} of {type(request).__name__}" if field else type(request).__name__
    return InvalidRequest(f"{subject} cannot be sent.", found=_truncate_repr(value), expected=expected)


def _survives_encoding(request: AnyRequest, decoded: AnyRequest | None, name: str) -> bool:
    value = getattr(request, name)
    try:
        _encoder.encode(value)
        return decoded is None or bool(getattr(decoded, name) == value)
    except _ENCODING_ERRORS:
        return False


def _truncate_repr(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_SHOWN]
    try:
        return repr(value)[:MAX_SHOWN]
    except Exception:  # a number with more digits than Python prints, or an object with a broken repr
        return f"a {type(value).__name__}"
