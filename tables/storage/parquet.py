"""Open Parquet files so that the checksum of each page is verified.

LakeMQ writes a CRC-32 into the header of every page. A read that meets a page with another one ends with OSError. Pages
without a checksum, which earlier versions and other engines write, are read as they are.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq


def open_parquet(source: pa.NativeFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a file. Its reads raise OSError or ArrowException if they meet a damaged page.

    metadata: its footer, if that was read already.
    """
    return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
