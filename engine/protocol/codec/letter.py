"""Letters as bytes: requests, the rows that travel with them, answers, and the checksum of each object.

A letter is a JSON head, followed by the rows that travel with it: as an Arrow stream or, if they are few, as msgpack
(`few_rows`). Its first bytes say which, and have a checksum of all others. Each request in the head was encoded
and checked on its own, in the call that made it. So a bad value fails in its own call, and cannot spoil the requests of
others beside it.
"""

import operator
import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
import pyarrow as pa
import xxhash

from lakemq.tables.specs.messages import BODY_SCHEMA

from ..errors import InvalidRequest, NewerFormat
from ..values.base import Count
from ..values.clients import Answer, Letter, Unreadable
from ..values.kinds import OUTCOMES, AnyRequest, AnyResult
from ..values.log import Produce
from .few_rows import FewRows, Rows, decode_few_rows, encode_few_rows

# The rows of a letter as an Arrow stream of message bodies.
#
# Anybody may have written the bytes. So the rows take no more memory than they have bytes, and every row has the fields
# that a message needs.


_NEEDED = ("topic", "partition", "timestamp")

# numbers of fields in the tables of Arrow's Message.fbs
_HEADER, _COMPRESSION = 2, 3


def encode_rows(rows: pa.Table) -> bytes:
    """Return the rows as an Arrow stream, not compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def decode_rows(stream: memoryview) -> pa.Table:
    """Return the rows. Raises ValueError, ArrowException, OSError for other bytes, and for compressed rows."""
    body = pa.py_buffer(stream)
    reader = pa.ipc.open_stream(body)
    if reader.schema != BODY_SCHEMA:
        raise ValueError(f"not message bodies: found {reader.schema.names}, expected {BODY_SCHEMA.names}")
    # check this before reading: a few compressed bytes may need more memory than there is
    for message in pa.ipc.MessageReader.open_stream(body):
        check_plain(message)
    rows = reader.read_all()
    # a wrong offset in foreign bytes would make us read our own memory as data
    rows.validate(full=True)
    for name in _NEEDED:
        if rows.column(name).null_count:
            raise ValueError(f"a message body has no {name}")
    # drop the schema's metadata, which would travel on into the journal, whatever its size
    return pa.Table.from_arrays(rows.columns, schema=BODY_SCHEMA)


def check_plain(message: pa.Message) -> None:
    """Raise ValueError unless the message takes as much memory as it has bytes."""
    # older versions store the compression in another place
    if message.metadata_version != pa.ipc.MetadataVersion.V5:
        raise ValueError(f"Arrow metadata: found {message.metadata_version!r}, expected V5")
    if message.type not in ("schema", "record batch"):
        raise ValueError(f"found a {message.type}, expected rows only")
    if message.type == "record batch" and _has_compression(memoryview(message.metadata)):
        raise ValueError("found compressed rows, expected plain ones")


def _has_compression(message: memoryview) -> bool:
    """Return whether a record batch is compressed, by its metadata. Arrow has checked them, but pyarrow hides them."""
    try:
        (root,) = struct.unpack_from("<I", message)
        header = _find_field(message, root, _HEADER)
        (to_batch,) = struct.unpack_from("<I", message, header)
        return _find_field(message, header + to_batch, _COMPRESSION) != 0
    except struct.error as error:
        raise ValueError(f"metadata of rows: {error}") from error


def _find_field(message: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer's table; 0 if it is left out."""
    (to_vtable,) = struct.unpack_from("<i", message, table)
    vtable = table - to_vtable
    (size,) = struct.unpack_from("<H", message, vtable)
    entry = 4 + 2 * number
    if entry >= size:
        return 0
    (at,) = struct.unpack_from("<H", message, vtable + entry)
    return table + at if at else 0


# Results as the journal and `clients` store them: JSON. An unknown kind of result means a newer version.


class _OutcomeTag(msgspec.Struct):
    outcome: str


class _AnsweredTags(msgspec.Struct):
    results: list[_OutcomeTag]


_results: msgspec.json.Decoder[list[AnyResult]] = msgspec.json.Decoder(list[AnyResult])
_tags = msgspec.json.Decoder(list[_OutcomeTag])
_tags_of_answered = msgspec.json.Decoder(_AnsweredTags)


def decode_results(text: str) -> list[AnyResult]:
    """Return the results. Raises NewerFormat; ValidationError for other text."""
    try:
        return _results.decode(text)
    except msgspec.ValidationError:
        _check_outcomes(_tags.decode(text))
        raise


def check_answer(text: str) -> None:
    """Raise NewerFormat if this JSON of an `answered` record has a kind of result that only a newer version knows."""
    _check_outcomes(_tags_of_answered.decode(text).results)


