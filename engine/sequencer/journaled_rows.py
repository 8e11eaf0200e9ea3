"""Rows that rode in the journal become their data file, whoever leads by then.

Invariant: the file is a function of the journal alone, so that it does not matter who writes it, and it is written
before anything names it but the journal. What is found under its name is adopted only if it is that file.
"""

from __future__ import annotations

import pyarrow as pa
import xxhash

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.files import Files

from ..namespace.data_file import (
    JOURNALED,
    DataFileWriter,
    file_name,
    journaled_digest,
    new_data_file,
    read_footer,
)
from ..protocol.codec.letter_rows import decode_rows
from ..protocol.errors import FileTruncated
from ..protocol.projection import JournaledRows
from ..protocol.values.log import DataFile


def write_journaled_rows(files: Files, rows: JournaledRows) -> DataFile:
    """The data file of these rows, durable. Raises FileTruncated: there is another one of that name; OSError."""
    digest = xxhash.xxh3_128()
    for stream in rows.streams:
        digest.update(stream)
    body = pa.concat_tables([decode_rows(memoryview(stream)) for stream in rows.streams])
    writer: DataFileWriter | None = None
    try:
        with new_data_file(files, rows.file_id, {JOURNALED: digest.hexdigest()}) as writer:
            writer.write(body)
    except FileExistsError:
        _check(files, rows, digest.hexdigest())
        files.sync([file_name(rows.file_id)])
    assert writer is not None
    return DataFile(*writer.written(files))


def _check(files: Files, rows: JournaledRows, digest: str) -> None:
    expected = f"{rows.record_count} rows, digest {digest}"
    try:
        with files.open_input(file_name(rows.file_id)) as source:
            metadata = read_footer(source).metadata
        found = f"{metadata.num_rows} rows, digest {journaled_digest(metadata)}"
    except ValueError as error:
        found = str(error)
    if found != expected:
        raise FileTruncated(
            f"Data file {file_stem(rows.file_id)} is there, and not of the rows that the journal has.",
            found=found,
            expected=expected,
        )
