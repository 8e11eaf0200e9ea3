"""`journal`: all decisions, as rows. `admin_log`: what was changed on request. `samples`: totals of each minute.

`watermarks`: how far the tables are written.

Like every table, the journal is written from the step objects, a second later.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .spec import INT32, INT64, TEXT, TableSpec, column, optional
from .topics import SEGMENT_STRUCT


@dataclass(frozen=True, kw_only=True)
class JournalRow:
    step: int = column(INT64, "The step that decided this; steps are consecutive.")
    position: int = column(INT32, "Order of the decisions within the step, from 0.")
    kind: str = column(TEXT, "Kind of decision: produced, topic_created, answered, ...")
    subject: str = column(TEXT, "Subject of the decision: a topic, a producer id, a client id.")
    decision: str = column(TEXT, "The decision as JSON, without the segments.")
    segments: list[Any] | None = optional(pa.list_(SEGMENT_STRUCT), "Segments decided by a produce, as columns.")
    request_id: str | None = optional(TEXT, "The letter with the request: client id / number.")
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


# `admin_log`: the few decisions that change topics, groups or messages on request. They stay longer than the journal.


MOST_ADMIN_CHANGES = 50_000
"""Rows of `admin_log` that a merge leaves, the newest, so that a program that changes things all the time cannot fill
the disk."""

DETAILS_LENGTH = 1_000
"""Characters of a decision that `admin_log` keeps. A schema, or a list of offsets, may be long."""


@dataclass(frozen=True, kw_only=True)
class AdminLogRow:
    step: int = column(INT64, "The step that decided the change.")
    position: int = column(INT32, "Order of the decisions within the step, as in `journal`.")
    decided_at_ms: int = column(INT64, "The sequencer's time of the decision.")
    kind: str = column(TEXT, "Kind of change: topic_created, member_left, offsets_committed, ...")
    subject: str = column(TEXT, "The topic, group, transactional id or schedule that was changed.")
    client: str = column(TEXT, "Client id of who requested it.")
    decision: str = column(TEXT, f"The decision as JSON, of which the first {DETAILS_LENGTH:,} characters are kept.")


ADMIN_LOG = TableSpec(
    name="admin_log",
    row=AdminLogRow,
    shape="log",
    keys=("step", "position"),
    sort_by=("step", "position"),
    is_needed=False,
    comment="Administrative changes of the last change.retention.ms: who changed what on request, and when.",
)


# `samples`: what grows, as totals. Rates and lags over time are differences of rows.


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    step: int = column(INT64, "The row holds every decision up to this step.")
    minute_ms: int = column(INT64, "Beginning of the minute in which something changed.")
    topic: str = column(
        TEXT, "The topic; empty in the row of the sequencer, and in that of a group with overdue members."
    )
    group: str = column(TEXT, "The group that reads the topic; empty in the topic's own row.")
    offsets: int | None = optional(
        INT64, "Topic: offsets given out so far. Group: those that it is done with. Null: it does not exist any more."
    )
    lag: int | None = optional(INT64, "Group: offsets that are left for it at the end of the minute.")
    steps: int | None = optional(
        INT64, "Sequencer: steps decided in the minute, without renewals. 0: none came for longer than the lease."
    )
    step_p50_ms: int | None = optional(INT64, "Sequencer: how long half of its steps took at most.")
    step_p99_ms: int | None = optional(
        INT64, "Sequencer: how long 99 of 100 steps took at most. Where `steps` is 0: how long none came."
    )
    late_ms: int | None = optional(INT64, "Sequencer: how late a delayed message was released in the minute at most.")


SAMPLES = TableSpec(
    name="samples",
    row=SampleRow,
    shape="log",
    keys=("step", "minute_ms", "topic", "group"),
    sort_by=("topic", "group", "step"),
    is_needed=False,
    comment="Totals of topics, groups and the sequencer: a row for each minute in which they changed.",
)


# `watermarks`: the step up to which all projections are complete. Written last, read first.


VERSIONS = pa.list_(pa.struct([pa.field("table", TEXT), pa.field("version", INT64)]))


@dataclass(frozen=True, kw_only=True)
class WatermarkRow:
    step: int = column(INT64, "All tables hold every decision up to this step.")
    floor: int = column(INT64, "Earliest step whose state can be read.")
    decided_at_ms: int = column(INT64, "The sequencer's time at this step.")
    leader: str = column(TEXT, "The sequencer that leads; empty if none leads.")
    leader_epoch: int = column(INT64, "Epoch of the lease.")
    lease_ms: int = column(INT64, "Duration of the lease after the last step.")
    next_topic_id: int = column(INT64, "Id of the next topic.")
    next_producer_id: int = column(INT64, "Id of the next producer.")
    routing_step: int = column(INT64, "Last step that changed the topics of a destination.")
    delay_pointer_ms: int = column(INT64, "All delayed messages due up to this time are released.")
    versions: list[dict[str, Any]] = column(VERSIONS, "Least Delta version of each table that holds this step.")


WATERMARKS = TableSpec(
    name="watermarks",
    row=WatermarkRow,
    shape="log",
    keys=("step",),
    sort_by=("step",),
    comment="The step up to which all projections are complete, and the counters at that step.",
)