def _check_outcomes(tags: list[_OutcomeTag]) -> None:
    for tag in tags:
        if tag.outcome not in OUTCOMES:
            raise NewerFormat(found=f"a result {tag.outcome}", expected="one that this version knows") from None


# The checksum of letters and steps: XXH3 in 64 bits.


CHECKSUM_BYTES = 8


def compute_checksum(*parts: bytes | memoryview) -> bytes:
    """Return the checksum of these bytes, one part after the other."""
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def verify_checksum(stored: bytes | memoryview, *parts: bytes | memoryview) -> None:
    """Raise ValueError if the parts do not have the checksum that is stored with them."""
    if (actual := compute_checksum(*parts)) != stored:
        raise ValueError(f"the bytes have the checksum {actual.hex()}, expected {stored.hex()}")


# Letters, with their requests and answers.


MAX_REQUESTS = 5000
"""Requests in a letter. Each takes a hundred times its bytes while it is decided and answered."""

_MOST = msgspec.Meta(max_length=MAX_REQUESTS)
_HEAD = struct.Struct("<4sI")
_MAGIC, _MAGIC_FEW = b"LMQC", b"LMQF"
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


_heads = msgspec.json.Decoder(_Head)


# -- a request ------------------------------------------------------------------------------------------

_JSON_HAS = "what JSON has: text in Unicode, numbers, true, false, null"

# numpy's whole numbers and the like become ints; TypeError for anything else that JSON does not know
_request_encoder = msgspec.json.Encoder(enc_hook=operator.index)

# Caused by lone surrogates, too large numbers, cycles, wrong types, and comparing numpy arrays. Other exceptions, for
# example from a signal handler, are not about the value.
_ENCODING_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError)


def encode_request(request: AnyRequest) -> bytes:
    """Return JSON that decodes to an equal request. Raises InvalidRequest, which says where a bad value is."""
    problem = "JSON changes a value, such as bytes, a date or not-a-number"
    try:
        text = _request_encoder.encode(request)
        if _requests.decode(text) == request:
            return text
    except _ENCODING_ERRORS as error:
        problem = str(error)
    raise InvalidRequest(f"{type(request).__name__} cannot be sent: {problem}.", expected=_JSON_HAS)


# -- a letter -------------------------------------------------------------------------------------------


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
        parts = [_HEAD.pack(_MAGIC_FEW, len(head)), head, encode_few_rows(rows)]
    else:
        parts = [_HEAD.pack(_MAGIC, len(head)), head, b"" if rows is None else encode_rows(rows)]
    parts.insert(1, compute_checksum(*parts))
    return b"".join(parts)


def decode_letter(body: bytes) -> tuple[Letter, Rows | None]:
    """Return the letter and its rows, which are message bodies. Raises ValueError for other bytes."""
    magic, length = _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (b"", 0)
    if magic not in (_MAGIC, _MAGIC_FEW):
        raise ValueError("not a letter: it does not begin as one")
    _verify_checksum(body)
    start = _HEAD.size + CHECKSUM_BYTES
    head, rest = body[start : start + length], memoryview(body)[start + length :]
    try:
        letter = _decode_head(head)
        if magic == _MAGIC_FEW:
            return letter, decode_few_rows(rest)
        return letter, decode_rows(rest) if len(rest) else None
    except (pa.ArrowException, OSError, RecursionError) as error:
        raise ValueError(f"not a letter: {error}") from error


def _verify_checksum(body: bytes) -> None:
    content, end = memoryview(body), _HEAD.size + CHECKSUM_BYTES
    try:
        verify_checksum(content[_HEAD.size : end], content[: _HEAD.size], content[end:])
    except ValueError as error:
        raise ValueError(f"not a letter as it was sent: {error}") from error


def _decode_head(head: bytes) -> Letter:
    """Return the letter. Its requests are decoded one by one, so that those of known kinds are decided."""
    read = _heads.decode(head)
    requests = [_decode_request(row, text) for row, text in read.requests]
    return Letter(read.client_id, read.number, requests, read.sent_at_ms, read.namespace_id)


def _decode_request(first_row: int, text: msgspec.Raw) -> AnyRequest | Unreadable:
    try:
        request = _requests.decode(text)
    except (ValueError, RecursionError) as error:
        return Unreadable(InvalidRequest(f"The request cannot be read: {error}").refusal())
    if isinstance(request, Produce) and request.first_row != first_row:  # only the letter knows where its rows start
        return msgspec.structs.replace(request, first_row=first_row)
    return request


def encode_answer(answer: Answer) -> bytes:
    return _json.encode(answer)


def decode_answer(body: bytes) -> Answer:
    return _answers.decode(body)
