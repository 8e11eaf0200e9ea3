"""Write message rows that came in steps to their data file. The leader may have changed since.

The rows of small publishes are in the step objects, so that a step is one write. The steps already name the file in
which these rows will be (`pending_file`). The next pass writes it.

Invariant: the file is a function of the steps alone, so any leader may write it. Until it exists, only steps name it.
A file that already has its name is accepted only if its digest is the same.
"""

from __future__ import annotations

import xxhash

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.delta.commits import NewFile
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.data_file import (
    JOURNALED,
    DataFileWriter,
    file_name,
    new_data_file,
    read_footer,
    read_journaled_digest,
    to_table_file,
)
from ...protocol.codec.step_rows import decode_step_rows
from ...protocol.errors import FileTruncated
from ...protocol.projection import JournaledRows


def write_journaled_rows(files: Files, rows: JournaledRows) -> NewFile:
    """Write the data file of these rows durably. Raises FileTruncated: another file has that name; OSError."""
    digest = xxhash.xxh3_128()
    for body in rows.bodies:
        digest.update(body)
    writer: DataFileWriter | None = None
    try:
        with new_data_file(files, rows.file_id, {JOURNALED: digest.hexdigest()}) as writer:
            writer.write(decode_step_rows(rows.bodies))
    except FileExistsError:
        assert writer is not None
        writer.size_bytes = _check(files, rows, digest.hexdigest())
        files.sync([file_name(rows.file_id)])
    return to_table_file(writer)


def _check(files: Files, rows: JournaledRows, digest: str) -> int:
    """Return the size of the file that is there, in bytes. Raises FileTruncated unless it holds these rows."""
    expected, size_bytes = f"{rows.record_count} rows, digest {digest}", 0
    try:
        with files.open_input(file_name(rows.file_id)) as source:
            footer = read_footer(source)
        size_bytes, metadata = footer.size_bytes, footer.parse()
        actual = f"{metadata.num_rows} rows, digest {read_journaled_digest(metadata)}"
    except ValueError as error:
        actual = str(error)
    if actual != expected:
        raise FileTruncated(
            f"Data file {file_stem(rows.file_id)} exists, but does not hold the rows that the steps have.",
            found=actual,
            expected=expected,
        )
    return size_bytes
