"""The pure protocol against the model, whatever producers, zombies, operators and time do to transactions.

Checked after every step: I1 and I2 (offsets are dense, each one row or marker for ever), I3 and I4 (what both
isolations see), I6 (the last stable offset is the model's, at or below the end, and never moves back), I7 (committed
offsets are the model's, and within the log), I8 (who was fenced is refused), one open transaction per id; at the end
I4 (all of a transaction whose commit was acknowledged, nothing of any other) and I12 (a restart from the projections
is a rule, so all of this holds across restarts).

LAKEMQ_STATEFUL_EXAMPLES=2000 looks further than the few examples of every day, and elsewhere each time;
LAKEMQ_STATEFUL_SHRINK=1 makes what fails shorter, which takes minutes.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from protocol_harness import HOUR_MS, Harness, plain
from protocol_reader import Reader
from protocol_tables import Tables, add_pass, mark_of, restored
from stateful.transaction_model import Model, Place, Publish, Result

from lakemq.engine.protocol import machine, transactions
from lakemq.engine.protocol.records import TransactionMoved
from lakemq.engine.protocol.requests import (
    AbortTransaction,
    AnyRequest,
    AnyResult,
    CommitOffsets,
    DeleteRecords,
    Done,
    EndTransaction,
    FetchOffsets,
    InitProducer,
    OffsetCommit,
    Produce,
    ProducerDone,
    Published,
    Refusal,
    RefusedRows,
    TopicRef,
    TransactionEnded,
    TransactionRef,
)

EXAMPLES = int(os.environ.get("LAKEMQ_STATEFUL_EXAMPLES", "0"))
SHRINK = "LAKEMQ_STATEFUL_SHRINK" in os.environ
TOPICS = {1: ("t", 2), 2: ("u", 1)}
PLACES = [(1, 0), (1, 1), (2, 0)]
LAST_EPOCH = 3
FOREVER_MS = 10**12
FOLLOWS = {
    None: {"Empty"},
    "Empty": {"Empty", "Ongoing", "Dead"},
    "Ongoing": {"Ongoing", "PrepareCommit", "PrepareAbort"},
    "PrepareCommit": {"CompleteCommit"},
    "PrepareAbort": {"CompleteAbort"},
    "CompleteCommit": {"Empty", "Ongoing", "Dead"},
    "CompleteAbort": {"Empty", "Ongoing", "Dead"},
    "Dead": {"Empty"},
}

names = st.sampled_from(["x", "y"])
groups = st.sampled_from(["g", "h"])
places = st.sampled_from(PLACES)
counts_by_place = st.dictionaries(places, st.integers(1, 3), min_size=1)
lag = st.sampled_from([0, 0, 0, 0, 1, 2])
"""0 is the process that took the id over last."""

little = st.sampled_from([0, 0, 1, 2, -1])
usually = st.sampled_from([True] * 7 + [False])
batches = st.sampled_from([None, None, 0, 1, 1])
"""0 is the last micro-batch a process knows of, 1 the next."""


@dataclass
class Process:
    """What one producer's process knows: it may be long behind."""

    ref: TransactionRef
    parts: int = 0
    sequences: dict[Place, int] = field(default_factory=dict)
    batch_id: int = -1
    published: Publish | None = None
    ended: EndTransaction | None = None

    def begin(self, producer_id: int, epoch: int) -> None:
        self.ref = TransactionRef(self.ref.transactional_id, producer_id, epoch)
        self.parts, self.sequences = 0, {}


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # epochs run out soon, so that producer ids change often
        self.few_epochs = mock.patch.object(transactions, "MAX_EPOCH", LAST_EPOCH + 1)
        self.few_epochs.start()
        self.mq, self.model, self.reader = Harness(), Model(TOPICS, LAST_EPOCH), Reader()
        self.processes: dict[str, list[Process]] = {}
        self.values: dict[str, list[str]] = {}
        self.tables: Tables = {}
        self.read_steps = self.projected_steps = self.message_count = 0
        self.stable = dict.fromkeys(PLACES, 0)
        self.accepted: dict[TransactionRef, set[str]] = {}
        self.committed: set[TransactionRef] = set()

    @initialize()
    def begin(self) -> None:
        self.model.now_ms = self.mq.now_ms
        for name, count in TOPICS.values():
            self.mq.create(name, count)
        self.project()
        self.start("x", 60_000)
        self.start("y", 60_000)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.end_all()
        finally:
            self.few_epochs.stop()

    def ask(self, request: AnyRequest, expected: Result) -> AnyResult:
        result = self.mq.one(request)
        assert (result.error if isinstance(result, Refusal) else result) == expected
        return result

    # -- producers --------------------------------------------------------------------------------------

    @rule(name=names, timeout_ms=st.sampled_from([5_000, 60_000, 900_000]))
    def start(self, name: str, timeout_ms: int) -> None:
        """A new process takes the id over; the one before does not know yet."""
        result = self.ask(InitProducer(name, timeout_ms), self.model.init(name, timeout_ms))
        assert isinstance(result, ProducerDone)
        process = Process(TransactionRef(name, result.producer_id, result.producer_epoch), batch_id=result.batch_id)
        self.processes[name] = [process, *self.processes.get(name, [])][:3]

    def process(self, name: str, back: int) -> Process:
        of_name = self.processes[name]
        return of_name[min(back, len(of_name) - 1)]

    @rule(
        name=names,
        publishes=st.lists(counts_by_place, max_size=3),
        offset_of=st.none() | places,
        commit=st.sampled_from([True, True, True, False, None]),
        batch=batches,
        hears=usually,
    )
    def work(
        self,
        name: str,
        publishes: list[dict[Place, int]],
        offset_of: Place | None,
        commit: bool | None,
        batch: int | None,
        hears: bool,
    ) -> None:
        """As producers do when all goes well, or an answer is lost; commit: None leaves the transaction open."""
        known, process = self.model.ids.get(name), self.process(name, 0)
        if known is None or (known.producer_id, known.epoch) != (process.ref.producer_id, process.ref.producer_epoch):
            self.start(name, 60_000)
        for counts in publishes:
            self.publish(name, 0, counts, True)
        if not hears:
            self.publish_again(name, 0)
        if offset_of:
            self.commit_offset(name, 0, "g", offset_of, 0, True)
        if commit is not None:
            self.end(name, 0, commit, True, batch, hears)
        if not hears:
            self.end_again(name, 0)

    @rule(name=names, back=lag, counts=counts_by_place, has_sequences=usually)
    def publish(self, name: str, back: int, counts: dict[Place, int], has_sequences: bool) -> None:
        process = self.process(name, back)
        sequences = {place: process.sequences.get(place, 0) for place in counts} if has_sequences else None
        self.send(process, self.draft(process.ref, counts, sequences))

    @rule(name=names, back=lag, counts=counts_by_place, how=st.sampled_from(["bad row", "stale", "gap", "outside"]))
    def publish_badly(self, name: str, back: int, counts: dict[Place, int], how: str) -> None:
        process = self.process(name, back)
        sequences = {place: process.sequences.get(place, 0) + (how == "gap") for place in counts}
        request = self.draft(process.ref, counts, sequences)
        flaw = how if how in ("bad row", "stale") else ""
        self.send(process, dataclasses.replace(request, flaw=flaw, outside=how == "outside"))

    @rule(name=names, back=lag)
    def publish_again(self, name: str, back: int) -> None:
        """As it was sent, though much may have happened since."""
        process = self.process(name, back)
        if process.published and process.published.sequences is not None:
            self.send(process, process.published)

    @rule(counts=counts_by_place)
    def publish_outside_of_transactions(self, counts: dict[Place, int]) -> None:
        request = self.draft(None, counts, None)
        self.ask(self.produce(request), self.model.publish(request))

    def draft(
        self, ref: TransactionRef | None, counts: dict[Place, int], sequences: dict[Place, int] | None
    ) -> Publish:
        """Messages never sent before."""
        values, batch_id = {}, f"f{len(self.values)}"
        for place in sorted(counts):
            values[place] = [f"m{self.message_count + i}" for i in range(counts[place])]
            self.message_count += counts[place]
        self.values[batch_id] = [value for of_place in values.values() for value in of_place]
        return Publish(ref, batch_id, values, sequences)

    def send(self, process: Process, request: Publish) -> None:
        result = self.ask(self.produce(request), self.model.publish(request))
        process.published = request
        if not isinstance(result, Published):
            return
        assert self.is_newest(process), "a zombie was told that it published"
        assert request.ref
        if not result.duplicate:
            self.hear_of_a_part(process, request.ref)
            self.accepted.setdefault(request.ref, set()).update(self.values[request.batch_id])
            for place in request.values if request.sequences else ():
                if request.ref == process.ref:
                    process.sequences[place] = request.sequences[place] + len(request.values[place])  # type: ignore[index]

    def produce(self, request: Publish) -> Produce:
        counts = {(TOPICS[t][0], p): len(values) for (t, p), values in request.values.items()}
        ref, producer = request.ref, None
        if ref and request.sequences is not None:
            producer = (ref.producer_id, ref.producer_epoch)
        sequences = [request.sequences[place] for place in request.values] if request.sequences else []
        made = self.mq.produce_to(counts, request.batch_id, None if request.outside else ref, producer, sequences)
        if request.flaw == "bad row":
            made = msgspec.structs.replace(made, refused=[RefusedRows("t", 0, 0, 1, "INVALID_RECORD", "bad")])
        if request.flaw == "stale":
            made = msgspec.structs.replace(made, topics=[TopicRef(r.topic, r.topic_id, 9) for r in made.topics])
        return made

    @rule(name=names, back=lag, group=groups, place=places, before_end=little, inside=usually)
    def commit_offset(self, name: str, back: int, group: str, place: Place, before_end: int, inside: bool) -> None:
        process = self.process(name, back)
        offset = max(0, len(self.model.logs[place]) - before_end)
        ref = process.ref if inside else None
        request = CommitOffsets(group, [OffsetCommit(TOPICS[place[0]][0], place[1], offset)], ref)
        result = self.ask(request, self.model.commit_offset(ref, group, place, offset))
        if ref and isinstance(result, Done):
            assert self.is_newest(process), "a zombie was told that it committed offsets"
            self.hear_of_a_part(process, ref)
        self.ask(FetchOffsets(group), self.model.fetch_offsets(group))

    def hear_of_a_part(self, process: Process, ref: TransactionRef) -> None:
        if ref == process.ref:
            process.parts += 1

    @rule(name=names, back=lag, commit=usually, parts_are_right=usually, batch=batches, hears=usually)
    def end(self, name: str, back: int, commit: bool, parts_are_right: bool, batch: int | None, hears: bool) -> None:
        """Who does not hear of it asks again, or goes on as if it had not ended."""
        process = self.process(name, back)
        batch_id = None if batch is None else max(0, process.batch_id + batch)
        parts = process.parts + (not parts_are_right)
        self.send_end(process, EndTransaction(process.ref, commit, parts, batch_id), hears)

    @rule(name=names, back=lag)
    def end_again(self, name: str, back: int) -> None:
        process = self.process(name, back)
        if process.ended:
            self.send_end(process, process.ended, process.ended.transaction == process.ref)

    def send_end(self, process: Process, request: EndTransaction, hears: bool) -> None:
        ref, process.ended = request.transaction, request
        was_open = {one.open.ref for one in self.model.ids.values() if one.open}
        expected = self.model.end(ref, request.commit, request.part_count, request.batch_id)
        result = self.ask(request, expected)
        if not isinstance(result, TransactionEnded):
            return
        assert self.is_newest(process), "a zombie was told that it ended a transaction"
        if request.commit and ref in was_open and not result.duplicate:
            self.committed.add(ref)
            process.batch_id = max(process.batch_id, -1 if request.batch_id is None else request.batch_id)
        if hears:
            process.begin(result.producer_id, result.producer_epoch)

    def is_newest(self, process: Process) -> bool:
        return self.processes[process.ref.transactional_id][0] is process

    # -- others -----------------------------------------------------------------------------------------

    @rule(name=names)
    def operator_aborts(self, name: str) -> None:
        self.ask(AbortTransaction(name), self.model.operator_aborts(name))

    @rule(ms=st.sampled_from([1, 1, 4_999, 5_000, 60_001, HOUR_MS]))
    def pass_time(self, ms: int) -> None:
        self.mq.now_ms += ms
        self.model.now_ms = self.mq.now_ms
        self.model.pass_time(HOUR_MS)
        self.mq.expire(FOREVER_MS, FOREVER_MS, HOUR_MS)

    @rule(place=places, before_end=little)
    def delete_records(self, place: Place, before_end: int) -> None:
        before = max(0, len(self.model.logs[place]) - before_end)
        self.ask(DeleteRecords(TOPICS[place[0]][0], {place[1]: before}), self.model.delete_records(place, before))

    @rule()
    def project(self) -> None:
        add_pass(self.tables, self.mq.state, self.mq.steps[self.projected_steps :])
        self.projected_steps, self.mark = len(self.mq.steps), mark_of(self.mq.state)

    @rule()
    @precondition(lambda self: self.processes)
    def restart(self) -> None:
        """Another sequencer: the projections, and what the journal holds beyond them."""
        state = machine.replay(restored(self.mark, self.tables), self.mq.steps[self.projected_steps :])
        # a step in which nothing was decided is in no journal
        state.step, state.now_ms = self.mq.state.step, self.mq.state.now_ms
        assert plain(state) == plain(self.mq.state)
        self.mq.state = state

    # -- what holds after every step --------------------------------------------------------------------

    @invariant()
    @precondition(lambda self: self.processes)
    def logs_are_the_models(self) -> None:
        self.reader.follow(self.mq.steps[self.read_steps :])
        self.read_steps = len(self.mq.steps)
        for place, log in self.model.logs.items():
            found = [None if row.is_marker else self.value(row) for row in self.reader.logs.get(place, {}).values()]
            assert found == [entry.value for entry in log]
            topic = self.mq.state.topics[place[0]]
            stable, end = int(topic.last_stable_offsets[place[1]]), int(topic.high_watermarks[place[1]])
            assert (stable, end) == (self.model.stable(place), len(log))
            assert self.stable[place] <= stable <= end
            self.stable[place] = stable
            assert self.read(place, "read_committed") == self.model.read_committed(place)
            assert self.read(place, "read_uncommitted") == self.model.read_uncommitted(place)

    def read(self, place: Place, isolation: str) -> dict[int, str]:
        rows = self.reader.read(self.mq.state.topics[place[0]], place[1], isolation)
        return {offset: self.value(row) for offset, row in rows.items()}

    def value(self, row: Any) -> str:
        return self.values[row.batch_id][row.row]

    @invariant()
    def nothing_is_seen_whose_commit_was_not_acknowledged(self) -> None:
        hidden = [values for ref, values in self.accepted.items() if ref not in self.committed]
        seen = {value for place in PLACES for value in self.read(place, "read_committed").values()} if hidden else set()
        assert not any(values & seen for values in hidden)

    @invariant()
    def offsets_are_the_models(self) -> None:
        committed = self.mq.state.offsets
        found = {group: {place: one.offset for place, one in of.items()} for group, of in committed.items()}
        assert found == self.model.offsets
        assert all(offset <= len(self.model.logs[place]) for of in found.values() for place, offset in of.items())

    @invariant()
    def an_id_has_one_open_transaction(self) -> None:
        state = self.mq.state
        identities = {name: (one.producer_id, one.producer_epoch) for name, one in state.transactions.items()}
        assert identities == {name: (one.producer_id, one.epoch) for name, one in self.model.ids.items()}
        ongoing = {name for name, one in state.transactions.items() if one.status == "Ongoing"}
        assert ongoing == state.ongoing == {name for name, one in self.model.ids.items() if one.open}
        writing = {i for t in state.topics.values() for firsts in t.open_transactions.values() for i in firsts}
        assert writing <= {state.transactions[name].producer_id for name in ongoing}

    def end_all(self) -> None:
        """All that is left open is aborted: what was acknowledged is there as a whole, in every partition."""
        for name in [name for name, one in self.model.ids.items() if one.open]:
            self.operator_aborts(name)
        if not self.processes:
            return
        self.logs_are_the_models()
        seen = {value for place in PLACES for value in self.read(place, "read_committed").values()}
        kept = {value for place in PLACES for value in self.read(place, "read_uncommitted").values()}
        for ref, values in self.accepted.items():
            assert values & seen == (values & kept if ref in self.committed else set())
        self.transitions_are_legal()

    def transitions_are_legal(self) -> None:
        now: dict[str, str] = {}
        for step in self.mq.steps:
            for one in step.decisions:
                if isinstance(one.record, TransactionMoved):
                    name, status = one.record.transactional_id, one.record.status
                    assert status in FOLLOWS[now.get(name)]
                    now[name] = status
            assert not any(status.startswith("Prepare") for status in now.values())


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=EXAMPLES or 40,
    stateful_step_count=30,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
    phases=[phase for phase in Phase if phase is not Phase.shrink or SHRINK],
)
