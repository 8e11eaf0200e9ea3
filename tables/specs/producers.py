"""`producers`: what makes a repeat harmless.

Sequences per producer, versions per application, open transactions per transactional id, answers per client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column

UNITS = pa.list_(
    pa.struct(
        [
            pa.field("topic_id", INT64),
            pa.field("partition", INT32),
            pa.field("base_sequence", INT64),
            pa.field("record_count", INT64),
            pa.field("base_offset", INT64),
        ]
    )
)


@dataclass(frozen=True, kw_only=True)
class ProducerRow:
    step: int = column(INT64, "The micro-batch that decided it.")
    kind: str = column(TEXT, "producer, application, transaction or client.")
    name: str = column(TEXT, "The producer id; application id and target; transactional id; or client id.")
    producer_epoch: int | None = column(INT32, "Producers: the current epoch.", nullable=True)
    units: list[Any] | None = column(
        UNITS, "Producers: the last five appends per partition, oldest first.", nullable=True
    )
    version: int | None = column(INT64, "Applications: last txn_version; clients: last letter.", nullable=True)
    document: str | None = column(
        TEXT,
        "Clients: the results of that letter; transactional ids: their newest or open transaction; as JSON.",
        nullable=True,
    )
    seen_at_ms: int = column(INT64, "When it last did something.")
    removed: bool = column(BOOL, "Expired or ended.")


PRODUCERS = TableSpec(
    name="producers",
    row=ProducerRow,
    shape="changelog",
    keys=("kind", "name"),
    comment="Producers, applications, transactional ids, clients: what is remembered so that a repeat changes nothing.",
)
