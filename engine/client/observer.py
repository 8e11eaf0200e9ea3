"""An observer looks at a whole namespace again and again: groups, transactions and delayed messages as of one step.

`mq.groups` and its neighbours load the whole state for each call, which suits a command. An observer loads it once and
follows the steps from then on, so that a look of a metrics endpoint or a console is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ..namespace.processes.process import ProcessBound
from ..protocol.values.state import State
from .dead_letters import DeadLetters
from .delayed.delayed import DelayedMessages
from .fetch.fetcher import Fetcher
from .groups.groups import Groups
from .transactions.operations import Transactions

T = TypeVar("T")

ReadState = Callable[[], State]


@dataclass(frozen=True)
class Observation:
    """The namespace as of one step. It is valid inside the block that yields it, and must not be kept.

    Attributes:
        state: topics, partitions, and who leads.
        decided_step: the last step that changed more than the lease; 0 if the tables held it when they were loaded.
        groups, transactions, delayed: the same objects as those of the connection, which read this state. They also
            send requests.
    """

    state: State
    decided_step: int
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
        """fetcher: of the whole state. dead_letters: read with it."""
        self._fetcher = fetcher
        self._state = State()
        self._groups = make_groups(self._read_state)
        self._transactions = make_transactions(self._read_state)
        self._delayed = make_delayed(self._read_state)
        self.dead_letters = dead_letters

    @contextmanager
    def look(self) -> Iterator[Observation]:
        """Yield the namespace as of the newest step. Other threads wait until the block ends.

        Raises:
            StorageError, NewerFormat, TableDamaged: the namespace cannot be read.
        """
        with self._fetcher.look() as reader:
            self._state = reader.state
            yield Observation(reader.state, reader.decided_step, self._groups, self._transactions, self._delayed)

    def query(self, read: Callable[[State], T]) -> T:
        """Return what `read` makes of the state as of the newest step. Raises as `look`.

        `read` must not keep any part of the state, because later steps change it.
        """
        with self.look() as observation:
            return read(observation.state)

    def snapshot(self) -> State:
        """Return topics and partitions as of the newest step. Later steps do not change them. Raises as `look`."""
        return self.query(State.snapshot)

    def _read_state(self) -> State:
        return self._state
