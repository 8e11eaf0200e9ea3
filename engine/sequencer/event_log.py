"""Log what a sequencer decides about groups, topics, dead letters and aborted transactions, for an operator."""

import logging
from collections import Counter

from ..protocol.values.dead_letters import MessagesDeadLettered
from ..protocol.values.groups import (
    GroupConfigured,
    GroupForgotten,
    MemberJoined,
    MemberLeft,
    PartitionsMoved,
    RebalanceCompleted,
)
from ..protocol.values.journal import JournalEntry, Step
from ..protocol.values.state import State
from ..protocol.values.topics import RecordsDeleted, TopicAltered, TopicCreated, TopicDeleted
from ..protocol.values.transactions import TransactionMoved, TransactionStatus

log = logging.getLogger("lakemq.serve")

_WHY_LEFT = {
    "left": "it has left",
    "removed": "an operator has removed it",
    "session": "it sent no heartbeat for its session timeout",
    "poll": "it did not poll for max.poll.interval.ms",
    "process": "its process has ended",
}
_LOGGED = frozenset(
    {
        GroupConfigured,
        GroupForgotten,
        MemberJoined,
        MemberLeft,
        MessagesDeadLettered,
        PartitionsMoved,
        RebalanceCompleted,
        RecordsDeleted,
        TopicAltered,
        TopicCreated,
        TopicDeleted,
        TransactionMoved,
    }
)
_MOST_SETTINGS = 500
"""Characters of settings in a line."""
_MOST_LINES = 100
"""Lines of a step. The tables have everything."""
_MOST_NAMES = 10
"""Partitions, and groups, in a line."""


class EventLog:
    """Logs the steps of one term, at info. For the thread that appends them."""

    def __init__(self) -> None:
        self._members: set[tuple[str, str]] = set()
        """Members that have joined in this term: a later record of theirs changes their wishes only."""
        self._rebalances: dict[str, tuple[int, str]] = {}
        """When and why partitions of a group began to move."""

    def note(self, step: Step, state: State) -> None:
        """Log the events of a step that has landed. Equal ones are one line, with their number.

        state: as of the step.
        """
        lines = Counter[str]()
        for entry in step.entries:
            if type(record := entry.record) not in _LOGGED:
                continue
            if isinstance(record, MessagesDeadLettered):
                target = record.dead_letter_topic
                line = f"Group {record.group}: messages of {record.topic} became dead letters of {target}"
                lines[line] += sum(count for part in record.parts for _, count in part.ranges)
            elif isinstance(record, RecordsDeleted):
                lines[f"{_describe_deletion(state, record)}{_name_client(entry)}"] += 1
            elif event := self._describe(entry, step.decided_at_ms):
                lines[event] += 1
        for line, count in lines.most_common(_MOST_LINES) if len(lines) > _MOST_LINES else lines.items():
            log.info(line if count == 1 else f"{line} ({count})", extra={"step": step.step})

    def _describe(self, entry: JournalEntry, now_ms: int) -> str | None:
        match entry.record:
            case MemberJoined() as joined:
                return self._describe_joining(joined)
            case MemberLeft(group=group, member_id=member_id, reason=reason):
                self._members.discard((group, member_id))
                return f"Group {group}: {member_id} is no member any more, because {_WHY_LEFT.get(reason, reason)}"
            case PartitionsMoved(group=group, reason=reason):
                self._rebalances.setdefault(group, (now_ms, reason))
            case RebalanceCompleted(group=group, generation=generation) if group in self._rebalances:
                begun_ms, reason = self._rebalances.pop(group)
                took_ms = now_ms - begun_ms
                return f"Group {group}: rebalanced within {took_ms} ms, reason {reason}, generation {generation}"
            case GroupConfigured(group=group, by_member=False):
                return f"Group {group} got settings{_name_client(entry)}"
            case GroupForgotten(group=group, reason=reason):
                self._rebalances.pop(group, None)
                return f"Group {group} is {reason}{_name_client(entry)}"
            case TopicCreated(topic=topic, partitions=partitions):
                return f"Topic {topic} is created with {partitions} partitions{_name_client(entry)}"
            case TopicAltered(topic=topic, partitions=partitions, config=config):
                settings = f"{config}"[:_MOST_SETTINGS]  # a schema may be long
                return f"Topic {topic} is altered: {partitions} partitions, settings {settings}{_name_client(entry)}"
            case TopicDeleted(topic=topic):
                return f"Topic {topic} is deleted{_name_client(entry)}"
            case TransactionMoved(status=TransactionStatus.PREPARE_ABORT, reason=reason) as moved:
                ended_by = "" if reason is None else f", by {reason.value}"
                return f"Transactional id {moved.transactional_id}: its transaction is aborted{ended_by}"
        return None

    def _describe_joining(self, joined: MemberJoined) -> str | None:
        member = joined.group, joined.member_id
        if member in self._members:
            return None
        self._members.add(member)
        if joined.replaces is not None:
            self._members.discard((joined.group, joined.replaces))
        place = "" if joined.host is None else f", process {joined.process_id} of {joined.host}"
        replaced = "" if joined.replaces is None else f", in place of {joined.replaces}"
        return f"Group {joined.group}: {joined.member_id} is a member{place}{replaced}"


def _describe_deletion(state: State, record: RecordsDeleted) -> str:
    """Return which offsets are deleted, by which setting, and which groups had not read them."""
    cuts = [f"{offset} in partition {partition}" for partition, offset in sorted(record.log_starts.items())]
    reason = f" by {record.reason}" if record.reason else ""
    lost = [f"{group} ({count} so far)" for group, count in sorted(_count_losses(state, record).items())]
    unread = f"; groups lost messages that they had not read: {_shorten(lost)}" if lost else ""
    return f"Topic {record.topic}: offsets are deleted{reason} below {_shorten(cuts)}{unread}"


def _count_losses(state: State, record: RecordsDeleted) -> dict[str, int]:
    """Return group -> deleted offsets that it had not read, of those that stand where offsets are deleted now."""
    lost, starts = Counter[str](), {(record.topic_id, p): start for p, start in record.log_starts.items()}
    for group, committed in state.offsets.items():
        for tp in starts.keys() & committed.keys():  # none for most groups, and there may be many
            if committed[tp].offset < starts[tp]:
                lost[group] += committed[tp].deleted_count
    for group in state.list_groups_with(record.topic_id):
        assignments = state.groups[group].assignments
        for tp in starts.keys() & assignments.keys() - state.offsets.get(group, {}).keys():
            lost[group] += assignments[tp].deleted_count
    return +lost


def _shorten(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _name_client(entry: JournalEntry) -> str:
    return "" if entry.request_id is None else f", by client {entry.request_id.rpartition('/')[0]}"
