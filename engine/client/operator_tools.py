"""What a connection has for operators: groups, transactions, delayed messages, and the observer of a namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from lakemq.tables.storage.coordination.beats import Beats, OverdueNotes

from ..namespace.clock import Clock
from ..namespace.namespace import Namespace
from ..namespace.process import ProcessBound
from ..protocol.codec.beat import FencedMember, OverdueMember, decode_fenced_members, decode_overdue_members
from ..protocol.values.state import State
from .dead_letters import DeadLetters
from .delayed import DelayedMessages
from .fetch.fetcher import Fetcher
from .groups.groups import Groups
from .groups.lag import read_consumption
from .groups.stalls import MemberNotes, list_missing_topics
from .publish.arrow import ArrowPublisher
from .requests.requester import Requester
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

    def __init__(self, fetcher: Fetcher, tools: OperatorTools, dead_letters: DeadLetters) -> None:
        """fetcher: of the whole state. tools: of the connection. dead_letters: read with the fetcher."""
        self._fetcher = fetcher
        self._state = State()
        self._groups = tools.make_groups(lambda: self._state)
        self._transactions = tools.make_transactions(lambda: self._state)
        self._delayed = tools.make_delayed(lambda: self._state)
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


class OperatorTools:
    """Makes the objects with which operators look at a namespace, and change it. Thread-safe."""

    def __init__(
        self,
        namespace: Namespace,
        requester: Requester,
        fetcher: Fetcher,
        clock: Clock,
        arrow_publisher: Callable[[], ArrowPublisher],
        check_open: Callable[[], None],
    ) -> None:
        """arrow_publisher: returns a new publisher; check_open: raises IllegalState once the connection is closed."""
        self._namespace, self._requester, self._fetcher, self._clock = namespace, requester, fetcher, clock
        self._arrow_publisher, self._check_open = arrow_publisher, check_open

    def make_transactions(self, read_state: ReadState) -> Transactions:
        """Return the operations on transactions."""
        return Transactions(self._requester, read_state, self._namespace.files.time_ms)

    def make_delayed(self, read_state: ReadState) -> DelayedMessages:
        """Return the operations on delayed messages."""
        return DelayedMessages(
            self._arrow_publisher,
            self._requester,
            read_state,
            self._look,
            lambda: self._fetcher.make_whole_reader().refresh,
            self._namespace,
            self._clock,
        )

    def make_groups(self, read_state: ReadState) -> Groups:
        """Return the operations on groups."""
        retention_ms = self._namespace.config.ms("offsets.retention.ms")
        store, time_ms = self._namespace.store, self._store_time_ms
        return Groups(
            read_state,
            self._requester,
            self._fetcher.offsets_for_times,
            retention_ms,
            time_ms,
            lambda: read_consumption(store, time_ms()),
            self._read_notes,
        )

    def _read_notes(self, state: State) -> MemberNotes:
        """Return what processes have noted of members, and how their missing topics were deleted."""
        groups = [state.groups[name] for name in state.groups_with_members]
        missing = {topic for group in groups for topic in list_missing_topics(state, group)}
        count = state.deleted_topic_count
        deletions = {topic: self._fetcher.describe_deletion(topic, count) for topic in missing}
        return MemberNotes(self._read_overdue(state), self._read_fence_notes(state), deletions)

    def _read_fence_notes(self, state: State) -> list[FencedMember]:
        """Return the members that were fenced while they lived; those whose note can be read."""
        if not any(state.groups[name].instances for name in state.groups_with_members):
            return []  # the usual case costs no request to the store
        fenced: list[FencedMember] = []
        with suppress(OSError):
            for body in Beats(self._namespace.files).read_notes():
                with suppress(ValueError):  # any user may put a file there
                    fenced += decode_fenced_members(body)
        return fenced

    def _read_overdue(self, state: State) -> list[OverdueMember]:
        """Return the members that the leader of a state has noted as overdue; none if the note cannot be read."""
        if not (state.leader and state.groups_with_members):
            return []
        try:
            body = OverdueNotes(self._namespace.files).read(state.leader_epoch)
            return [] if body is None else decode_overdue_members(body)
        except (OSError, ValueError):  # any user may put a file there, and the rest can be read without it
            return []

    def _store_time_ms(self) -> int:
        """Return the store's time; this machine's if the store cannot be written, as with a full disk."""
        try:
            return self._namespace.files.time_ms()
        except OSError:
            return self._clock.now_ms()

    def make_dead_letters(self, fetcher: Callable[[], Fetcher]) -> DeadLetters:
        """Return the operations on dead letters."""
        timeout_ms = self._namespace.config.ms("request.timeout.ms")
        return DeadLetters(self._requester, fetcher, self._clock, timeout_ms)

    def make_observer(self) -> Observer:
        """Return an observer, whose objects read the state that it follows."""
        self._check_open()
        fetcher = self._fetcher.make_whole_fetcher()

        def open_fetcher() -> Fetcher:
            self._check_open()
            return fetcher

        return Observer(fetcher, self, self.make_dead_letters(open_fetcher))

    def _look(self, read: Callable[[State], T]) -> T:
        self._check_open()
        return self._fetcher.query(read)
