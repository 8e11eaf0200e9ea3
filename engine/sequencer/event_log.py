"""Log what a sequencer decides about groups, topics, dead letters and aborted transactions, for an operator."""

from __future__ import annotations

import logging
from collections import Counter

from ..protocol.values.consuming.groups import (
    GroupConfigured,
    GroupForgotten,
    MemberJoined,
    MemberLeft,
    PartitionsMoved,
    RebalanceCompleted,
)
from ..protocol.values.journal import JournalEntry, Step
from ..protocol.values.queues.dead_letters import MessagesDeadLettered
from ..protocol.values.topics import TopicAltered, TopicCreated, TopicDeleted
from ..protocol.values.transactions import TransactionMoved, TransactionStatus

log = logging.getLogger("lakemq.serve")

_WHY_LEFT = {
    "left": "it has left",
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


class EventLog:
    """Logs the steps of one term, at info. For the thread that appends them."""

    def __init__(self) -> None:
        self._members: set[tuple[str, str]] = set()
        """Members that have joined in this term: a later record of theirs changes their wishes only."""
        self._rebalances: dict[str, tuple[int, str]] = {}
        """When and why partitions of a group began to move."""

    def note(self, step: Step) -> None:
        """Log the events of a step that has landed. Equal ones are one line, with their number."""
        lines = Counter[str]()
        for entry in step.entries:
            if type(record := entry.record) not in _LOGGED:
                continue
            if isinstance(record, MessagesDeadLettered):
                target = record.dead_letter_topic
                line = f"Group {record.group}: messages of {record.topic} became dead letters of {target}"
                lines[line] += sum(count for part in record.parts for _, count in part.ranges)
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


def _name_client(entry: JournalEntry) -> str:
    return "" if entry.request_id is None else f", by client {entry.request_id.rpartition('/')[0]}"
