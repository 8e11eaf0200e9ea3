"""Stages of the demo that share work in groups, and that wait for reminders.

Processes share the flights and raise alerts: one joins late, one is killed in a transaction and comes back.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event

import pyarrow as pa
import pyarrow.compute as pc
from checks import Check, CheckFailed, Stage, check, parse_flights

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.transactions.scope import TransactionScope

SOURCE, TARGET, GROUP = "flights", "alerts", "delay-alerts"
DELAY_MINUTES = 60
KILLED = "Ben"
_BATCHES = 150
"""Batches that the flights make. They last for a minute, so that they outlast the events also on a slow machine."""
_REST_S = 1.0
"""How long a batch takes longer than it must, until the members are told to hurry."""
_PAUSE_S = 1.0
"""Between two events, so that the report's picture shows them apart."""
_PATIENCE_S = 240

_spawn = multiprocessing.get_context("spawn")


def run_member(path: str, name: str, max_records: int, hurry: Event, kill: Event | None) -> None:
    """Copy long delays from one topic to another, a transaction per batch, until the group has read all flights.

    hurry: no batch takes a rest any more. kill: the process kills itself in its next transaction.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def raise_alerts(messages: pa.Table, transaction: TransactionScope) -> None:
        delays = parse_flights(messages, pa.schema([("arr_delay", pa.int64())])).column("arr_delay")
        late = messages.filter(pc.greater(delays, DELAY_MINUTES))
        transaction.publish(TARGET, late.select(["key", "value", "timestamp"]))
        if kill is not None and kill.is_set():
            os.kill(os.getpid(), signal.SIGKILL)
        hurry.wait(_REST_S)

    with lakemq.connect(path) as mq:
        stream = mq.stream(GROUP, topics=[SOURCE], auto_offset_reset="earliest", client_id=name)
        transactional_id = f"{TARGET}-{name}"
        stream.foreach_batch(
            raise_alerts, transactional_id=transactional_id, max_records=max_records, available_now=True
        )


def _end_with_parent() -> None:
    """End this process when the demo that started it is gone, for example killed."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


