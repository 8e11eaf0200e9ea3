"""Open Parquet files so that the checksum of each page is verified.

LakeMQ writes a CRC-32 into the header of every page. A read that meets a page with another one ends with OSError. Pages
without a checksum, which other engines write, are read as they are.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from .parquet_pages import limit_reads

_KEPT = ["topic"]
"""Columns of few values. They are read as dictionaries, so that a long value is not unpacked for each row."""


def open_parquet(source: pa.NativeFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a file. Its reads raise OSError or ArrowException if they meet a damaged page.

    metadata: its footer, if that was read already.
    """
    return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)


def open_bounded_parquet(
    source: pa.NativeFile, metadata: pq.FileMetaData, most_bytes: int | None = None
) -> pq.ParquetFile:
    """Open a file of rows that another process wrote. Its reads also raise OSError before they unpack too much.

    Args:
        source: the file.
        metadata: its footer.
        most_bytes: that its pages may unpack to; None: in proportion to its size.
    """
    bounded = limit_reads(source, metadata, _KEPT, most_bytes)
    is_in_store = not isinstance(source, pa.OSFile)  # and is asked for several columns at once
    return pq.ParquetFile(
        bounded, metadata=metadata, read_dictionary=_KEPT, pre_buffer=is_in_store, page_checksum_verification=True
    )
