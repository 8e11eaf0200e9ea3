"""Transactions of clients on a real store, with a real sequencer stepped by hand, against a model.

The real TransactionManager and ArrowPublisher send through a requester without threads. Its answers get lost, and its
sequencer is killed. After every step a reader that was there all along sees in each partition what the model has,
committed (I3, I4) and not. Stable offsets and high watermarks only go forward (I6). At the end of every run a fresh
reader sees the same, and projections equal the replay (I11, I12).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

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
from stateful.model import transactions
from stateful.model.namespace import Transaction
from stateful.projections import assert_projections_are_the_replay
from stateful.runs import runs
from stateful.world import Killed, World

from lakemq.engine.client.publish.arrow import ArrowPublisher, KeylessRoundRobin
from lakemq.engine.client.requests.requester import PendingRequest, build_letter
from lakemq.engine.client.rows.forms import build_body
from lakemq.engine.client.rows.publication import Publication, SequenceCounters
from lakemq.engine.client.rows.routing import RouteCache
from lakemq.engine.client.transactions.manager import TransactionManager
from lakemq.engine.protocol.errors import (
    InvalidProducerEpoch,
    ProducerFenced,
    Refusal,
    RequestTimedOut,
    TransactionAbortable,
    error_from_refusal,
)
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords
from lakemq.engine.protocol.values.transactions import AbortTransaction

pytestmark = pytest.mark.slow

TIMEOUT_MS = 60_000
INLINE_MAX_BYTES = 250
POINTS = ["letters_taken", "rows_written", "step_put", "step_landed", "answered", "letters_discarded"]

names = st.sampled_from(["x", "y"])
topics = st.sampled_from(["a", "b"])
picks = st.lists(st.integers(0, 3), min_size=1, max_size=3)
rarely = st.sampled_from([False, False, False, True])
mishaps = st.sampled_from([None, None, None, None, "unsent", "unanswered", *(f"sequencer.{point}" for point in POINTS)])


@dataclass
class TransactionalClient:
    """A process that has taken a transactional id."""

    manager: TransactionManager
    transaction: Transaction | None = None
    sequences: SequenceCounters | None = None


class SteppedRequester:
    """A requester that steps the sequencer itself. mishap: what happens to the next letter; a crash point kills the
    sequencer.
    """

    def __init__(self, machine: TransactionsMachine) -> None:
        self._machine, self.mishap = machine, None

    def ask(self, request: AnyRequest, rows: pa.Table | None = None) -> AnyResult:
        return self.submit(request, rows).result()

    def submit(self, request: AnyRequest, rows: pa.Table | None = None) -> Future[AnyResult]:
        return self.submit_all([(request, rows)])[0]

    def submit_all(self, requests: Sequence[tuple[AnyRequest, pa.Table | None]]) -> list[Future[AnyResult]]:
        waiting = [PendingRequest.of(request, rows) for request, rows in requests]
        mishap, self.mishap = self.mishap, None
        results: list[Any] = [] if mishap == "unsent" else self._exchange(waiting, mishap)
        for i, pending in enumerate(waiting):
            if mishap in ("unsent", "unanswered"):
                pending.future.set_exception(RequestTimedOut())
            elif isinstance(results[i], Refusal):
                pending.future.set_exception(error_from_refusal(results[i]))
            else:
                pending.future.set_result(results[i])
        return [pending.future for pending in waiting]

    def _exchange(self, waiting: list[PendingRequest], mishap: str | None) -> list[Any]:
        world, client_id = self._machine.world, self._machine.world.new_id()
        now_ms = world.clock.now_ms()
        world.namespace.mailbox.put(client_id, 1, build_letter(client_id, 1, waiting, now_ms), now_ms)
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
        self.model = self.world.model
        self.requester = SteppedRequester(self)
        self.clients: dict[str, TransactionalClient] = {}
        self.zombies: list[TransactionalClient] = []
        self.messages = 0
        self.events: set[str] = set()
        self.publisher = ArrowPublisher(
            self.world.namespace.files,
            self.requester,  # type: ignore[arg-type]
            RouteCache(lambda find_routes: find_routes(self.world.reader.refresh())),
            self.world.clock,
            self.world.new_file_id,
            INLINE_MAX_BYTES,
            KeylessRoundRobin(0),
        )

    @initialize()
    def begin(self) -> None:
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)
        self.ask(CreateTopic("a", 2))
        self.ask(CreateTopic("b", 1))
        for name in ("x", "y"):
            self.take_the_id(name, None)

    def ask(self, request: AnyRequest) -> None:
        """Send a request about topics, which the model decides too. Callers keep track of messages and transactions."""
        result = self.requester.ask(request)
        self.model.step = self.leader.state.step
        assert result == self.model.decide(request, [], self.world.clock.now_ms())

    # -- the sequencer ----------------------------------------------------------------------------------

    def step(self) -> None:
        try:
            self.leader.step()
        except Killed:
            self.events.add("killed")
            self.background.alive = False
            self.start_another_sequencer()
        self.world.doomed = ""
        self.world.remember_steps()

    def start_another_sequencer(self) -> None:
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)

    @rule(how=st.sampled_from(["resigned", "killed with work left", "killed"]))
    def restart(self, how: str) -> None:
        if how == "resigned":
            self.leader.resign()
        elif how == "killed":
            self.background.run()
        self.background.alive = False
        self.start_another_sequencer()

    @rule(ms=st.sampled_from([1, 400, 1500]))
    def project_and_merge(self, ms: int) -> None:
        self.world.clock.sleep(ms)
        self.step()
        self.background.run()

    @rule(name=names, topic=topics, picks=picks)
    def let_transactions_time_out(self, name: str, topic: str, picks: list[int]) -> None:
        """At least one transaction times out."""
        self.publish_inside(name, topic, picks, None)
        self.world.clock.sleep(TIMEOUT_MS + 1)
        self.step()
        for name in sorted(self.clients):
            transaction = self.clients[name].transaction
            # the sequencer does not know a transaction that holds only offsets: they travel with the commit
            if transaction is not None and self.is_in_a_log(transaction) and transaction.outcome == "open":
                self.end(transaction, "aborted")
                self.events.add("timeout")

    # -- topics and plain messages ----------------------------------------------------------------------

    def build_messages(self, topic: str, picks: list[int]) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Return new messages as a table, and the partition and value of each. Some are too long for a letter."""
        self.messages += len(picks)
        count = self.model.find_topic(topic).partitions
        rows = [(p % count, f"m{self.messages - i}" + "." * (p * 40)) for i, p in enumerate(picks)]
        return pa.table({"partition": [p for p, _ in rows], "value": [v for _, v in rows]}), rows

    def append(self, topic: str, rows: list[tuple[int, str]], transaction: Transaction | None) -> None:
        for partition, value in rows:
            self.model.find_topic(topic).logs[partition].add([value], transaction)

    def is_in_a_log(self, transaction: Transaction) -> bool:
        return any(log.holds(transaction) for log in self.model.logs().values())

    @rule(topic=topics, picks=picks)
    def publish_plain(self, topic: str, picks: list[int]) -> None:
        table, rows = self.build_messages(topic, picks)
        self.publisher.publish(Publication(topic), *build_body(table, topic, self.world.clock.now_ms()))
        self.append(topic, rows, None)

    def add_a_partition(self, topic: str) -> None:
        self.ask(AlterTopic(topic, {}, self.model.find_topic(topic).partitions + 1))

    @rule(topic=topics, partitions=st.integers(1, 3))
    def change_partitions(self, topic: str, partitions: int) -> None:
        self.ask(AlterTopic(topic, {}, partitions, force=True))

    @rule(topic=topics, partition=st.integers(0, 3), share=st.sampled_from([0.3, 1.0]))
    def delete_records(self, topic: str, partition: int, share: float) -> None:
        logs = self.model.find_topic(topic).logs
        partition %= len(logs)
        self.ask(DeleteRecords(topic, {partition: int(len(logs[partition]) * share)}))

    # -- transactions -----------------------------------------------------------------------------------

    def end(self, transaction: Transaction | None, outcome: str) -> None:
        if transaction is not None and transaction.outcome == "open":
            transactions.close(self.model, transaction, outcome)
            self.events.add(outcome)

    @rule(name=names, mishap=mishaps)
    def take_the_id(self, name: str, mishap: str | None) -> None:
        """Take the id as a new process. The process before becomes a zombie."""
        manager = TransactionManager(
            self.requester,  # type: ignore[arg-type]
            self.world.clock,
            name,
            TIMEOUT_MS,
            1,
            lambda _: None,  # the sequencer decides
        )
        self.requester.mishap = mishap
        manager.initialize()
        if before := self.clients.get(name):
            self.end(before.transaction, "aborted")
            self.zombies.append(before)
        self.clients[name] = TransactionalClient(manager)

    def ensure_transaction(self, client: TransactionalClient) -> Transaction:
        if not client.manager.is_open:
            ref = client.manager.begin()
            client.sequences = SequenceCounters(ref.producer_id, ref.producer_epoch)
            client.transaction = Transaction()
        assert client.transaction is not None
        return client.transaction

    def publish_part(self, client: TransactionalClient, topic: str, table: pa.Table) -> None:
        """Publish a part as a producer does."""
        body, partitions = build_body(table, topic, self.world.clock.now_ms())
        with client.manager.add_part() as ref:
            self.publisher.send(
                Publication(topic, "fail", transaction=ref, sequences=client.sequences), body, partitions
            )

    @rule(name=names, topic=topics, picks=picks, mishap=mishaps)
    def publish_inside(self, name: str, topic: str, picks: list[int], mishap: str | None) -> None:
        client = self.clients[name]
        transaction = self.ensure_transaction(client)
        table, rows = self.build_messages(topic, picks)
        self.requester.mishap = mishap
        if transaction.outcome == "aborted":
            with pytest.raises(TransactionAbortable):
                self.publish_part(client, topic, table)
            self.abort(name, None)
        else:
            self.publish_part(client, topic, table)
            self.append(topic, rows, transaction)

    @rule(name=names, topic=topics, share=st.floats(0, 1))
    def send_offsets(self, name: str, topic: str, share: float) -> None:
        client = self.clients[name]
        transaction = self.ensure_transaction(client)
        topic_id, log = self.model.find_topic(topic).topic_id, self.model.find_topic(topic).logs[0]
        offset = int(len(log) * share)
        client.manager.add_offsets(f"group-{name}", {(topic, 0): offset})
        transaction.offsets.setdefault(f"group-{name}", {})[topic_id, 0] = offset

    @rule(name=names, topic=topics, picks=st.just([]) | picks, mishap=mishaps, refused=rarely, grows=rarely)
    def commit(self, name: str, topic: str, picks: list[int], mishap: str | None, refused: bool, grows: bool) -> None:
        """Commit together with the picked messages.

        refused: an offset that cannot be committed travels with them. grows: the topic gets a partition meanwhile.
        """
        client = self.clients[name]
        transaction = self.ensure_transaction(client)
        table, rows = self.build_messages(topic, picks)
        if grows and not refused and len(self.model.find_topic(topic).logs) < 5:
            self.publisher._routes.find(topic)
            self.add_a_partition(topic)
        if refused:
            self.publisher.forget_routes()  # so that the picked messages are accepted all the same
            client.manager.add_offsets("refused", {(topic, 0): 1 << 40})
        self.requester.mishap = mishap
        if transaction.outcome == "aborted":
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
            self.end(transaction, "committed")
            client.transaction = None

    def commit_with(self, client: TransactionalClient, topic: str, table: pa.Table) -> None:
        """Commit as a producer does, until there is an answer."""
        assert client.sequences is not None
        ref = client.manager.ref()
        while True:
            body, partitions = build_body(table, topic, self.world.clock.now_ms())
            publication = Publication(topic, "fail", transaction=ref, sequences=client.sequences)
            parts = [self.publisher.prepare(publication, body, partitions)] if table.num_rows else []
            if self.is_committed(client, parts):
                return
            self.events.add("stale")
            self.publisher.forget_routes()

    def is_committed(self, client: TransactionalClient, parts: list[Any]) -> bool:
        """Ask until there is an answer. Return False if topics have changed."""
        requests = client.manager._requests
        patience_ms, requests._answer_timeout_ms = requests._answer_timeout_ms, -1
        while True:
            try:
                with client.manager.ending(commits=True):
                    return None not in client.manager.send_commit([(part.request, part.rows) for part in parts])
            except RequestTimedOut:
                self.events.add("unanswered")
            finally:
                requests._answer_timeout_ms = patience_ms

    @rule(name=names, mishap=mishaps)
    def abort(self, name: str, mishap: str | None) -> None:
        client = self.clients[name]
        transaction = self.ensure_transaction(client)
        self.requester.mishap = mishap
        client.manager.abort()
        self.end(transaction, "aborted")
        client.transaction = None

    @rule(name=names)
    def abort_as_an_operator(self, name: str) -> None:
        """Abort as an operator does. The producer is fenced."""
        client = self.clients[name]
        transaction = client.transaction
        if transaction is None or not self.is_in_a_log(transaction) or transaction.outcome != "open":
            return
        self.requester.ask(AbortTransaction(name))
        self.end(transaction, "aborted")
        self.zombies.append(self.clients.pop(name))
        self.take_the_id(name, None)

    @rule(topic=topics, picks=picks, how=st.sampled_from(["publish", "commit", "abort"]))
    @precondition(lambda self: self.zombies)
    def wake_a_zombie(self, topic: str, picks: list[int], how: str) -> None:
        """All requests of a zombie are refused, and change nothing."""
        zombie = self.zombies.pop()
        if how == "abort" and not zombie.manager.is_open:
            return
        self.ensure_transaction(zombie)
        table, _ = self.build_messages(topic, picks)
        ask = {
            "publish": lambda: self.publish_part(zombie, topic, table),
            "commit": lambda: self.commit_with(zombie, topic, table),
            "abort": zombie.manager.abort,
        }[how]
        with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
            ask()
        with pytest.raises((ProducerFenced, TransactionAbortable)):
            zombie.manager.ref()
        self.events.add("zombie")

    # -- invariants -------------------------------------------------------------------------------------

    @invariant()
    def a_reader_sees_the_model(self) -> None:
        self.requester.mishap = None  # no request has used it
        if hasattr(self, "leader"):
            self.world.check_reader(self.world.reader, ["read_committed"])
            self.world.check_marks(self.leader.state)
            self.world.check_offsets(self.leader.state)

    def teardown(self) -> None:
        try:
            if hasattr(self, "leader"):
                self.world.check_reader(self.world.new_reader())
                self.leader.resign()
                self.world.remember_steps()
                self.world.check_reader(self.world.new_reader())
                assert_projections_are_the_replay(self.world.namespace.store, self.world.history)
            SEEN.update(self.events)
        finally:
            self.world.close()


