"""A letter and its answer as bytes.

A letter is a JSON head, followed by the rows that travel with it: as Arrow (`letter_rows`) or, if they are few, as
msgpack (`few_rows`). Its first bytes say which. Each request in the head was encoded and checked on its own
(`request`), so a bad one cannot spoil its neighbours.
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
"""Requests in a letter. Each takes a hundred times its bytes while it is decided and answered."""

_MOST = msgspec.Meta(max_length=MAX_REQUESTS)
_HEAD = struct.Struct("<4sI")
_MAGIC, _MAGIC_FEW = b"LMQ1", b"LMQ2"
_json = msgspec.json.Encoder()
_requests: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_answers = msgspec.json.Decoder(Answer)


class _Head(msgspec.Struct, frozen=True):
    """A head with the requests as JSON texts, each with the row of the letter at which its own rows start."""

    client_id: str
    number: int
    requests: Annotated[Sequence[tuple[Count, msgspec.Raw]], _MOST]
    sent_at_ms: int
    namespace_id: str = ""


class _ReadHead(msgspec.Struct, frozen=True):
    """A head whose requests are all of known kinds."""

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
    """Return the bytes of a letter.

    requests: for each the row of `rows` at which its own rows start, and the bytes from `encode_request`.
    """
    texts = [(row, msgspec.Raw(text)) for row, text in requests]
    head = _json.encode(_Head(client_id, number, texts, sent_at_ms, namespace_id))
    if isinstance(rows, FewRows):
        return b"".join([_HEAD.pack(_MAGIC_FEW, len(head)), head, encode_few_rows(rows)])
    return b"".join([_HEAD.pack(_MAGIC, len(head)), head, b"" if rows is None else encode_rows(rows)])


def decode_letter(body: bytes) -> tuple[Letter, Rows | None]:
    """Return the letter and its rows, which are message bodies. Raises ValueError for other bytes."""
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
    except (msgspec.ValidationError, RecursionError):  # decode them one by one, so that the known ones are decided
        head_of_texts = _heads.decode(head)
        requests = [_decode_request(row, text) for row, text in head_of_texts.requests]
        return Letter(
            head_of_texts.client_id,
            head_of_texts.number,
            requests,
            head_of_texts.sent_at_ms,
            head_of_texts.namespace_id,
        )
    placed: list[AnyRequest | Unreadable] = [_set_first_row(*request) for request in read.requests]
    return Letter(read.client_id, read.number, placed, read.sent_at_ms, read.namespace_id)


def _decode_request(first_row: int, text: msgspec.Raw) -> AnyRequest | Unreadable:
    try:
        return _set_first_row(first_row, _requests.decode(text))
    except (ValueError, RecursionError) as error:
        return Unreadable(InvalidRequest(f"The request cannot be read: {error}").refusal())


def _set_first_row(first_row: int, request: AnyRequest) -> AnyRequest:
    """Return the request with the start of its rows, which only the letter knows."""
    if isinstance(request, Produce) and request.first_row != first_row:
        return msgspec.structs.replace(request, first_row=first_row)
    return request


def encode_answer(answer: Answer) -> bytes:
    return _json.encode(answer)


def decode_answer(body: bytes) -> Answer:
    return _answers.decode(body)