@dataclass
class Team:
    """The members' processes, what they are told, and the events: seconds since 1970, what happened."""

    mq: Connection
    total: int
    hurry: Event = field(default_factory=_spawn.Event)
    kill: Event = field(default_factory=_spawn.Event)
    processes: dict[str, BaseProcess] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)

    def start(self, *names: str) -> None:
        """Start processes that become members of the group. Only one of them can be killed."""
        for name in names:
            kill = self.kill if name == KILLED else None
            arguments = (str(self.mq.namespace.path), name, max(1, self.total // _BATCHES), self.hurry, kill)
            self.processes[name] = _spawn.Process(target=run_member, args=arguments, daemon=True)
            self.processes[name].start()

    def wait_until(self, holds: Callable[[], bool], expected: str) -> None:
        """Wait for something. Raises CheckFailed when it takes too long, or when a member fails."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise CheckFailed(f"For {_PATIENCE_S} s it did not happen that {expected}.")
            for name, process in self.processes.items():
                if process.exitcode:
                    raise CheckFailed(f"{name} has ended with exit code {process.exitcode}.")
            time.sleep(0.05)

    def wait_for_owners(self, names: set[str]) -> None:
        """Wait until exactly these members share the partitions, and for a moment longer."""

        def do_share() -> bool:
            partitions = self.mq.groups.assignments(GROUP)
            is_settled = all(partition.state == "ready" for partition in partitions)
            return is_settled and {owner_name(partition.owner) for partition in partitions} == names

        self.wait_until(do_share, f"{', '.join(sorted(names))} share the partitions")
        time.sleep(_PAUSE_S)

    def kill_in_transaction(self, name: str) -> None:
        """Have a process killed with SIGKILL while it has an open transaction, which stays open until it comes back."""
        process = self.processes.pop(name)
        self.kill.set()
        self.wait_until(lambda: process.exitcode is not None, f"{name} is killed")
        self.kill.clear()
        if process.exitcode != -signal.SIGKILL:
            raise CheckFailed(f"{name} has ended with exit code {process.exitcode} before it was killed.")

    def has_ended(self) -> bool:
        """Return whether every process has ended by itself."""
        return all(process.exitcode is not None for process in self.processes.values())


def raise_alerts(mq: Connection, stage: Stage) -> Team:
    """Have processes copy long delays to a topic of their own, and disturb them. Raises CheckFailed."""
    mq.topics.create(TARGET, partitions=4, config={"retention.ms": -1})  # The flights are of 2013.
    mq.groups.create(GROUP, {"group.protocol": "cooperative"})
    team = Team(mq, sum(mq.end_offsets(SOURCE).values()))
    trio, all_four = {"Ann", KILLED, "Cem"}, {"Ann", KILLED, "Cem", "Dee"}
    acts: Sequence[tuple[Callable[..., None], Sequence[str], str, set[str]]] = (
        (team.start, ["Ann", KILLED, "Cem"], "Ann, Ben and Cem join", trio),
        (team.start, ["Dee"], "Dee joins", all_four),
        (team.kill_in_transaction, [KILLED], "Ben is killed with kill -9 in a transaction", all_four - {KILLED}),
        (team.start, [KILLED], "Ben comes back", all_four),
    )
    try:
        for act, names, event, owners in acts:
            act(*names)
            team.events.append((time.time(), event))
            stage.show(event)
            team.wait_for_owners(owners)
        stage.show("The members read the rest")
        team.hurry.set()
        team.wait_until(team.has_ended, "all members have ended")
        return team
    finally:
        for process in team.processes.values():
            process.kill()
            process.join()


def owner_name(member_id: str | None) -> str:
    """Return the name of a member: its id begins with it."""
    return (member_id or "nobody").partition("-")[0]


# Reminders of departures are delayed messages, on a clock that runs 100,000 times faster than the flights' own.
#
# The timestamp of a reminder is its due time. Where a flight was cancelled, its reminder is cancelled.


TOPIC, REMINDED = "reminders", "app"
SPEED = 100_000
DAYS = 10
"""So many take nine seconds."""
_BEGIN_S = 4
"""From publishing to the first departure: time to cancel."""
_DAY_MS = 86_400_000


def send_reminders(mq: Connection, flights: pa.Table) -> Check:
    """Publish the reminders of the first days, cancel some, and take them as they come. Raises CheckFailed."""
    mq.topics.create(TOPIC, 4, config={"delay.slot.ms": 20, "retention.ms": -1})
    hours_ms = flights.column("time_hour").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    departs_ms = pc.add(hours_ms, pc.multiply(flights.column("minute"), 60_000)).to_numpy()
    since_ms = departs_ms - departs_ms.min()
    is_early = since_ms < DAYS * _DAY_MS
    due_ms = int((time.time() + _BEGIN_S) * 1000) + since_ms[is_early] // SPEED
    flights = flights.filter(pa.array(is_early))
    times = pa.array(due_ms, pa.timestamp("ms", "UTC"))
    numbers = [str(number) for number in range(flights.num_rows)]
    rows = {"key": flights.column("tailnum"), "value": numbers, "timestamp": times, "deliver_at": times}
    receipts = {row["row"]: row["receipt"] for row in mq.publish(TOPIC, pa.table(rows)).receipts().to_pylist()}
    has_left = flights.column("dep_time").is_valid().to_pylist()
    never_left = [number for number in receipts if not has_left[number]]
    outcomes = mq.delayed.cancel_all([receipts[number] for number in never_left])
    cancelled = {number for number, outcome in zip(never_left, outcomes, strict=True) if outcome == "cancelled"}
    expected = sorted({*range(flights.num_rows)} - cancelled)
    with mq.consumer(REMINDED, topics=[TOPIC], protocol="queue", auto_offset_reset="earliest") as consumer:
        taken = _take(consumer, len(expected))
    evidence = f"{len(taken):,} taken, {len(cancelled):,} cancelled"
    return check("Every reminder is taken once, or was cancelled", sorted(taken) == expected, evidence)


def _take(consumer: QueueConsumer, expected_count: int) -> list[int]:
    """Take reminders until so many have come, and for a moment longer. Returns their numbers."""
    deadline_s, taken = time.monotonic() + _PATIENCE_S, list[int]()
    while (batch := consumer.poll(5_000, timeout_ms=300)) or len(taken) < expected_count:
        if time.monotonic() > deadline_s:
            raise CheckFailed(f"{len(taken)} of {expected_count} reminders came in {_PATIENCE_S} s.")
        taken += [int(message.value or b"-1") for message in batch]
        consumer.ack(batch)
    return taken
