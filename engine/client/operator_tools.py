"""The tools of operators on a connection: groups, transactions and delayed messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from lakemq.tables.storage.coordination.beats import Beats
from lakemq.tables.storage.coordination.overdue_notes import OverdueNotes

from ..namespace.namespace import Namespace
from ..namespace.processes.clock import Clock
from ..protocol.codec.beat import FencedMember, decode_fenced_members
from ..protocol.codec.overdue_member import OverdueMember, decode_overdue_members
from ..protocol.values.state import State
from .dead_letters import DeadLetters
from .delayed.delayed import DelayedMessages
from .fetch.fetcher import Fetcher
from .groups.groups import Groups
from .groups.rates import read_consumption
from .groups.resets import OffsetResets
from .groups.stall import MemberNotes
from .groups.stalls import list_missing_topics
from .observer import Observer
from .publish.arrow import ArrowPublisher
from .requests.requester import Requester
from .transactions.operations import Transactions

T = TypeVar("T")

ReadState = Callable[[], State]
"""Returns the whole state, with producers, transactions and groups."""


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
        resets = OffsetResets(read_state, self._fetcher.offsets_for_times, self._clock.now_ms)
        retention_ms = self._namespace.config.ms("offsets.retention.ms")
        store, time_ms = self._namespace.store, self._store_time_ms
        return Groups(
            read_state,
            self._requester,
            resets,
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

        return Observer(
            fetcher,
            self.make_groups,
            self.make_transactions,
            self.make_delayed,
            self.make_dead_letters(open_fetcher),
        )

    def _look(self, read: Callable[[State], T]) -> T:
        self._check_open()
        return self._fetcher.query(read)
