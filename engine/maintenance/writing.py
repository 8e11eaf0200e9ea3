"""Write the file that a merge puts in the place of others."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.commits import GROUP_ROWS, NewFile, StoredFile, compute_statistics
from lakemq.tables.storage.files import Files
from lakemq.tables.storage.leftovers import Leftovers


def write_merged_file(
    files: Files, leftovers: Leftovers, spec: TableSpec, rows: pa.Table, replaced: Sequence[StoredFile]
) -> tuple[NewFile, ...]:
    """Write the rows as one file; none if there are no rows. First announce the files that will be unneeded."""
    path = f"merged-{uuid.uuid4().hex}.parquet"
    leftovers.announce(spec.name, [path, *(file.path for file in replaced)])
    if not rows.num_rows:
        return ()
    if spec.sort_by:
        rows = rows.sort_by([(key, "ascending") for key in spec.sort_by])
    name = f"{spec.name}/{path}"
    with files.open_output(name) as sink:
        pq.write_table(rows, sink, compression="zstd", row_group_size=GROUP_ROWS)
    size, written_ms = files.size(name), files.modified_ms(name)
    return (NewFile(path, size or 0, written_ms or 0, compute_statistics(rows)),)
