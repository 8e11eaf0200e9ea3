"""Track the open sequencers, producers and group members of a connection, and close them with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from ..namespace.process import OwnLock, check_same_process, end_block
from ..protocol.errors import IllegalState
from .consume.open_members import OpenMember
from .producer.producers import OpenProducers
from .producer.record_producer import RecordProducer

if TYPE_CHECKING:
    from ..sequencer.serving import Serving

Closable = TypeVar("Closable", "RecordProducer", "Serving", "OpenMember")


class OpenObjects:
    """The objects that are open on a connection. Thread-safe.

    They belong to the process that made them. A forked process gets IllegalState.
    """

    def __init__(self, start_serving: Callable[[], Serving]) -> None:
        """start_serving: starts a sequencer, also while the connection closes."""
        self._start_serving = start_serving
        self._pid = os.getpid()
        self._lock = OwnLock("This connection")
        self._is_closed = False
        self.serving: list[Serving] = []
        self.producers = OpenProducers(self._serve_again)
        self.members: WeakSet[OpenMember] = WeakSet()
        """Each is kept by its consumer, and by what closes it if that is garbage."""

    def check_process(self) -> None:
        """Raise IllegalState in a forked process."""
        check_same_process(self._pid, "This connection")

    def check_open(self) -> None:
        """Raise IllegalState if the connection is closed, or in a forked process."""
        self.check_process()
        if self._is_closed:
            raise IllegalState("This connection is closed.")

    def register(self, closable: Closable, keep: Callable[[Closable], None]) -> Closable:
        """Close the object with the connection; now, with IllegalState, if that is closed already."""
        with self._lock.own:
            if not self._is_closed:
                keep(closable)
                return closable
        closable.close()
        raise IllegalState("This connection is closed.")

    def close(self, shared: Sequence[Callable[[], object]]) -> None:
        """Close members and producers, then what they share, then the sequencers.

        If this process served before, but members or producers still need answers, a sequencer runs until they have
        them. An error of one object does not keep the others from being closed. After Ctrl-C the others close in a
        daemon thread.

        Raises:
            IllegalState: the call comes from a callback of a producer. Nothing is closed.
            LakeMQError: the first error of the closed objects.
        """
        if os.getpid() != self._pid:
            return  # everything belongs to the parent process
        with self._lock.own:
            if self._is_closed:
                return
            producers = list(self.producers)
            for producer in producers:
                producer._check_can_wait()
            self._is_closed = True
        for producer in producers:
            producer._stop_accepting()
        members = list(self.members)
        if any(member.has_to_leave for member in members) or self.producers.have_open_work():
            self._serve_again()
        calls = iter(
            (
                *(member.close for member in members),
                *(producer.close for producer in producers),
                *shared,
                *(serving.close for serving in self.serving),
            )
        )
        try:
            _close_each(calls)
        except KeyboardInterrupt as interrupt:  # the calls that are left would wait, too, each for its own Ctrl-C
            end_block(type(interrupt), lambda: _close_each(calls))
            self.producers.give_up()
            raise

    def _serve_again(self) -> None:
        """Serve until the connection is closed, if it has served before and does not serve any more.

        In `with connect() as mq, mq.serving():` the sequencer ends first. Requests that the closing connection sends
        would then wait for their timeouts, because there may be no other sequencer.
        """
        if self.serving and all(serving.is_closed for serving in self.serving):
            self.serving.append(self._start_serving())


def _close_each(calls: Iterator[Callable[[], object]]) -> None:
    """Make these calls, and raise their first error at the end. KeyboardInterrupt is raised at once."""
    errors: list[BaseException] = []
    for close in calls:
        try:
            close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]
