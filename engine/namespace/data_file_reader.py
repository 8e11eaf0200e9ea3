"""Open data files, and verify that each is the file that was written when its offsets were assigned.

A file that was rewritten or cut short shows in its size and its footer, a page that was altered in its checksum.
Its errors need packages that Spark's executors lack, so it is apart from `data_file.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_bounded_parquet

from ..protocol.errors import FileTruncated, StorageError, storage_error
from .data_file import file_name, is_expected_file, read_file_facts, read_footer, read_journaled_digest

_AT_ONCE = 16
_PIECE_BYTES = 8 << 20


@contextmanager
def open_data_file(files: Files, file_id: int, footer_hash: int | None, topic: str = "") -> Iterator[pq.ParquetFile]:
    """Open a data file for reading. Errors while its rows are read are explained, too.

    Args:
        files: the data files.
        file_id: of the file.
        topic: of a file of `final_messages`.
        footer_hash: as its segments have it; None for rows that were in steps first. The digest in their file's
            metadata verifies these.

    Raises:
        FileTruncated: the file is gone, is not the one that was written, or has a damaged page.
        StorageError: the store failed.
    """
    try:
        source = files.open_input(file_name(file_id, topic))
    except FileNotFoundError:
        raise FileTruncated(
            f"Data file {file_stem(file_id)} is gone.",
            expected="a read that was planned less than reader.grace.ms ago; fetch or load again",
        ) from None
    except OSError as error:
        raise _unreadable_error(file_id, error) from error
    with source:
        try:
            footer = read_footer(source)
            metadata = None if footer.is_other_than(footer_hash) else footer.parse()
        except ValueError as error:
            raise FileTruncated(f"Data file {file_stem(file_id)} is damaged.", found=str(error)) from error
        except OSError as error:
            raise _unreadable_error(file_id, error) from error
        is_journaled = metadata is not None and read_journaled_digest(metadata) is not None
        if not is_expected_file(footer_hash, footer.hash, is_journaled):
            raise FileTruncated(
                f"Data file {file_stem(file_id)} was rewritten or damaged.",
                found=f"{footer.size_bytes} bytes, footer {footer.hash}",
                expected="a digest of its rows" if footer_hash is None else f"footer {footer_hash}",
            )
        assert metadata is not None  # else the footer is another one
        try:
            yield open_bounded_parquet(source, metadata)
        except (pa.ArrowMemoryError, pa.ArrowCancelled):
            raise
        except (OSError, pa.ArrowException) as error:
            raise _explain(file_id, source, error) from error


def _explain(file_id: int, source: pa.NativeFile, error: Exception) -> FileTruncated | StorageError:
    """Return the cause of an error while rows were read: if all bytes can be read, the bytes themselves are wrong."""
    try:
        for begin in range(0, source.size(), _PIECE_BYTES):
            source.read_at(_PIECE_BYTES, begin)
    except OSError as cause:
        return _unreadable_error(file_id, cause)
    return FileTruncated(f"Data file {file_stem(file_id)} is damaged.", found=" ".join(str(error).split()))


def _unreadable_error(file_id: int, error: OSError) -> StorageError:
    return storage_error(f"Data file {file_stem(file_id)} cannot be read.", error)


def verify_files(
    files: Files, footer_hashes: Mapping[int, int | None], topics: Mapping[int, str] = MappingProxyType({})
) -> dict[int, str]:
    """Return file_id -> what is wrong with the file, for files with a flaw. Only footers are read.

    Args:
        files: the data files.
        footer_hashes: file_id -> hash of its footer, as the table of segments has it.
        topics: file_id -> topic, of files of `final_messages`.
    """
    with Workers(_AT_ONCE, "lakemq-footers") as pool:
        of_files = footer_hashes.keys(), footer_hashes.values(), [topics.get(file_id, "") for file_id in footer_hashes]
        all_facts = zip(footer_hashes, pool.map(partial(read_file_facts, files), *of_files), strict=True)
        return {
            file_id: "gone" if facts is None else facts.flaw or "rewritten or damaged"
            for file_id, facts in all_facts
            if facts is None
            or facts.flaw
            or not is_expected_file(footer_hashes[file_id], facts.footer_hash, facts.is_journaled)
        }
