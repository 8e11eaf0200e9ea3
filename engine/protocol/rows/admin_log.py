"""The table `admin_log`: what clients have changed in topics, groups and waiting messages on request.

Invariant: the rows are a function of the steps alone, and each change is one row, with the step and position of its
decision. So a pass that is repeated, a later leader and a repair make the same rows.
"""

import pyarrow as pa

from lakemq.tables.specs.journal import ADMIN_LOG, DETAILS_LENGTH, AdminLogRow

from ..codec.steps import encode_record
from ..values.base import Record
from ..values.dead_letters import DeadLettersSettled
from ..values.delays import DelaysCancelled
from ..values.groups import REMOVED, GroupConfigured, GroupForgotten, MemberLeft
from ..values.journal import StepBatch
from ..values.offsets import OffsetsCommitted, OffsetsRemoved
from ..values.schedules import ScheduleCreated, ScheduleDeleted, SchedulePaused, ScheduleResumed
from ..values.topics import RecordsDeleted, TopicAltered, TopicCreated, TopicDeleted
from ..values.transactions import EndReason, TransactionMoved, TransactionStatus

_KINDS: tuple[type[Record], ...] = (
    TopicCreated,
    TopicAltered,
    TopicDeleted,
    RecordsDeleted,
    GroupConfigured,
    GroupForgotten,
    MemberLeft,
    OffsetsCommitted,
    OffsetsRemoved,
    TransactionMoved,
    DeadLettersSettled,
    DelaysCancelled,
    ScheduleCreated,
    SchedulePaused,
    ScheduleResumed,
    ScheduleDeleted,
)


def build_admin_log(steps: StepBatch) -> pa.Table:
    """Return a row for each administrative change in these steps."""
    return ADMIN_LOG.table(
        AdminLogRow(
            step=step.step,
            position=position,
            decided_at_ms=step.decided_at_ms,
            kind=entry.record.kind,
            subject=entry.record.subject,
            client=entry.request_id.rpartition("/")[0],
            decision=encode_record(entry.record)[:DETAILS_LENGTH],
        )
        for step, position, entry in steps.find_entries(*_KINDS)
        if entry.request_id is not None and _is_admin_change(entry.record)
    )


def _is_admin_change(record: Record) -> bool:
    """Return whether a decision on request is an operator's, and not a part of what members and producers do."""
    match record:
        case GroupConfigured(by_member=by_member):
            return not by_member
        case MemberLeft(reason=reason):
            return reason == REMOVED
        case OffsetsCommitted(reason=reason):
            return reason == "reset"
        case TransactionMoved(reason=reason, status=status):  # the second row of an abort says that it is complete
            return reason is EndReason.OPERATOR and status is TransactionStatus.PREPARE_ABORT
    return True
