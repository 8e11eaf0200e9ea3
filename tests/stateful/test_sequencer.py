"""The real store and the real sequencer against the model: whatever is asked, retried, restarted or taken over.

Checked: I1 and I2 (every log is the model's, message by message), I5 (in the order sent), I7 as far as offsets exist
(marks only go forward), I11 (the same through merges of files, made after every few commits), I12 (at the end of every
run, projections equal the replay).

LAKEMQ_STATEFUL_EXAMPLES=200 looks further than the few examples of every day, and elsewhere each time;
LAKEMQ_STATEFUL_SHRINK=1 makes what fails shorter, which takes minutes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stateful.model import Model, ModelClient
from stateful.projections import assert_projections_are_the_replay
from stateful.world import EXPIRATION_MS, EXPIRY_INTERVAL_MS, GAP_MS, LEASE_MS, Killed, World

from lakemq.engine import crash
from lakemq.engine.datafile import file_name
from lakemq.engine.protocol.errors import NotLeader
from lakemq.engine.protocol.records import Answered, ClientRemoved, ProducerExpired
from lakemq.engine.protocol.requests import (
    AlterTopic,
    AnyRequest,
    ApplicationVersion,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    InitProducer,
    Produce,
    ProducerDone,
    ProducerSequences,
    Ranges,
    Refusal,
    RefusedRows,
    TopicRef,
)
from lakemq.engine.reader import Reader

EXAMPLES = int(os.environ.get("LAKEMQ_STATEFUL_EXAMPLES", "0"))
SHRINK = "LAKEMQ_STATEFUL_SHRINK" in os.environ
NAMES = ("a", "b", "c")
POINTS = [point for point in crash.POINTS if point.startswith(("sequencer.", "projector.", "housekeeping."))]
CLIENTS = 3


@dataclass
class Asked:
    """A request, the messages that ride with it, and all messages of its files (or those that ride)."""

    request: AnyRequest
    inline: list[str]
    rows: list[list[str]]


class SequencerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world, self.model = World(), Model()
        self.ids = [f"client-{i}" for i in range(CLIENTS)]
        self.numbers: dict[str, int] = {}
        self.drafts: dict[int, list[Asked]] = {}
        self.sent: dict[tuple[str, int], list[Asked]] = {}
        self.open: set[tuple[str, int]] = set()
        self.unanswered: set[tuple[str, int]] = set()
        self.deaths: set[str] = set()
        self.repeats: set[tuple[str, int]] = set()
        self.producers: list[int] = []
        self.published: list[Asked] = []
        self.lost: set[str] = set()
        self.settled_steps = self.messages = self.made_ids = 0
        self.marks: dict[tuple[int, int], tuple[int, int]] = {}
        self.zombies: list[Any] = []

    @initialize()
    def begin(self) -> None:
        self.leader, self.backstage = self.world.sequencer()
        self.world.lead(self.leader)
        self.ask(0, Asked(CreateTopic("a", 2), [], []))
        self.ask(0, Asked(InitProducer(), [], []))
        self.step()

    # -- what clients ask -------------------------------------------------------------------------------

    def ask(self, client: int, asked: Asked) -> None:
        self.drafts.setdefault(client, []).append(asked)

    @rule(
        client=st.integers(0, CLIENTS - 1),
        topic=st.sampled_from(NAMES),
        partitions=st.integers(1, 3),
        fan=st.booleans(),
    )
    def create_topic(self, client: int, topic: str, partitions: int, fan: bool) -> None:
        self.ask(client, Asked(CreateTopic(topic, partitions, {}, ["x/>"] if fan else []), [], []))

    @rule(
        client=st.integers(0, CLIENTS - 1),
        topic=st.sampled_from(NAMES),
        partitions=st.none() | st.integers(1, 4),
        subscriptions=st.sampled_from([None, [], ["y/*"]]),
    )
    def alter_topic(self, client: int, topic: str, partitions: int | None, subscriptions: list[str] | None) -> None:
        self.ask(client, Asked(AlterTopic(topic, {}, partitions, subscriptions), [], []))

    @rule(client=st.integers(0, CLIENTS - 1), topic=st.sampled_from(NAMES))
    def delete_topic(self, client: int, topic: str) -> None:
        self.ask(client, Asked(DeleteTopic(topic), [], []))

    @rule(
        client=st.integers(0, CLIENTS - 1),
        topic=st.sampled_from(NAMES),
        before=st.dictionaries(st.integers(0, 2), st.integers(-1, 6), min_size=1),
    )
    def delete_records(self, client: int, topic: str, before: dict[int, int]) -> None:
        self.ask(client, Asked(DeleteRecords(topic, before), [], []))

    @rule(client=st.integers(0, CLIENTS - 1))
    def init_producer(self, client: int) -> None:
        self.ask(client, Asked(InitProducer(), [], []))

    @rule(
        data=st.data(),
        client=st.integers(0, CLIENTS - 1),
        in_file=st.booleans(),
        lost=st.sampled_from([False] * 9 + [True]),
    )
    @precondition(lambda self: self.model.active())
    def publish(self, data: st.DataObject, client: int, in_file: bool, lost: bool) -> None:
        """Messages of 1 or 2 topics; each message is a range of its own, or many are one."""
        topics = data.draw(st.lists(st.sampled_from(self.model.active()), min_size=1, max_size=2, unique_by=id))
        picks = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4), label="partition of each message")
        picks = picks if data.draw(st.sampled_from([True] * 7 + [False]), label="any message") else []
        refused = data.draw(st.integers(0, 1), label="refused messages")
        values = [f"m{self.messages + i}" for i in range(len(picks) + refused)]
        self.messages += len(values)
        ranges = self.ranges([len(t.logs) for t in topics], picks, in_file, data.draw(st.booleans(), label="long runs"))
        request = Produce(
            [TopicRef(t.topic, t.topic_id, len(t.logs)) for t in topics],
            ranges,
            self.world.history[-1].step,
            refused=[RefusedRows("a", 0 if in_file else -1, len(picks), refused, "E", "why")] if refused else [],
            application=data.draw(
                st.none() | st.builds(ApplicationVersion, st.just("app"), st.integers(0, 5), st.just("a"))
            ),
        )
        request = msgspec.structs.replace(request, producer=self.sequences(data, request))
        if in_file and values:
            file = self.world.write_file(values)
            request = msgspec.structs.replace(request, files=[file])
            if lost:
                self.world.namespace.files.delete([file_name(file.batch_id)])
                self.model.lost_files.add(file.batch_id)
        asked = Asked(request, [] if in_file else values, [values])
        self.published.append(asked)
        self.ask(client, asked)

    def ranges(self, partition_counts: list[int], picks: list[int], in_file: bool, long_runs: bool) -> Ranges:
        ranges = Ranges()
        for topic, count in enumerate(partition_counts):
            placed = [pick % count for pick in picks]
            row = 0
            while row < len(placed):
                end = row + 1
                while long_runs and end < len(placed) and placed[end] == placed[row]:
                    end += 1
                values = (topic, placed[row], 0 if in_file else -1, row, end - row, 1000, 9000)
                for column, value in zip(ranges.__struct_fields__, values, strict=True):
                    getattr(ranges, column).append(value)
                row = end
        return ranges

    def sequences(self, data: st.DataObject, request: Produce) -> ProducerSequences | None:
        """The next ones, as a client knows them; now and then a gap, or another epoch."""
        if not self.producers or not data.draw(st.sampled_from([True, True, False]), label="idempotent"):
            return None
        producer_id = data.draw(st.sampled_from(self.producers[-2:]))
        known = self.model.producers.get(producer_id)
        epoch = max(0, (known.epoch if known else 0) + data.draw(st.sampled_from([0] * 8 + [1, -1]), label="epoch"))
        skip = data.draw(st.sampled_from([0] * 8 + [1]), label="gap")
        units = sorted(set(zip(request.ranges.topic, request.ranges.partition, strict=True)))
        bases = []
        for topic, partition in units:
            key = (request.topics[topic].topic_id, partition)
            last = known.appended.get(key, [])[-1:] if known and known.epoch == epoch else []
            bases.append(sum(last[0][:2]) + skip if last else skip)
        return ProducerSequences(producer_id, epoch, [t for t, _ in units], [p for _, p in units], bases)

    @rule(client=st.integers(0, CLIENTS - 1), which=st.integers(0, 3) | st.integers(0, 1000))
    @precondition(lambda self: self.published)
    def publish_again(self, client: int, which: int) -> None:
        """The same request in another letter, as a client does that got no answer."""
        self.ask(client, self.published[-1 - which % len(self.published)])

    @rule(client=st.integers(0, CLIENTS - 1))
    def start_a_new_client(self, client: int) -> None:
        self.flush()
        self.made_ids += 1
        self.ids[client] = f"client-{client}-{self.made_ids}"

    @rule(which=st.integers(0, 1000))
    @precondition(lambda self: self.sent)
    def put_a_letter_again(self, which: int) -> None:
        """The very same letter, as a mailbox has it after a loss of power."""
        client_id, _ = key = sorted(self.sent)[which % len(self.sent)]
        if key not in self.open | self.repeats and client_id in self.model.clients:
            self.put(key)
            self.repeats.add(key)

    def put(self, key: tuple[str, int]) -> None:
        requests, inline = [], []
        for asked in self.sent[key]:
            request = asked.request
            if asked.inline and isinstance(request, Produce):
                request = msgspec.structs.replace(request, first_row=len(inline))
                inline += asked.inline
            requests.append(request)
        self.world.put(*key, requests, inline)

    def flush(self) -> None:
        """Each client's drafts leave as one letter."""
        for client, drafts in self.drafts.items():
            client_id = self.ids[client]
            number = self.numbers[client_id] = self.numbers.get(client_id, 0) + 1
            self.sent[client_id, number] = drafts
            self.open.add((client_id, number))
            self.put((client_id, number))
        self.drafts = {}

    # -- what the sequencer does ------------------------------------------------------------------------

    @rule()
    def step(self) -> None:
        self.flush()
        self.step_without_letters()

    def step_without_letters(self) -> None:
        """Only such as wait already. When this returns, every letter is decided and answered."""
        for _ in range(4):
            try:
                self.leader.step()
                break
            except NotLeader:  # a zombie's last projection got in between: it must lead again
                assert self.zombies
                self.world.lead(self.leader)
        else:
            pytest.fail("The leader cannot keep its lease.")
        self.settle()
        assert not self.open
        for key in sorted(self.unanswered):
            self.hold_against_the_reply(key)
        assert not self.unanswered

    @rule()
    def run_backstage(self) -> None:
        self.backstage.run()

    @rule(ms=st.sampled_from([1, 150, 400, 1500]))
    def let_time_pass(self, ms: int) -> None:
        self.world.clock.sleep(ms)

    @rule(late=st.none() | st.integers(0, CLIENTS - 1))
    def let_all_expire(self, late: int | None) -> None:
        """But for the one whose letter comes in the very step in which they expire."""
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
        """A new sequencer in place of one that handed over, or was killed with work backstage or without."""
        if resigned:
            self.leader.resign()
        elif finished:
            self.backstage.run()
        self.leader, self.backstage = self.world.sequencer()
        self.world.lead(self.leader)
        self.settle()

    @rule(point=st.sampled_from(POINTS))
    def die(self, point: str) -> None:
        """Killed at a point of a step or of a projection; what readers see is right meanwhile and afterwards."""
        self.world.doomed = point
        self.flush()
        try:
            for _ in range(3):
                self.leader.step()
                self.world.remember_steps()  # before the next step cuts the journal
                self.backstage.run()
                self.world.clock.sleep(LEASE_MS // 2)
        except Killed:
            self.deaths.add(point)
        self.backstage.alive, self.world.doomed = False, ""
        self.settle()
        self.read_everything()
        self.leader, self.backstage = self.world.sequencer()
        self.world.lead(self.leader)
        self.step_without_letters()

    @rule(projected=st.booleans())
    def take_over(self, projected: bool) -> None:
        """Another one leads; the one that led does not know yet, and has work backstage."""
        self.zombies.append((self.leader, self.backstage))
        self.leader, self.backstage = self.world.sequencer()
        self.world.lead(self.leader)
        if projected:
            self.step()
            self.backstage.run()
        self.settle()

    @rule(backstage_first=st.booleans())
    @precondition(lambda self: self.zombies)
    def wake_a_zombie(self, backstage_first: bool) -> None:
        """It takes letters and decides them, and must not get further."""
        zombie, backstage = self.zombies.pop(0)
        if backstage_first:
            backstage.run()
        self.ask(0, Asked(CreateTopic("zombie", 1), [], []))
        self.flush()
        waiting = len(self.world.namespace.files.list("mailbox"))
        with pytest.raises(NotLeader):
            zombie.step()
        assert not zombie.leads
        assert not zombie.try_lead()
        backstage.run()
        assert len(self.world.namespace.files.list("mailbox")) == waiting
        assert not any(self.world.take_reply(*key) for key in self.open)
        self.step_after_zombie()

    def step_after_zombie(self) -> None:
        self.zombies.append((self.leader, self.backstage))
        self.step()
        self.zombies.pop()

    @rule()
    def leave_a_gap(self) -> None:
        """Letter 2 without letter 1: it waits, then that client is at an end; so it is for letter 3."""
        self.step()
        self.made_ids += 1
        gone = f"gap-{self.made_ids}"
        for number in (2, 3):
            self.world.put(gone, number, [InitProducer()], [])
        self.step()
        assert self.world.take_reply(gone, 2) is None
        self.world.clock.sleep(GAP_MS + 1)
        self.step()
        for number in (2, 3):
            (refusal,) = self.world.take_reply(gone, number) or [None]
            assert refusal.error == "CLIENT_ENDED"

    # -- what must hold ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Give the journal's new steps to the model, and hold its answers against the replies."""
        self.world.remember_steps()
        for step in self.world.history[self.settled_steps :]:
            self.model.step = step.step
            for one in step.decisions:
                self.settle_one(one.record, step.decided_at_ms)
        self.settled_steps = len(self.world.history)
        for client_id, number in self.repeats:
            known = self.model.clients.get(client_id)
            replied = self.world.take_reply(client_id, number)
            if replied is not None:
                assert known
                assert (number, outcomes(replied)) == (known.number, known.results)
        self.repeats = {
            key for key in self.repeats if any(key[0] in n for n in self.world.namespace.files.list("mailbox"))
        }

    def settle_one(self, record: Any, now_ms: int) -> None:
        if isinstance(record, Answered) and not record.client_id.startswith("gap-"):
            key = (record.client_id, record.number)
            assert key in self.open, "decided twice"
            self.open.remove(key)
            last = self.model.clients.get(record.client_id)
            assert record.number == (last.number if last else 0) + 1
            expected = [self.model.decide(a.request, a.rows, now_ms) for a in self.sent[key]]
            assert outcomes(record.results) == expected
            self.model.clients[record.client_id] = ModelClient(record.number, expected, now_ms)
            self.unanswered.add(key)
            self.producers += [r.producer_id for r in expected if isinstance(r, ProducerDone)]
        elif isinstance(record, ClientRemoved) and record.reason == "expired":
            client = self.model.clients.pop(record.client_id)
            assert now_ms - client.seen_at_ms > EXPIRATION_MS
        elif isinstance(record, ProducerExpired):
            producer = self.model.producers.pop(record.producer_id)
            assert now_ms - producer.seen_at_ms > EXPIRATION_MS

    def hold_against_the_reply(self, key: tuple[str, int]) -> None:
        replied = self.world.take_reply(*key)
        assert replied is not None
        assert outcomes(replied) == self.model.clients[key[0]].results
        self.unanswered.remove(key)

    @rule()
    def read_everything(self) -> None:
        """A reader that was there all along, and one that just came, see every message at its offset."""
        for reader in (self.world.reader, Reader(self.world.namespace.store, self.world.clock)):
            state = reader.refresh()
            assert set(state.topic_ids) == {t.topic for t in self.model.active()}
            for topic in self.model.active():
                expected = {p: list(enumerate(log))[topic.log_starts[p] :] for p, log in enumerate(topic.logs)}
                assert self.world.logs(reader, state.topic(topic.topic)) == expected
                self.marks_only_go_forward(state.topic(topic.topic))

    def marks_only_go_forward(self, topic: Any) -> None:
        for p in range(topic.partition_count):
            mark = (int(topic.log_starts[p]), int(topic.high_watermarks[p]))
            before = self.marks.get((topic.topic_id, p), (0, 0))
            assert mark[0] >= before[0]
            assert mark[1] >= before[1]
            assert mark[0] <= mark[1]
            self.marks[topic.topic_id, p] = mark

    @invariant()
    def the_state_in_memory_is_the_models(self) -> None:
        if hasattr(self, "leader"):
            logs = {i: t.high_watermarks.tolist() for i, t in self.leader.state.topics.items()}
            assert logs == {i: [len(log) for log in t.logs] for i, t in self.model.topics.items()}

    def teardown(self) -> None:
        try:
            if hasattr(self, "leader"):
                self.step_after_zombie()
                self.read_everything()
                self.leader.resign()
                self.settle()
                self.read_everything()
                assert_projections_are_the_replay(self.world.namespace.store, self.world.history)
        finally:
            self.world.close()


def outcomes(results: list[Any]) -> list[Any]:
    """Results as the model gives them: a refusal is the name of its error."""
    return [r.error if isinstance(r, Refusal) else r for r in results]


def test_sequencer_against_the_model() -> None:
    run_state_machine_as_test(
        SequencerMachine,
        settings=settings(
            max_examples=EXAMPLES or 7,
            stateful_step_count=30,
            derandomize=not EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            phases=[phase for phase in Phase if phase is not Phase.shrink or SHRINK],
        ),
    )
