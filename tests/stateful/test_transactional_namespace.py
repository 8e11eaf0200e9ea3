"""Clients' transactions on a real store, with a real sequencer stepped by hand, against a model; whatever is lost.

The real TransactionManager and ArrowPublisher ask through a requester without threads, whose answers get lost and
whose sequencer is killed. Checked after every step: a reader that was there all along sees of each partition what the
model says, committed (I3, I4) and not; stable offsets and high watermarks only go forward (I6); at the end of every
run a fresh reader sees the same, and projections equal the replay (I11, I12).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, get_args

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stateful.projections import assert_projections_are_the_replay
from stateful.runs import EXAMPLES, runs
from stateful.world import Killed, World

from lakemq.engine.client.fetch.arrow import fetch_arrow
from lakemq.engine.client.fetch.plan import Isolation, beginning_offsets, end_offsets, plan_fetch
from lakemq.engine.client.fetch.reader import Reader
from lakemq.engine.client.publish.arrow import ArrowPublisher, Spread
from lakemq.engine.client.publish.publication import Publication, Sequences
from lakemq.engine.client.publish.request import body_of
from lakemq.engine.client.publish.routing import RouteCache
from lakemq.engine.client.requester import Waiting, letter_of
from lakemq.engine.client.transactions.manager import TransactionManager
from lakemq.engine.protocol.errors import (
    InvalidProducerEpoch,
    ProducerFenced,
    Refusal,
    RequestTimedOut,
    TransactionAbortable,
    error_of,
)
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, Topic
from lakemq.engine.protocol.values.transactions import AbortTransaction

pytestmark = pytest.mark.slow

TIMEOUT_MS = 60_000
INLINE_MAX_BYTES = 250
POINTS = ["letters_taken", "rows_written", "step_written", "journal_appended", "answered", "letters_discarded"]

names = st.sampled_from(["x", "y"])
topics = st.sampled_from(["a", "b"])
picks = st.lists(st.integers(0, 3), min_size=1, max_size=3)
rarely = st.sampled_from([False, False, False, True])
mishaps = st.sampled_from([None, None, None, None, "unsent", "unanswered", *(f"sequencer.{point}" for point in POINTS)])


@dataclass
class ModelTransaction:
    outcome: str = "open"
    places: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass
class ModelLog:
    """By offset a message and its transaction, None where it has none; a marker is a message None."""

    rows: list[tuple[str | None, ModelTransaction | None]] = field(default_factory=list)
    start: int = 0

    @property
    def stable(self) -> int:
        opened = [at for at, (_, txn) in enumerate(self.rows) if txn is not None and txn.outcome == "open"]
        return max(min(opened, default=len(self.rows)), self.start)

    def shown(self, isolation: Isolation) -> list[tuple[int, str]]:
        committed = isolation == "read_committed"
        end = self.stable if committed else len(self.rows)
        return [
            (at, value)
            for at, (value, txn) in enumerate(self.rows[:end])
            if at >= self.start and value is not None and not (committed and txn and txn.outcome == "abort")
        ]


@dataclass
class Client:
    """A process that has taken a transactional id."""

    manager: TransactionManager
    transaction: ModelTransaction | None = None
    sequences: Sequences | None = None


class SteppedRequester:
    """Asks and steps the sequencer. mishap: what happens to the next letter, once; a point is where it is killed."""

    def __init__(self, machine: TransactionsMachine) -> None:
        self._machine, self.mishap = machine, None

    def ask(self, request: AnyRequest, rows: pa.Table | None = None) -> AnyResult:
        return self.submit(request, rows).result()

    def submit(self, request: AnyRequest, rows: pa.Table | None = None) -> Future[AnyResult]:
        return self.submit_all([(request, rows)])[0]

    def submit_all(self, requests: Sequence[tuple[AnyRequest, pa.Table | None]]) -> list[Future[AnyResult]]:
        waiting = [Waiting.of(request, rows) for request, rows in requests]
        mishap, self.mishap = self.mishap, None
        results: list[Any] = [] if mishap == "unsent" else self._exchange(waiting, mishap)
        for i, one in enumerate(waiting):
            if mishap in ("unsent", "unanswered"):
                one.future.set_exception(RequestTimedOut())
            elif isinstance(results[i], Refusal):
                one.future.set_exception(error_of(results[i]))
            else:
                one.future.set_result(results[i])
        return [one.future for one in waiting]

    def _exchange(self, waiting: list[Waiting], mishap: str | None) -> list[Any]:
        world, client_id = self._machine.world, self._machine.world.new_id()
        now_ms = world.clock.now_ms()
        world.namespace.mailbox.put(client_id, 1, letter_of(client_id, 1, waiting, now_ms), now_ms)
        if mishap and mishap.startswith("sequencer."):
            world.doomed = mishap
        for _ in range(3):
            self._machine.step()
            results = world.take_reply(client_id, 1)
            if results is not None:
                return results
        pytest.fail("no answer")


class TransactionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.requester = SteppedRequester(self)
        self.logs: dict[str, list[ModelLog]] = {"a": [ModelLog(), ModelLog()], "b": [ModelLog()]}
        self.clients: dict[str, Client] = {}
        self.zombies: list[Client] = []
        self.offsets: dict[str, dict[tuple[str, int], int]] = {}
        self.marks: dict[tuple[str, int], tuple[int, int]] = {}
        self.messages = 0
        self.counted: set[str] = set()
        self.publisher = ArrowPublisher(
            self.world.namespace.files,
            self.requester,  # type: ignore[arg-type]
            RouteCache(self.world.reader.refresh),
            self.world.clock,
            self.world.new_file_id,
            INLINE_MAX_BYTES,
            Spread(0),
        )

    @initialize()
    def begin(self) -> None:
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)
        for topic, logs in self.logs.items():
            self.requester.ask(CreateTopic(topic, len(logs)))
        for name in ("x", "y"):
            self.take_the_id(name, None)

    # -- the sequencer ----------------------------------------------------------------------------------

    def step(self) -> None:
        try:
            self.leader.step()
        except Killed:
            self.counted.add("killed")
            self.background.alive = False
            self.restart_it()
        self.world.doomed = ""
        self.world.remember_steps()

    def restart_it(self) -> None:
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)

    @rule(how=st.sampled_from(["resigned", "killed with work left", "killed"]))
    def restart(self, how: str) -> None:
        if how == "resigned":
            self.leader.resign()
        elif how == "killed":
            self.background.run()
        self.background.alive = False
        self.restart_it()

    @rule(ms=st.sampled_from([1, 400, 1500]))
    def project_and_merge(self, ms: int) -> None:
        self.world.clock.sleep(ms)
        self.step()
        self.background.run()

    @rule(name=names, topic=topics, picks=picks)
    def let_transactions_time_out(self, name: str, topic: str, picks: list[int]) -> None:
        """One at least."""
        self.publish_inside(name, topic, picks, None)
        self.world.clock.sleep(TIMEOUT_MS + 1)
        self.step()
        for name in sorted(self.clients):
            transaction = self.clients[name].transaction
            # nobody has heard of one that holds offsets only: they travel with the commit
            if transaction is not None and transaction.places and transaction.outcome == "open":
                self.end(transaction, "abort")
                self.counted.add("timeout")

    # -- topics and plain messages ----------------------------------------------------------------------

    def placed(self, topic: str, picks: list[int]) -> tuple[pa.Table, list[tuple[int, str]]]:
        """New messages as a table, and the partition and value of each; some are too long to ride in a letter."""
        self.messages += len(picks)
        count = len(self.logs[topic])
        rows = [(p % count, f"m{self.messages - i}" + "." * (p * 40)) for i, p in enumerate(picks)]
        return pa.table({"partition": [p for p, _ in rows], "value": [v for _, v in rows]}), rows

    def append(self, topic: str, rows: list[tuple[int, str]], transaction: ModelTransaction | None) -> None:
        for partition, value in rows:
            self.logs[topic][partition].rows.append((value, transaction))
            if transaction is not None:
                transaction.places.add((topic, partition))

    @rule(topic=topics, picks=picks)
    def publish_plain(self, topic: str, picks: list[int]) -> None:
        table, rows = self.placed(topic, picks)
        self.publisher.publish(Publication(topic), *body_of(table, topic, self.world.clock.now_ms()))
        self.append(topic, rows, None)

    def add_a_partition(self, topic: str) -> None:
        self.logs[topic].append(ModelLog())
        self.requester.ask(AlterTopic(topic, {}, len(self.logs[topic])))

    @rule(topic=topics, partition=st.integers(0, 3), share=st.sampled_from([0.3, 1.0]))
    def delete_records(self, topic: str, partition: int, share: float) -> None:
        partition %= len(self.logs[topic])
        log = self.logs[topic][partition]
        before = int(len(log.rows) * share)
        self.requester.ask(DeleteRecords(topic, {partition: before}))
        log.start = max(log.start, before)

    # -- transactions -----------------------------------------------------------------------------------

    def end(self, transaction: ModelTransaction | None, outcome: str, group: str | None = None) -> None:
        if transaction is None or transaction.outcome != "open":
            return
        transaction.outcome = outcome
        for topic, partition in transaction.places:
            self.logs[topic][partition].rows.append((None, None))
        if outcome == "commit" and group is not None and transaction.offsets:
            self.offsets.setdefault(group, {}).update(transaction.offsets)
        self.counted.add(outcome)

    @rule(name=names, mishap=mishaps)
    def take_the_id(self, name: str, mishap: str | None) -> None:
        """As a new process; the one before becomes a zombie."""
        manager = TransactionManager(self.requester, self.world.clock, name, TIMEOUT_MS, 1)  # type: ignore[arg-type]
        self.requester.mishap = mishap
        manager.initialize()
        if before := self.clients.get(name):
            self.end(before.transaction, "abort")
            self.zombies.append(before)
        self.clients[name] = Client(manager)

    def begun(self, client: Client) -> ModelTransaction:
        if not client.manager.is_open:
            ref = client.manager.begin()
            client.sequences = Sequences(ref.producer_id, ref.producer_epoch)
            client.transaction = ModelTransaction()
        assert client.transaction is not None
        return client.transaction

    def publish_part(self, client: Client, topic: str, table: pa.Table) -> None:
        """As a producer does."""
        body, asked = body_of(table, topic, self.world.clock.now_ms())
        with client.manager.part() as ref:
            self.publisher.send(Publication(topic, "fail", transaction=ref, sequences=client.sequences), body, asked)

    @rule(name=names, topic=topics, picks=picks, mishap=mishaps)
    def publish_inside(self, name: str, topic: str, picks: list[int], mishap: str | None) -> None:
        client = self.clients[name]
        transaction = self.begun(client)
        table, rows = self.placed(topic, picks)
        self.requester.mishap = mishap
        if transaction.outcome == "abort":
            with pytest.raises(TransactionAbortable):
                self.publish_part(client, topic, table)
            self.abort(name, None)
        else:
            self.publish_part(client, topic, table)
            self.append(topic, rows, transaction)

    @rule(name=names, topic=topics, share=st.floats(0, 1))
    def send_offsets(self, name: str, topic: str, share: float) -> None:
        client = self.clients[name]
        transaction = self.begun(client)
        offset = int(len(self.logs[topic][0].rows) * share)
        client.manager.add_offsets(f"group-{name}", {(topic, 0): offset})
        transaction.offsets[topic, 0] = offset

    @rule(name=names, topic=topics, picks=st.just([]) | picks, mishap=mishaps, refused=rarely, grows=rarely)
    def commit(self, name: str, topic: str, picks: list[int], mishap: str | None, refused: bool, grows: bool) -> None:
        """What is picked travels with the commit. refused: so does an offset that cannot be; grows: the topic does."""
        client = self.clients[name]
        transaction = self.begun(client)
        table, rows = self.placed(topic, picks)
        if grows and not refused and len(self.logs[topic]) < 5:
            self.publisher._routes.find(topic)
            self.add_a_partition(topic)
        if refused:
            self.publisher.forget_routes()  # so that what is picked is accepted all the same
            client.manager.add_offsets("refused", {(topic, 0): 1 << 40})
        self.requester.mishap = mishap
        if transaction.outcome == "abort":
            with pytest.raises(TransactionAbortable):
                self.commit_with(client, topic, table)
            self.abort(name, None)
        elif refused:
            with pytest.raises(TransactionAbortable):
                self.commit_with(client, topic, table)
            self.append(topic, rows, transaction)
            self.abort(name, None)
        else:
            self.commit_with(client, topic, table)
            self.append(topic, rows, transaction)
            self.end(transaction, "commit", f"group-{name}")
            client.transaction = None

    def commit_with(self, client: Client, topic: str, table: pa.Table) -> None:
        """As a producer does, until it is answered."""
        assert client.sequences is not None
        ref = client.manager.ref()
        while True:
            body, asked = body_of(table, topic, self.world.clock.now_ms())
            publication = Publication(topic, "fail", transaction=ref, sequences=client.sequences)
            parts = [self.publisher.prepare(publication, body, asked)] if table.num_rows else []
            if self.is_committed(client, parts):
                return
            self.counted.add("stale")
            self.publisher.forget_routes()

    def is_committed(self, client: Client, parts: list[Any]) -> bool:
        """Asked until it is answered; False: topics have changed."""
        patience_ms, client.manager._answer_timeout_ms = client.manager._answer_timeout_ms, -1
        while True:
            try:
                with client.manager.ending(commits=True):
                    return None not in client.manager.send_commit([(part.request, part.rows) for part in parts])
            except RequestTimedOut:
                self.counted.add("unanswered")
            finally:
                client.manager._answer_timeout_ms = patience_ms

    @rule(name=names, mishap=mishaps)
    def abort(self, name: str, mishap: str | None) -> None:
        client = self.clients[name]
        transaction = self.begun(client)
        self.requester.mishap = mishap
        client.manager.abort()
        self.end(transaction, "abort")
        client.transaction = None

    @rule(name=names)
    def abort_as_an_operator(self, name: str) -> None:
        """Its producer is fenced."""
        client = self.clients[name]
        transaction = client.transaction
        if transaction is None or not transaction.places or transaction.outcome != "open":
            return
        self.requester.ask(AbortTransaction(name))
        self.end(transaction, "abort")
        self.zombies.append(self.clients.pop(name))
        self.take_the_id(name, None)

    @rule(topic=topics, picks=picks, how=st.sampled_from(["publish", "commit", "abort"]))
    @precondition(lambda self: self.zombies)
    def wake_a_zombie(self, topic: str, picks: list[int], how: str) -> None:
        """Whatever it asks is refused, and changes nothing."""
        zombie = self.zombies.pop()
        if how == "abort" and not zombie.manager.is_open:
            return
        self.begun(zombie)
        table, _ = self.placed(topic, picks)
        ask = {
            "publish": lambda: self.publish_part(zombie, topic, table),
            "commit": lambda: self.commit_with(zombie, topic, table),
            "abort": zombie.manager.abort,
        }[how]
        with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
            ask()
        with pytest.raises((ProducerFenced, TransactionAbortable)):
            zombie.manager.ref()
        self.counted.add("zombie")

    # -- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def a_reader_sees_the_model(self) -> None:
        self.requester.mishap = None  # where nothing was asked
        if hasattr(self, "leader"):
            self.hold_against(self.world.reader, ["read_committed"])
            offsets = {
                group: {
                    (self.leader.state.topics[topic_id].topic, p): one.offset for (topic_id, p), one in mine.items()
                }
                for group, mine in self.leader.state.offsets.items()
            }
            assert offsets == self.offsets

    def hold_against(self, reader: Reader, isolations: Sequence[Isolation] = get_args(Isolation)) -> None:
        state = reader.refresh()
        for name, logs in self.logs.items():
            topic = state.topic(name)
            stable, high = topic.last_stable_offsets.tolist(), topic.high_watermarks.tolist()
            assert (stable, high) == ([log.stable for log in logs], [len(log.rows) for log in logs])
            for isolation in isolations:
                shown = self.shown(reader, topic, isolation)
                assert shown == {p: log.shown(isolation) for p, log in enumerate(logs)}, (name, isolation)
            for p, mark in enumerate(zip(stable, high, strict=True)):
                before = self.marks.get((name, p), (0, 0))
                assert before[0] <= mark[0] <= mark[1] >= before[1]
                self.marks[name, p] = mark

    def shown(self, reader: Reader, topic: Topic, isolation: Isolation) -> dict[int, list[tuple[int, str]]]:
        found: dict[int, list[tuple[int, str]]] = {p: [] for p in range(topic.partition_count)}
        plan = plan_fetch(reader, topic, isolation, beginning_offsets(topic), end_offsets(topic, isolation))
        for row in fetch_arrow(self.world.namespace.files, plan).to_pylist():
            found[row["partition"]].append((row["offset"], row["value"].decode()))
        return found

    def teardown(self) -> None:
        try:
            if hasattr(self, "leader"):
                self.hold_against(Reader(self.world.namespace.store, self.world.clock))
                self.leader.resign()
                self.world.remember_steps()
                self.hold_against(Reader(self.world.namespace.store, self.world.clock))
                assert_projections_are_the_replay(self.world.namespace.store, self.world.history)
            SEEN.update(self.counted)
        finally:
            self.world.close()


SEEN: set[str] = set()
"""What has happened in some run; few of them see everything."""


def test_transactions_against_the_model() -> None:
    run_state_machine_as_test(
        TransactionsMachine,
        settings=runs(5, 30),
    )
    if EXAMPLES >= 50:
        assert {"commit", "abort", "timeout", "killed", "stale", "unanswered", "zombie"} == SEEN
