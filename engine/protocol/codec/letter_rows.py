"""The rows in a letter as bytes: an Arrow stream of message bodies.

Anybody may have written them, so no more memory is taken for them than they have bytes, and all that a message must
have is there.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from lakemq.tables.specs.messages import BODY_SCHEMA

_NEEDED = ("topic", "partition", "timestamp")

# of Arrow's Message.fbs: which field of its table something is
_HEADER, _COMPRESSION = 2, 3


def encode_rows(rows: pa.Table) -> bytes:
    """Not compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def decode_rows(stream: memoryview) -> pa.Table:
    """Raises ValueError, ArrowException, OSError for anything that is not message bodies, or that is compressed."""
    body = pa.py_buffer(stream)
    reader = pa.ipc.open_stream(body)
    if reader.schema != BODY_SCHEMA:
        raise ValueError(f"not message bodies: found {reader.schema.names}, expected {BODY_SCHEMA.names}")
    # before anything is read: a few bytes may stand for more than there is memory
    for message in pa.ipc.MessageReader.open_stream(body):
        _check_plain(message)
    rows = reader.read_all()
    # bytes from elsewhere: a wrong offset in them would be read as memory of ours
    rows.validate(full=True)
    for name in _NEEDED:
        if rows.column(name).null_count:
            raise ValueError(f"a message body has no {name}")
    # without what a schema may say besides: it would ride along in the journal, whatever its size
    return pa.Table.from_arrays(rows.columns, schema=BODY_SCHEMA)


def _check_plain(message: pa.Message) -> None:
    """Raises ValueError unless what the message holds takes as much memory as it has bytes."""
    # before V5 the compression was told elsewhere
    if message.metadata_version != pa.ipc.MetadataVersion.V5:
        raise ValueError(f"Arrow metadata: found {message.metadata_version!r}, expected V5")
    if message.type not in ("schema", "record batch"):
        raise ValueError(f"found a {message.type}, expected rows only")
    if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
        raise ValueError("found compressed rows, expected plain ones")


def _is_compressed(message: memoryview) -> bool:
    """Of the metadata of a record batch, as Arrow has checked it: pyarrow does not tell."""
    try:
        (root,) = struct.unpack_from("<I", message)
        header = _field(message, root, _HEADER)
        (to_batch,) = struct.unpack_from("<I", message, header)
        return _field(message, header + to_batch, _COMPRESSION) != 0
    except struct.error as error:
        raise ValueError(f"metadata of rows: {error}") from error


def _field(message: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies, 0 where it is left out."""
    (to_vtable,) = struct.unpack_from("<i", message, table)
    vtable = table - to_vtable
    (size,) = struct.unpack_from("<H", message, vtable)
    entry = 4 + 2 * number
    if entry >= size:
        return 0
    (at,) = struct.unpack_from("<H", message, vtable + entry)
    return table + at if at else 0
