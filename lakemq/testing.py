"""Test applications: a namespace of their own, and a clock that tests move. Also a plugin of pytest.

    def test_an_unpaid_order_is_reminded_after_a_day(mq, mq_clock):
        mq.topics.create("reminders", 1)
        mq.delayed.schedule("reminders", "order 7", delay_ms=86_400_000)
        mq_clock.advance(days=1)
        assert [message.value for message in read_all(mq, "reminders")] == [b"order 7"]

pytest finds the fixtures where LakeMQ is installed. It imports this module at its start, so heavy imports are in
functions.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lakemq.engine.namespace.clock import Clock, SystemClock

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.consume.group_consumer import MemberConsumer
    from lakemq.engine.client.fetch.fetch_result import Message

TIMEOUT_S = 10.0
"""How long helpers wait, by the machine's clock, unless their caller says otherwise."""

QUICK_SETTINGS = {
    "engine.tick.ms": 1,
    "engine.idle.ms": 10,
    "project.interval.ms": 50,
    "retention.check.interval.ms": 1_000,
}
"""Settings with which the sequencer of `serve` looks often, so that tests do not wait."""

STOP_TIMEOUT_S = 30.0
"""How long `run_in_thread` waits for the end: longer than a worker lets its handlers go on."""

SLOT_MS = 1_000
"""Delays end at multiples of this, unless a topic has another `delay.slot.ms`."""


class _Lost(NamedTuple):
    """A member without heartbeats, and when its session ends by the test's clock."""

    group: str
    member_id: str
    ends_ms: int