SEEN: set[str] = set()
"""Events of all runs so far. Few runs that are drawn have all of them."""


def play_everything() -> None:
    """Play a run that has every event, so that drawn runs need not."""
    machine = TransactionsMachine()
    try:
        machine.begin()
        for play_rule in (
            lambda: machine.send_offsets("x", "a", 1.0),
            lambda: machine.publish_inside("x", "a", [0, 1], None),
            lambda: machine.commit("x", "b", [0], "unanswered", False, False),
            lambda: machine.send_offsets("x", "a", 1.0),
            lambda: machine.commit("x", "a", [1], None, False, True),
            lambda: machine.publish_inside("y", "b", [0], "sequencer.step_landed"),
            lambda: machine.take_the_id("y", None),
            lambda: machine.wake_a_zombie("a", [0], "commit"),
            lambda: machine.let_transactions_time_out("x", "a", [0]),
        ):
            play_rule()
            machine.a_reader_sees_the_model()
        assert machine.model.offsets["group-x"] == {(1, 0): 2}
    finally:
        machine.teardown()


@pytest.mark.nightly
def test_transactions_against_the_model() -> None:
    play_everything()
    run_state_machine_as_test(
        TransactionsMachine,
        settings=runs(5, 30),
    )
    assert {"committed", "aborted", "timeout", "killed", "stale", "unanswered", "zombie"} == SEEN
