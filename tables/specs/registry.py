"""All tables of a namespace, in the order in which they are created."""

from __future__ import annotations

from .applications import APPLICATIONS
from .clients import CLIENTS
from .delayed import DELAYED
from .final_messages import FINAL_MESSAGES
from .groups import ASSIGNMENT_MOVES, ASSIGNMENTS, GROUPS, MEMBERS
from .inbox import INBOX
from .journal import JOURNAL
from .messages import MESSAGES
from .offsets import CONSUMER_OFFSETS
from .producers import PRODUCERS
from .rejected_rows import REJECTED_ROWS
from .segments import SEGMENTS
from .spec import TableSpec
from .topics import PARTITIONS, TOPICS
from .transactions import CONTROL_MARKERS, TRANSACTIONAL_IDS, TRANSACTIONS
from .watermarks import WATERMARKS

TABLES: tuple[TableSpec, ...] = (
    MESSAGES,
    INBOX,
    TOPICS,
    PARTITIONS,
    SEGMENTS,
    CONTROL_MARKERS,
    TRANSACTIONS,
    TRANSACTIONAL_IDS,
    PRODUCERS,
    APPLICATIONS,
    CLIENTS,
    CONSUMER_OFFSETS,
    GROUPS,
    MEMBERS,
    ASSIGNMENTS,
    ASSIGNMENT_MOVES,
    DELAYED,
    REJECTED_ROWS,
    FINAL_MESSAGES,
    WATERMARKS,
    JOURNAL,
)
"""The journal comes last: a namespace that has a journal is complete."""

BY_NAME: dict[str, TableSpec] = {spec.name: spec for spec in TABLES}
