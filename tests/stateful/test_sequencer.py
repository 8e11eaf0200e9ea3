"""The real store and the real sequencer against the model, with random requests, retries, restarts and take-overs.

Checked: I1 and I2 (every log is the model's, message by message), I5 (in the order sent), I7 as far as offsets exist
(marks only go forward), I11 (the same through merges of files, made after every few commits), I12 (at the end of every
run, projections equal the replay).

LAKEMQ_STATEFUL_EXAMPLES=200 tries more than the few examples of every day, and others each time.
LAKEMQ_STATEFUL_SHRINK=1 shortens a failure, which takes minutes.
"""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stateful.asking import Asked, Publisher, topic_requests
from stateful.model.namespace import Client
from stateful.projections import assert_projections_are_the_replay
from stateful.runs import runs
from stateful.world import EXPIRATION_MS, EXPIRY_INTERVAL_MS, GAP_MS, LEASE_MS, Killed, World

from lakemq.engine.namespace import crash
from lakemq.engine.protocol.errors import NotLeader, Refusal
from lakemq.engine.protocol.values.clients import Answered, ClientRemoved
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import Produce, Published
from lakemq.engine.protocol.values.producers import InitProducer, ProducerExpired
from lakemq.engine.protocol.values.topics import CreateTopic

pytestmark = pytest.mark.slow

POINTS = [
    point for point in crash.POINTS if point.startswith(("sequencer.", "projector.", "housekeeping.", "finalizing."))
]
CLIENTS = 3
clients = st.integers(0, CLIENTS - 1)


class SequencerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = self.world.model
        self.ids = [f"client-{i}" for i in range(CLIENTS)]
        self.numbers: dict[str, int] = {}
        self.drafts: dict[int, list[Asked]] = {}
        self.sent: dict[tuple[str, int], list[Asked]] = {}
        self.open: set[tuple[str, int]] = set()
        self.unanswered: set[tuple[str, int]] = set()
        self.deaths: set[str] = set()
        self.repeats: set[tuple[str, int]] = set()
        self.publisher = Publisher(self.world)
        self.published: list[Asked] = []
        self.accepted: list[Asked] = []
        self.settled_steps = self.made_ids = 0
        self.zombies: list[Any] = []

    @initialize()
    def begin(self) -> None:
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)
        self.ask(0, Asked(CreateTopic("a", 2), [], []))
        self.ask(0, Asked(InitProducer(), [], []))
        self.step()

    # -- requests of clients ----------------------------------------------------------------------------

    def ask(self, client: int, draft: Asked) -> None:
        self.drafts.setdefault(client, []).append(draft)

    @rule(client=clients, request=topic_requests)
    def handle_topics(self, client: int, request: AnyRequest) -> None:
        self.ask(client, Asked(request, [], []))

    @rule(data=st.data(), client=clients, at_once=st.booleans())
    @precondition(lambda self: self.model.active())
    def publish(self, data: st.DataObject, client: int, at_once: bool) -> None:
        draft = self.publisher.draw(data)
        self.published.append(draft)
        self.ask(client, draft)
        if at_once:
            self.step()

    @rule(data=st.data())
    @precondition(lambda self: self.model.active())
    def publish_a_lot(self, data: st.DataObject) -> None:
        """Every client publishes twice, and one repeats a request that was accepted before."""
        for client in range(CLIENTS):
            self.publish(data, client, False)
            self.publish(data, client, False)
        if self.accepted:
            self.publish_again(0, 0, True)
        self.step()

    @rule(client=clients, index=st.integers(0, 1000), accepted=st.booleans())
    @precondition(lambda self: self.published)
    def publish_again(self, client: int, index: int, accepted: bool) -> None:
        """Send the same request in another letter, as a client without an answer does."""
        pool = self.accepted[-4:] if accepted and self.accepted else self.published
        self.ask(client, pool[index % len(pool)])

    @rule(client=clients)
    def start_a_new_client(self, client: int) -> None:
        self.send(client)
        self.made_ids += 1
        self.ids[client] = f"client-{client}-{self.made_ids}"

    @rule(index=st.integers(0, 1000))
    @precondition(lambda self: self.sent)
    def put_a_letter_again(self, index: int) -> None:
        """Put the very same letter again, as a mailbox may have it after a loss of power."""
        client_id, _ = key = sorted(self.sent)[index % len(self.sent)]
        if key not in self.open | self.repeats and client_id in self.model.clients:
            self.put(key)
            self.repeats.add(key)

    def put(self, key: tuple[str, int]) -> None:
        requests, inline = [], []
        for draft in self.sent[key]:
            request = draft.request
            if draft.inline and isinstance(request, Produce):
                request = msgspec.structs.replace(request, first_row=len(inline))
                inline += draft.inline
            requests.append(request)
        self.world.put(*key, requests, inline)

    def flush(self) -> None:
        """Send the drafts of every client. A client has one letter under way."""
        for client in sorted(self.drafts):
            self.send(client)

    def send(self, client: int) -> None:
        """Send the client's drafts as one letter."""
        drafts = self.drafts.pop(client, [])
        if drafts:
            client_id = self.ids[client]
            key = (client_id, self.numbers.get(client_id, 0) + 1)
            self.numbers[client_id] = key[1]
            self.sent[key] = drafts
            self.open.add(key)
            self.put(key)

    # -- the sequencer ----------------------------------------------------------------------------------

    @rule()
    def step(self) -> None:
        self.flush()
        self.step_without_letters()

    def step_without_letters(self) -> None:
        """Decide letters that wait already. Afterwards every letter is decided and answered."""
        for _ in range(4):
            try:
                self.leader.step()
                break
            except NotLeader:  # a zombie's last projection came in between, so it must lead again
                assert self.zombies
                self.world.lead(self.leader)
        else:
            pytest.fail("The leader cannot keep its lease.")
        self.settle()
        assert not self.open
        for key in sorted(self.unanswered):
            self.check_answer_of(key)
        assert not self.unanswered

    @rule(ms=st.sampled_from([0, 1, 150, 400, 1500]))
    def let_time_pass(self, ms: int) -> None:
        self.world.clock.sleep(ms)
        self.background.run()

    @rule(late=st.none() | st.integers(0, CLIENTS - 1))
    def let_all_expire(self, late: int | None) -> None:
        """All clients expire, except one whose letter comes in the very step in which the others do."""
        self.step()
        self.step()
        spared = [] if late is None else [self.ids[late]]
        self.world.clock.sleep(EXPIRATION_MS + EXPIRY_INTERVAL_MS)
        if late is not None:
            self.ask(late, Asked(InitProducer(), [], []))
        self.step()
        self.step()
        assert list(self.model.clients) == spared
        assert len(self.model.producers) == len(spared)
        for client in range(CLIENTS):
            if client != late:
                self.start_a_new_client(client)

    @rule(resigned=st.booleans(), finished=st.booleans())
    def restart(self, resigned: bool, finished: bool) -> None:
        """Start a new sequencer after one that resigned, or was killed with or without work in the background."""
        if resigned:
            self.leader.resign()
        elif finished:
            self.background.run()
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)
        self.settle()

    @rule(point=st.sampled_from(POINTS))
    def die(self, point: str) -> None:
        """The leader is killed at a point of a step or a projection. Readers see the right messages before and
        after.
        """
        self.world.doomed = point
        self.flush()
        try:
            for _ in range(3):
                self.leader.step()
                self.world.remember_steps()  # before the next step cuts the journal
                self.background.run()
                self.world.clock.sleep(LEASE_MS // 2)
        except Killed:
            self.deaths.add(point)
        self.background.alive, self.world.doomed = False, ""
        self.settle()
        self.read_everything()
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)
        self.step_without_letters()

    @rule(projected=st.booleans())
    def take_over(self, projected: bool) -> None:
        """Another sequencer leads. The last leader does not know yet, and has work in the background."""
        self.zombies.append((self.leader, self.background))
        self.leader, self.background = self.world.sequencer()
        self.world.lead(self.leader)
        if projected:
            self.step()
            self.background.run()
        self.settle()

    @rule(background_first=st.booleans())
    @precondition(lambda self: self.zombies)
    def wake_a_zombie(self, background_first: bool) -> None:
        """The zombie takes letters and decides them, and must not get further."""
        zombie, background = self.zombies.pop(0)
        if background_first:
            background.run()
        self.ask(0, Asked(CreateTopic("zombie", 1), [], []))
        self.flush()
        waiting = len(self.world.namespace.files.list("mailbox"))
        with pytest.raises(NotLeader):
            zombie.step()
        assert not zombie.leads
        assert not zombie.try_lead()
        background.run()
        assert len(self.world.namespace.files.list("mailbox")) == waiting
        assert not any(self.world.take_answer(*key) for key in self.open)
        self.step_after_zombie()

    def step_after_zombie(self) -> None:
        self.zombies.append((self.leader, self.background))
        self.step()
        self.zombies.pop()

    @rule()
    def leave_a_gap(self) -> None:
        """Letter 2 comes without letter 1. It waits, then the client is ended, and so is letter 3."""
        self.step()
        self.made_ids += 1
        client_id = f"gap-{self.made_ids}"
        for number in (2, 3):
            self.world.put(client_id, number, [InitProducer()], [])
        self.step()
        assert self.world.take_answer(client_id, 2) is None
        self.world.clock.sleep(GAP_MS + 1)
        self.step()
        for number in (2, 3):
            (refusal,) = self.world.take_answer(client_id, number) or [None]
            assert refusal.error == "CLIENT_ENDED"

    # -- invariants -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Give the journal's new steps to the model, and compare its answers with the answers."""
        self.world.remember_steps()
        for step in self.world.history[self.settled_steps :]:
            self.model.step = step.step
            for entry in step.entries:
                self.settle_record(entry.record, step.decided_at_ms)
        self.settled_steps = len(self.world.history)
        for client_id, number in self.repeats:
            client = self.model.clients.get(client_id)
            results = self.world.take_answer(client_id, number)
            if results is not None:
                assert client
                assert (number, outcomes(results)) == (client.number, client.results)
        self.repeats = {
            key for key in self.repeats if any(key[0] in n for n in self.world.namespace.files.list("mailbox"))
        }

    def settle_record(self, record: Any, now_ms: int) -> None:
        if isinstance(record, Answered) and not record.client_id.startswith("gap-"):
            key = (record.client_id, record.number)
            assert key in self.open, "decided twice"
            self.open.remove(key)
            last = self.model.clients.get(record.client_id)
            assert record.number == (last.number if last else 0) + 1
            expected = [self.model.decide(a.request, a.rows, now_ms) for a in self.sent[key]]
            assert outcomes(record.results) == expected
            self.model.clients[record.client_id] = Client(record.number, expected, now_ms)
            self.unanswered.add(key)
            self.accepted += [a for a, r in zip(self.sent[key], expected, strict=True) if isinstance(r, Published)]
        elif isinstance(record, ClientRemoved) and record.reason == "expired":
            client = self.model.clients.pop(record.client_id)
            assert now_ms - client.seen_at_ms > EXPIRATION_MS
        elif isinstance(record, ProducerExpired):
            producer = self.model.producers.pop(record.producer_id)
            assert now_ms - producer.seen_at_ms > EXPIRATION_MS

    def check_answer_of(self, key: tuple[str, int]) -> None:
        results = self.world.take_answer(*key)
        assert results is not None
        assert outcomes(results) == self.model.clients[key[0]].results
        self.unanswered.remove(key)

    @rule()
    def read_everything(self) -> None:
        """A reader that was there all along, and one that has just started, see every message at its offset."""
        for reader in (self.world.reader, self.world.new_reader()):
            self.world.check_reader(reader, ["read_committed"])

    @invariant()
    def the_state_equals_the_model(self) -> None:
        if hasattr(self, "leader"):
            self.world.check_state(self.leader.state)

    def teardown(self) -> None:
        try:
            if hasattr(self, "leader"):
                self.step_after_zombie()
                self.read_everything()
                self.leader.resign()
                self.settle()
                self.read_everything()
                self.world.finalize()
                self.world.check_final_messages()
                assert_projections_are_the_replay(self.world.namespace.store, self.world.history)
        finally:
            self.world.close()


def outcomes(results: list[Any]) -> list[Any]:
    """Return results in the model's form: a refusal is the name of its error."""
    return [r.error if isinstance(r, Refusal) else r for r in results]


@pytest.mark.hypothesis  # so that `make test-nightly` runs it with all its examples
def test_sequencer_answers_as_the_model() -> None:
    run_state_machine_as_test(SequencerMachine, settings=runs(30, 25))
