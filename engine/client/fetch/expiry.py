"""Which messages of a plan have expired: by the time of the plan, so that whoever reads it again reads the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.storage.files import Files

from .causes import whose_are
from .fetch_plan import FetchPlan
from .kept import KeptRows
from .rows import running, sources

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


def have_expired(now_ms: int | None, segments: pa.Table, rows: pa.Table) -> Mask | None:
    """Of the messages of these segments, in order; None: none of them can have.

    rows: of each message, with its own time to live (ttl_ms). One that has none has its segment's; without either it
    never expires.
    """
    since_ms = segments.column("ttl_from_ms")
    if now_ms is None or since_ms.null_count == segments.num_rows:
        return None
    whose = pa.array(whose_are(segments))
    lives_ms = pc.coalesce(rows.column("ttl_ms"), segments.column("ttl_ms").take(whose))
    ends_ms = pc.fill_null(pc.add(since_ms.take(whose), lives_ms), _NEVER)
    expired: Mask = ends_ms.to_numpy() <= now_ms
    return expired


def expired_offsets(files: Files, plan: FetchPlan, kept: KeptRows | None = None) -> dict[int, Numbers]:
    """Partition -> offsets of the plan whose messages have expired, in no order. Raises FileTruncated."""
    segments = plan.expirable
    found: dict[int, list[Numbers]] = {}
    for source in sources(files, replace(plan, segments=segments), kept):
        mine = segments.take(pa.array(source.ranges))
        rows = source.rows.select(["ttl_ms"]).take(pa.array(running(mine, source.begin)))
        expired = have_expired(plan.now_ms, mine, rows)
        if expired is not None and expired.any():
            partitions = mine.column("partition").to_numpy()[whose_are(mine)[expired]]
            offsets = running(mine, mine.column("base_offset").to_numpy())[expired]
            for partition in np.unique(partitions).tolist():
                found.setdefault(partition, []).append(offsets[partitions == partition])
    return {partition: np.concatenate(parts) for partition, parts in found.items()}
