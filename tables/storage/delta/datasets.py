"""Datasets of Parquet files whose pages are verified, and which file is damaged if a read of them fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..object_stores.files import Files
from ..parquet import open_parquet

_VERIFYING = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


Bounds = Mapping[str, tuple[Any, Any]]
"""Column -> lowest and highest value, both inclusive. None: unbounded."""


class DamagedFile(ValueError):
    """The bytes of a file can be read, but are not what was written."""


def open_dataset(files: Mapping[str, Mapping[str, Any]], schema: pa.Schema, filesystem: object) -> ds.Dataset:
    """Return a dataset of these files. Its reads raise OSError or ArrowException if they meet a damaged page.

    files: name -> values of the columns that the file lacks, since its table is partitioned by them.
    """
    if not any(files.values()):
        return ds.dataset(list(files), schema=schema, format=_VERIFYING, filesystem=filesystem)
    fragments = [
        _VERIFYING.make_fragment(name, filesystem, reduce(and_, (pc.field(n) == value for n, value in values.items())))
        for name, values in files.items()
    ]
    return ds.FileSystemDataset(fragments, schema, _VERIFYING)


def make_filter(bounds: Bounds, where: pc.Expression | None = None) -> pc.Expression | None:
    """Return the filter of rows within all bounds for which `where` holds. None: all rows."""
    tests = [] if where is None else [where]
    for name, (low, high) in bounds.items():
        tests += [] if low is None else [pc.field(name) >= low]
        tests += [] if high is None else [pc.field(name) <= high]
    return reduce(and_, tests) if tests else None


@contextmanager
def report_damaged_file(files: Files, names: Sequence[str]) -> Iterator[None]:
    """Raise DamagedFile if a read of these files fails in the block because of what is in one of them.

    Other errors pass, such as those of a store that fails.
    """
    try:
        yield
    except (FileNotFoundError, pa.ArrowMemoryError, pa.ArrowCancelled):
        raise
    except (OSError, pa.ArrowException) as error:
        for name in names:
            with files.open_input(name) as source:
                content = source.read()
            try:
                open_parquet(pa.BufferReader(content)).read()
            except (OSError, pa.ArrowException) as cause:
                raise DamagedFile(f"{name} is damaged: {' '.join(str(cause).split())}") from error
        raise
