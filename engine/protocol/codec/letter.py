"""A letter and its answer as bytes.

A letter is a JSON head and, after it, the rows that ride with it: as Arrow (`letter_rows`) or, where they are few, as
msgpack (`few_rows`), which its first bytes tell. In its head each request stands on its own: it was encoded, and found
right, before it met the others (`request`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
import pyarrow as pa

from ..errors import InvalidRequest
from ..values.base import Count
from ..values.clients import Answer, Letter, Unreadable
from ..values.kinds import AnyRequest
from ..values.log import Produce
from .few_rows import FewRows, Rows, decode_few_rows, encode_few_rows
from .letter_rows import decode_rows, encode_rows

MAX_REQUESTS = 5000
"""Of a letter: each takes a hundred times its bytes, once it is decided and answered."""

_MOST = msgspec.Meta(max_length=MAX_REQUESTS)
_HEAD = struct.Struct("<4sI")
_MAGIC, _MAGIC_FEW = b"LMQ1", b"LMQ2"
_json = msgspec.json.Encoder()
_requests: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_answers = msgspec.json.Decoder(Answer)


class _Head(msgspec.Struct, frozen=True):
    """Requests: for each the row of the letter at which its own begin, and its JSON."""

    client_id: str
    number: int
    requests: Annotated[Sequence[tuple[Count, msgspec.Raw]], _MOST]
    sent_at_ms: int
    namespace_id: str = ""


class _ReadHead(msgspec.Struct, frozen=True):
    """The same, where every request is one we know."""

    client_id: str
    number: int
    requests: Annotated[list[tuple[Count, AnyRequest]], _MOST]
    sent_at_ms: int
    namespace_id: str = ""


_heads = msgspec.json.Decoder(_Head)
_read_heads = msgspec.json.Decoder(_ReadHead)


def encode_letter(
    client_id: str,
    number: int,
    requests: Sequence[tuple[int, bytes]],
    sent_at_ms: int,
    rows: Rows | None = None,
    namespace_id: str = "",
) -> bytes:
    """A letter. requests: the row of `rows` at which a request's own begin, and what `encode_request` made of it."""
    texts = [(row, msgspec.Raw(text)) for row, text in requests]
    head = _json.encode(_Head(client_id, number, texts, sent_at_ms, namespace_id))
    if isinstance(rows, FewRows):
        return b"".join([_HEAD.pack(_MAGIC_FEW, len(head)), head, encode_few_rows(rows)])
    return b"".join([_HEAD.pack(_MAGIC, len(head)), head, b"" if rows is None else encode_rows(rows)])


def decode_letter(body: bytes) -> tuple[Letter, Rows | None]:
    """The letter and its rows, which are message bodies. Raises ValueError for anything that is not a letter."""
    magic, length = _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (b"", 0)
    if magic not in (_MAGIC, _MAGIC_FEW):
        raise ValueError("not a letter: it does not begin as one")
    head, rest = body[_HEAD.size : _HEAD.size + length], memoryview(body)[_HEAD.size + length :]
    try:
        letter = _decode_head(head)
        if magic == _MAGIC_FEW:
            return letter, decode_few_rows(rest)
        return letter, decode_rows(rest) if len(rest) else None
    except (pa.ArrowException, OSError, RecursionError) as error:
        raise ValueError(f"not a letter: {error}") from error


def _decode_head(head: bytes) -> Letter:
    try:
        read = _read_heads.decode(head)
    except (msgspec.ValidationError, RecursionError):  # one by one, so that those we know are decided
        found = _heads.decode(head)
        requests = [_decode_request(row, text) for row, text in found.requests]
        return Letter(found.client_id, found.number, requests, found.sent_at_ms, found.namespace_id)
    placed: list[AnyRequest | Unreadable] = [_placed(*one) for one in read.requests]
    return Letter(read.client_id, read.number, placed, read.sent_at_ms, read.namespace_id)


def _decode_request(first_row: int, text: msgspec.Raw) -> AnyRequest | Unreadable:
    try:
        return _placed(first_row, _requests.decode(text))
    except (ValueError, RecursionError) as error:
        return Unreadable(InvalidRequest(f"The request cannot be read: {error}").refusal())


def _placed(first_row: int, request: AnyRequest) -> AnyRequest:
    """Where its rows begin is the letter's to say."""
    if isinstance(request, Produce) and request.first_row != first_row:
        return msgspec.structs.replace(request, first_row=first_row)
    return request


def encode_answer(answer: Answer) -> bytes:
    return _json.encode(answer)


def decode_answer(body: bytes) -> Answer:
    return _answers.decode(body)
