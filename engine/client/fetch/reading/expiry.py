"""Find the messages of a plan that have expired. The time of the plan decides, whenever it is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.storage.object_stores.files import Files

from ..planning.fetch_plan import FetchPlan
from .row_group_cache import RowGroupCache
from .rows import count_up_per_row, read_sources, segment_index_per_row

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


def mask_expired_messages(now_ms: int, segments: pa.Table, rows: pa.Table) -> Mask:
    """Return a mask of the messages of these segments that have expired.

    A message lives for its own `ttl_ms`, else for that of its segment; without either it never expires.

    Args:
        now_ms: the time that decides.
        segments: columns `ttl_from_ms`, `ttl_ms` and `record_count`.
        rows: of the messages in order, with a column `ttl_ms`.
    """
    since_ms = segments.column("ttl_from_ms")
    segment_indices = pa.array(segment_index_per_row(segments))
    ttl_ms = pc.coalesce(rows.column("ttl_ms"), segments.column("ttl_ms").take(segment_indices))
    ends_ms = pc.fill_null(pc.add(since_ms.take(segment_indices), ttl_ms), _NEVER)
    mask: Mask = ends_ms.to_numpy() <= now_ms
    return mask


def find_expired_offsets(files: Files, plan: FetchPlan, cache: RowGroupCache | None = None) -> dict[int, Numbers]:
    """Return partition -> offsets of the plan whose messages have expired, in no order. Raises FileTruncated."""
    if plan.now_ms is None:
        return {}
    segments = plan.expirable
    offsets_by_partition: dict[int, list[Numbers]] = {}
    for source in read_sources(files, replace(plan, segments=segments), cache):
        source_segments = segments.take(pa.array(source.ranges))
        index = pa.array(count_up_per_row(source_segments, source.begin))
        is_expired = mask_expired_messages(plan.now_ms, source_segments, source.rows.select(["ttl_ms"]).take(index))
        if is_expired.any():
            segment_indices = segment_index_per_row(source_segments)[is_expired]
            partitions = source_segments.column("partition").to_numpy()[segment_indices]
            base_offsets = source_segments.column("base_offset").to_numpy()
            offsets = count_up_per_row(source_segments, base_offsets)[is_expired]
            for partition in np.unique(partitions).tolist():
                offsets_by_partition.setdefault(partition, []).append(offsets[partitions == partition])
    return {partition: np.concatenate(parts) for partition, parts in offsets_by_partition.items()}
