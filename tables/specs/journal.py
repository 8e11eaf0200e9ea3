"""`journal`: all decisions, as rows. Like every table it is written from the step objects, a second later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .segments import SEGMENT_STRUCT
from .spec import INT32, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class JournalRow:
    step: int = column(INT64, "The step that decided this; steps are consecutive.")
    position: int = column(INT32, "Order of the decisions within the step, from 0.")
    kind: str = column(TEXT, "Kind of decision: produced, topic_created, answered, ...")
    subject: str = column(TEXT, "Subject of the decision: a topic, a producer id, a client id.")
    decision: str = column(TEXT, "The decision as JSON, without the segments.")
    segments: list[Any] | None = column(
        pa.list_(SEGMENT_STRUCT), "Segments decided by a produce, as columns.", nullable=True
    )
    request_id: str | None = column(TEXT, "The letter with the request: client id / number.", nullable=True)
    decided_at_ms: int = column(INT64, "The sequencer's time of the decision, which never goes back.")
    leader_epoch: int = column(INT64, "Epoch of the sequencer that decided.")
    format_version: int = column(INT32, "Version of the decision's format.")


JOURNAL = TableSpec(
    name="journal",
    row=JournalRow,
    shape="log",
    keys=("step", "position"),
    sort_by=("step", "position"),
    comment="All decisions in order, of the last journal.retention.ms. The other tables follow from them.",
)
