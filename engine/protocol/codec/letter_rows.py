"""The rows of a letter as an Arrow stream of message bodies.

Anybody may have written the bytes. So the rows take no more memory than they have bytes, and every row has the fields
that a message needs.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from lakemq.tables.specs.messages import BODY_SCHEMA

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
