"""The observer of a namespace, for operators, and what processes have noted of members."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from lakemq.tables.storage.coordination.beats import Beats, OverdueNotes
from lakemq.tables.storage.object_stores.files import Files

from ..namespace.process import ProcessBound
from ..protocol.codec.beat import FencedMember, OverdueMember, decode_fenced_members, decode_overdue_members
from ..protocol.values.state import State
from .dead_letters import DeadLetters
from .delayed import DelayedMessages
from .fetch.fetcher import Fetcher
from .groups.groups import Groups
from .groups.stalls import MemberNotes, list_missing_topics
from .transactions.operations import Transactions

# An observer looks at a whole namespace again and again: groups, transactions and delayed messages as of one step.
#
# `mq.groups` and its neighbours load the whole state for each call, which suits a command. An observer loads it once
# and follows the steps from then on, so that a look of a metrics endpoint or a console is cheap.


T = TypeVar("T")

ReadState = Callable[[], State]
"""Returns the whole state, with producers, transactions and groups."""


@dataclass(frozen=True)
class Observation:
    """The namespace as of one step. It is valid inside the block that yields it, and must not be kept.

    Attributes:
        state: topics, partitions, and who leads.
        decided_ms: steps that changed more than the lease, and that the tables lacked when they were loaded, each with
            when it was decided.
        groups, transactions, delayed: the same objects as those of the connection, which read this state. They also
            send requests.
    """

    state: State
    decided_ms: Mapping[int, int]
    groups: Groups
    transactions: Transactions
    delayed: DelayedMessages


class Observer(ProcessBound):
    """Looks of one process at a namespace. Thread-safe: one thread looks at a time.

    Attributes:
        dead_letters: the same object as that of the connection, which reads this state, and tables. Do not call it
            inside a look: it may move the state on.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        make_groups: Callable[[ReadState], Groups],
        make_transactions: Callable[[ReadState], Transactions],
        make_delayed: Callable[[ReadState], DelayedMessages],
        dead_letters: DeadLetters,
    ) -> None:
        """fetcher: of the whole state. make_groups, ...: as the connection makes them. dead_letters: read with it."""
        self._fetcher = fetcher
        self._state = State()
        self._groups = make_groups(lambda: self._state)
        self._transactions = make_transactions(lambda: self._state)
        self._delayed = make_delayed(lambda: self._state)
        self.dead_letters = dead_letters

    @contextmanager
    def look(self) -> Iterator[Observation]:
        """Yield the namespace as of the newest step. Other threads wait until the block ends.

        Raises:
            StorageError, NewerFormat, TableDamaged: the namespace cannot be read.
        """
        with self._fetcher.look() as reader:
            self._state = reader.state
            yield Observation(reader.state, reader.decided_ms, self._groups, self._transactions, self._delayed)

    def query(self, read: Callable[[State], T]) -> T:
        """Return what `read` makes of the state as of the newest step. Raises as `look`.

        `read` must not keep any part of the state, because later steps change it.
        """
        with self.look() as observation:
            return read(observation.state)

    def snapshot(self) -> State:
        """Return topics and partitions as of the newest step. Later steps do not change them. Raises as `look`."""
        return self.query(State.snapshot)


def read_member_notes(files: Files, describe_deletion: Callable[[str, int], str], state: State) -> MemberNotes:
    """Return what processes have noted of members, and how their missing topics were deleted."""
    groups = [state.groups[name] for name in state.groups_with_members]
    missing = {topic for group in groups for topic in list_missing_topics(state, group)}
    deletions = {topic: describe_deletion(topic, state.deleted_topic_count) for topic in missing}
    return MemberNotes(_read_overdue(files, state), _read_fence_notes(files, state), deletions)


def _read_fence_notes(files: Files, state: State) -> list[FencedMember]:
    """Return the members that were fenced while they lived; those whose note can be read."""
    if not any(state.groups[name].instances for name in state.groups_with_members):
        return []  # the usual case costs no request to the store
    fenced: list[FencedMember] = []
    with suppress(OSError):
        for body in Beats(files).read_notes():
            with suppress(ValueError):  # any user may put a file there
                fenced += decode_fenced_members(body)
    return fenced


def _read_overdue(files: Files, state: State) -> list[OverdueMember]:
    """Return the members that the leader of a state has noted as overdue; none if the note cannot be read."""
    if not (state.leader and state.groups_with_members):
        return []
    try:
        body = OverdueNotes(files).read(state.leader_epoch)
        return [] if body is None else decode_overdue_members(body)
    except (OSError, ValueError):  # any user may put a file there, and the rest can be read without it
        return []
