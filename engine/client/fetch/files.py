"""Data files as a fetch opens them: each is what was written when its offsets were given out, or it is not read.

What was rewritten or cut short shows in the size and the footer. Pages that were altered in place, their sizes kept,
show only where they cannot be decoded any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.files import Files
from lakemq.tables.storage.workers import Workers

from ...namespace.data_file import file_name, is_as_written, journaled_digest, look, read_footer
from ...protocol.errors import FileTruncated, StorageError

_AT_ONCE = 16
_PIECE_BYTES = 8 << 20


@contextmanager
def data_file(files: Files, file_id: int, footer_hash: int | None) -> Iterator[pq.ParquetFile]:
    """The file, to be read. Raises FileTruncated: it is gone, or not what was written; StorageError, by name.

    footer_hash: None for rows that rode in the journal, by whose digest the file is known.
    """
    try:
        source = files.open_input(file_name(file_id))
    except FileNotFoundError:
        raise FileTruncated(f"Data file {file_stem(file_id)} is gone.") from None
    except OSError as error:
        raise _unreadable(file_id, error) from error
    with source:
        try:
            footer = read_footer(source)
        except ValueError as error:
            raise FileTruncated(f"Data file {file_stem(file_id)} is damaged.", found=str(error)) from error
        except OSError as error:
            raise _unreadable(file_id, error) from error
        if not is_as_written(footer_hash, footer.hash, journaled_digest(footer.metadata) is not None):
            raise FileTruncated(
                f"Data file {file_stem(file_id)} was rewritten or damaged.",
                found=f"{footer.size_bytes} bytes, footer {footer.hash}",
                expected="a digest of its rows" if footer_hash is None else f"footer {footer_hash}",
            )
        try:
            yield pq.ParquetFile(source, metadata=footer.metadata)
        except (pa.ArrowMemoryError, pa.ArrowCancelled):
            raise
        except (OSError, pa.ArrowException) as error:
            raise _why(file_id, source, error) from error


def _why(file_id: int, source: pa.NativeFile, error: Exception) -> FileTruncated | StorageError:
    """What went wrong while rows were read: where all bytes can be had, it is the bytes."""
    try:
        for at in range(0, source.size(), _PIECE_BYTES):
            source.read_at(_PIECE_BYTES, at)
    except OSError as cause:
        return _unreadable(file_id, cause)
    return FileTruncated(f"Data file {file_stem(file_id)} is damaged.", found=" ".join(str(error).split()))


def _unreadable(file_id: int, error: OSError) -> StorageError:
    return StorageError(f"Data file {file_stem(file_id)} cannot be read.", found=" ".join(str(error).split()))


def verify_files(files: Files, footer_hashes: Mapping[int, int | None]) -> dict[int, str]:
    """file_id -> what is wrong with that file, for those of which something is; a look at each footer.

    footer_hashes: file_id -> as in `segments`.
    """
    with Workers(_AT_ONCE, "lakemq-footers") as pool:
        found = zip(footer_hashes, pool.map(lambda file_id: look(files, file_id), footer_hashes), strict=True)
        return {
            file_id: "gone" if facts is None else facts.flaw or "rewritten or damaged"
            for file_id, facts in found
            if facts is None
            or facts.flaw
            or not is_as_written(footer_hashes[file_id], facts.footer_hash, facts.is_journaled)
        }
