"""One request as JSON: it is encoded, and found right, in the call that makes it.

So a bad value is its caller's alone, and never that of others whose requests travel in the same letter.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import msgspec

from ..errors import MAX_SHOWN, InvalidRequest
from ..values.kinds import AnyRequest

_JSON_HAS = "what JSON has: text in Unicode, numbers, true, false, null"
_SAID = re.compile(r"Expected (?P<expected>.*), got .* - at (?:`key` in )?`\$\.(?P<field>.*)`", re.DOTALL)

# numpy's whole numbers and the like become ints; TypeError for anything else that JSON does not know
_encoder = msgspec.json.Encoder(enc_hook=operator.index)
_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)

# Lone surrogates, numbers too long, cycles, wrong types, and what comparing numpy's arrays comes upon. Any other
# exception is not of the value, such as that of a signal's handler.
_UNFIT = (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError)


def encode_request(request: AnyRequest) -> bytes:
    """JSON that decodes to an equal request. Raises InvalidRequest, which names the field."""
    decoded: AnyRequest | None = None
    try:
        text = _encoder.encode(request)
        decoded = _decoder.decode(text)
        if decoded == request:
            return text
        problem: Exception | None = None  # JSON made something else of it: of bytes, a date, not-a-number
    except _UNFIT as error:
        problem = error
    raise _invalid(request, decoded, problem) from problem


def _invalid(request: AnyRequest, decoded: AnyRequest | None, problem: Exception | None) -> InvalidRequest:
    if said := _SAID.fullmatch(str(problem)):
        field, expected = said["field"], said["expected"].replace("`", "")
    else:
        names = getattr(request, "__struct_fields__", ())
        field, expected = next((name for name in names if not _travels(request, decoded, name)), ""), _JSON_HAS
    value = getattr(request, re.split(r"[.\[]", field)[0], request)
    what = f"{field} of {type(request).__name__}" if field else type(request).__name__
    return InvalidRequest(f"{what} cannot be sent.", found=_shown(value), expected=expected)


def _travels(request: AnyRequest, decoded: AnyRequest | None, name: str) -> bool:
    value = getattr(request, name)
    try:
        _encoder.encode(value)
        return decoded is None or bool(getattr(decoded, name) == value)
    except _UNFIT:
        return False


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_SHOWN]
    try:
        return repr(value)[:MAX_SHOWN]
    except Exception:  # a number with more digits than Python prints, an object of somebody else's
        return f"a {type(value).__name__}"