class MovableClock(SystemClock):
    """The machine's clock, which goes on, and which a test puts ahead.

    Attributes:
        ahead_ms: how far it is ahead of the machine's clock.
    """

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._mq: Connection | None = None
        self._lost: list[_Lost] = []

    def now_ms(self) -> int:
        """Return the time of the test, in epoch milliseconds."""
        return super().now_ms() + self.ahead_ms

    def steady_ms(self) -> int:
        """Return milliseconds that only go forward."""
        return super().steady_ms() + self.ahead_ms

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Put the clock ahead to a whole second, and return when what is due by then has happened.

        Delayed messages are released, schedules publish what is due, and messages given back with a delay may be
        delivered. Messages expire, and transactions and the sessions of lost members time out. Open consumers of this
        process stay in their groups, although they did not poll meanwhile. What threads of the sequencer do follows
        soon: wait for the removal of old messages, and for dead letters.

        First `wait_until_idle` for each group with a worker. A message that its worker gives back after the clock has
        moved waits from then on, until you advance again.

        Args:
            days: these and the others are added up.
            hours: as days.
            minutes: as days.
            seconds: as days.

        Raises:
            ValueError: the clock would go back.
            TimeoutError: due messages were not released in time.

        Example:
            >>> wait_until_idle(mq, "ship")  # doctest: +SKIP
            >>> mq_clock.advance(minutes=30)  # doctest: +SKIP
        """
        from lakemq.errors import GroupIdNotFound, UnknownMemberId

        if self._mq is None:
            raise ValueError("The clock belongs to no namespace that is served.")
        passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if passed < timedelta():
            raise ValueError(f"The clock goes only forward: found {passed.total_seconds():g} s.")
        end_ms = self.ahead_ms + passed // timedelta(milliseconds=1)
        end_ms += -(super().now_ms() + end_ms) % SLOT_MS
        for member in sorted(self._lost, key=lambda lost: lost.ends_ms):
            if member.ends_ms - super().now_ms() <= end_ms:
                self._lost.remove(member)
                self.ahead_ms = max(self.ahead_ms, member.ends_ms - super().now_ms())
                with suppress(GroupIdNotFound, UnknownMemberId):  # it has left
                    self._mq.groups.remove_members(member.group, [member.member_id])
        self.ahead_ms = max(self.ahead_ms, end_ms)
        self._let_pass(self._mq)

    def lose(self, consumer: MemberConsumer) -> None:
        """Stop the heartbeats of a member, as if its process was killed. Its session ends when you advance the clock.

        Args:
            consumer: of a group, in this process. If it polls again after its session, it joins again.
        """
        membership = consumer._member.membership
        membership._stop_heartbeat()
        ends_ms = self.now_ms() + membership.options.session_timeout_ms
        self._lost.append(_Lost(consumer.group, consumer.member_id, ends_ms))

    def _let_pass(self, mq: Connection) -> None:
        """Let the sequencer decide a step, by whose time readers judge, and all that is due before it."""
        from lakemq.errors import GroupIdNotFound

        now_ms = self.now_ms()
        with suppress(GroupIdNotFound):
            mq.groups.remove_members("-", ["-"])  # is refused, and by that decided

        def is_released() -> bool:
            state = mq._whole_state()
            return not state.schedules.is_due(now_ms) and not any(
                range_.published.first_due_ms <= now_ms
                and not (range_.is_open or range_.released_count or range_.cancelled)
                for range_ in state.delays.ranges
            )

        wait_until(is_released, "delayed and recurring messages that are due")


# Waiting and looking.


class DeadLetter(NamedTuple):
    """A dead letter that is open: neither sent back nor purged.

    Attributes:
        reason: `rejected`, `given_up` or `expired`.
        error: the text that the consumer gave, or "".
        topic: where the message came from.
    """

    value: bytes | None
    key: bytes | None
    reason: str
    error: str
    group: str
    topic: str
    delivery_count: int


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds. A costly one is asked less often.

    Raises TimeoutError after `timeout_s` by the machine's clock. It names `what` was waited for.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        began_s = time.monotonic()
        if condition():
            return
        if began_s >= deadline_s:
            raise TimeoutError(f"Waited {timeout_s:g} s for {what}.")
        time.sleep(max(0.005, time.monotonic() - began_s))


def wait_until_idle(mq: Connection, group: str, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a group has nothing to do: no message is unread or unacknowledged.

    Messages that were given back and wait for their time do not count. The group may not exist yet.

    Raises:
        TimeoutError: it had something to do. The error names partitions, and what holds the group up.
    """
    from lakemq.engine.client.groups.lag import is_idle

    def check() -> bool:
        return mq._fetcher.query_groups(lambda state: is_idle(state, group, mq._clock.now_ms()))

    try:
        wait_until(check, "", timeout_s)
    except TimeoutError:
        if group not in mq.groups.list():
            raise TimeoutError(f"Waited {timeout_s:g} s for group {group!r}, which does not exist.") from None
        unfinished = [f"{row.topic}-{row.partition} has {row.lag} left" for row in mq.groups.lag(group) if row.lag]
        stalls = [str(stall) for stall in mq.groups.stalls(group)]
        reasons = "; ".join([*unfinished, *stalls]) or "it has no topics"
        raise TimeoutError(f"Waited {timeout_s:g} s for group {group!r} to be idle: {reasons}.") from None


def read_all(mq: Connection, topic: str) -> list[Message]:
    """Return the committed messages of a topic, by partition and offset."""
    return list(mq.fetch(topic))


def read_dead_letters(
    mq: Connection, group: str | None = None, at_least: int = 0, timeout_s: float = TIMEOUT_S
) -> list[DeadLetter]:
    """Return the open dead letters, by topic, partition and offset.

    Args:
        mq: a connection.
        group: the group that gave them up. Default: all groups.
        at_least: wait until there are so many; TimeoutError if there are fewer.
        timeout_s: how long, by the machine's clock.
    """
    letters: list[DeadLetter] = []

    def are_enough() -> bool:
        letters[:] = [letter for letter in _list_dead_letters(mq) if group in (None, letter.group)]
        return len(letters) >= at_least

    try:
        wait_until(are_enough, "", timeout_s)
    except TimeoutError:
        of_group = "" if group is None else f" of group {group!r}"
        text = f"Waited {timeout_s:g} s for {at_least} dead letters{of_group}: there are {len(letters)}."
        hint = "If a retry waits, its worker was busy when the clock moved: wait_until_idle first, then advance."
        raise TimeoutError(f"{text} {hint}") from None
    return letters


