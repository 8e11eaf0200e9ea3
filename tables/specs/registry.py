"""All tables of a namespace, in the order in which they are created."""

from .groups import ASSIGNMENT_MOVES, ASSIGNMENTS, CONSUMER_OFFSETS, GROUPS, MEMBERS
from .journal import ADMIN_LOG, JOURNAL, SAMPLES, WATERMARKS
from .messages import DELAYED, FINAL_MESSAGES, INBOX, MESSAGES, REJECTED_ROWS, SCHEDULES
from .spec import TableSpec
from .topics import PARTITIONS, SEGMENTS, TOPICS
from .transactions import APPLICATIONS, CLIENTS, CONTROL_MARKERS, PRODUCERS, TRANSACTIONAL_IDS, TRANSACTIONS

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
    SCHEDULES,
    REJECTED_ROWS,
    FINAL_MESSAGES,
    SAMPLES,
    ADMIN_LOG,
    WATERMARKS,
    JOURNAL,
)
"""The journal comes last: a namespace that has a journal is complete."""

BY_NAME: dict[str, TableSpec] = {spec.name: spec for spec in TABLES}