def _list_dead_letters(mq: Connection) -> Iterator[DeadLetter]:
    for topic in sorted({count.topic for count in mq.dead_letters.counts()}):
        for row in mq.dead_letters.all(topic).to_pylist():
            yield DeadLetter(
                row["value"],
                row["key"],
                row["reason"],
                row["error"] or "",
                row["consumer_group"],
                row["source_topic"],
                row["delivery_count"],
            )


# The namespace, and the fixtures.


@contextmanager
def run_in_thread(run: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run a worker, or a loop of yours, in a thread until the block ends.

    Args:
        run: takes the event that stops it.

    Raises:
        BaseException: what `run` has raised, at the end of the block.
        TimeoutError: it has not ended 30 s after the event.

    Example:
        >>> with run_in_thread(lambda stop: mq.run_worker(print, ["orders"], group="g", stop=stop)):  # doctest: +SKIP
        ...     wait_until_idle(mq, "g")
    """
    stop, end = threading.Event(), Future[object]()

    def call() -> None:
        try:
            end.set_result(run(stop))
        except BaseException as error:
            end.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        wait_until(end.done, "the end of the thread", STOP_TIMEOUT_S)
        end.result()


@contextmanager
def serve(path: Path, clock: Clock | None = None, settings: Mapping[str, Any] | None = None) -> Iterator[Connection]:
    """Open a namespace, which is created if it does not exist, and serve it in this process.

    Args:
        path: its folder.
        clock: of the connection and the sequencer. Default: the machine's. A MovableClock also moves the time of the
            store and of connections that this process opens meanwhile.
        settings: the engine's settings, and defaults of topics and groups.
    """
    from lakemq.engine.client import connection
    from lakemq.engine.client.consume import worker
    from lakemq.engine.namespace.config import load_config
    from lakemq.engine.namespace.namespace import open_namespace
    from lakemq.tables.storage.object_stores import local_files

    config = load_config(overrides={**QUICK_SETTINGS, **(settings or {})})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_POLL_MS", 20)  # a stop waits for the poll, and each test stops its worker
        if isinstance(clock, MovableClock):
            # Also objects that are there seem written now, so that none is removed before its time.
            written_ms = local_files._modified_ms_of
            patch.setattr(local_files, "_modified_ms_of", lambda status: written_ms(status) + clock.ahead_ms)
            patch.setattr(connection, "SystemClock", lambda: clock)
        with connection.Connection(open_namespace(str(path), config, create=True), clock=clock) as mq:
            if isinstance(clock, MovableClock):
                clock._mq = mq
            mq.serving()
            yield mq


@pytest.fixture(scope="session")
def _mq_folder() -> Iterator[Path]:
    """A folder for namespaces, in memory if the system has such a place, with an empty namespace to copy."""
    from lakemq.engine.namespace.config import load_config
    from lakemq.engine.namespace.namespace import open_namespace

    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="lakemq-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        open_namespace(f"{folder}/empty", load_config(), create=True)
        yield Path(folder)


@pytest.fixture
def mq_settings() -> dict[str, Any]:
    """Settings of the namespace `mq`. Override this fixture to change them."""
    return {}


@pytest.fixture
def mq_clock() -> MovableClock:
    """The clock of the namespace `mq`: `mq_clock.advance(minutes=30)`."""
    return MovableClock()


@pytest.fixture
def mq(_mq_folder: Path, mq_clock: MovableClock, mq_settings: dict[str, Any]) -> Iterator[Connection]:
    """A connection to an empty namespace of this test, with a sequencer and the clock `mq_clock`."""
    with tempfile.TemporaryDirectory(dir=_mq_folder) as folder:
        path = Path(folder, "mq")
        shutil.copytree(_mq_folder / "empty", path)
        with serve(path, mq_clock, mq_settings) as connection:
            yield connection
