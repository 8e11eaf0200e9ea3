"""The pure protocol against the model, under random actions of producers, zombies, operators and time.

Checked after every step: I1 and I2 (offsets are dense, each stays one row or marker), I3 and I4 (what both isolations
see), I6 (the last stable offset is the model's, at or below the end, and never moves back), I7 (committed offsets are
the model's, and within the log), I8 (a fenced producer is refused), one open transaction per id. Checked at the end: I4
(all of a transaction whose commit was acknowledged, nothing of any other). A restart from the projections (I12) is one
of the rules, so all of this holds across restarts.

LAKEMQ_STATEFUL_EXAMPLES=2000 tries more than the few examples of every day, and others each time.
LAKEMQ_STATEFUL_SHRINK=1 shortens a failure, which takes minutes.
"""

import sys
from dataclasses import dataclass, field
from unittest import mock

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from protocol_harness import HOUR_MS
from stateful.core import Core
from stateful.model.namespace import TopicIdPartition
from stateful.runs import runs

from lakemq.engine.protocol.rules import transactions
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.log import Produce, Published
from lakemq.engine.protocol.values.offsets import CommitOffsets, FetchOffsets, OffsetCommit
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from lakemq.engine.protocol.values.topics import DeleteRecords
from lakemq.engine.protocol.values.transactions import AbortTransaction, EndTransaction, TransactionEnded

TOPICS = {"t": 2, "u": 1}
PLACES = [(1, 0), (1, 1), (2, 0)]
LAST_EPOCH = 3

names = st.sampled_from(["x", "y"])
groups = st.sampled_from(["g", "h"])
topic_partitions = st.sampled_from(PLACES)
counts_by_place = st.dictionaries(topic_partitions, st.integers(1, 3), min_size=1)
lag = st.sampled_from([0, 0, 0, 0, 1, 2])
"""0 is the process that took the id over last, 1 the one before."""

little = st.sampled_from([0, 0, 1, 2, -1])
usually = st.sampled_from([True] * 7 + [False])
batches = st.sampled_from([None, None, 0, 1, 1])
"""0 is the last micro-batch that a process knows, 1 the next."""


@dataclass
class ProducerProcess:
    """The knowledge of one producer's process, which may be long out of date."""

    ref: TransactionRef
    parts: int = 0
    groups: set[str] = field(default_factory=set)
    sequences: dict[TopicIdPartition, int] = field(default_factory=dict)
    batch_id: int = -1
    published: Produce | None = None
    ended: EndTransaction | None = None

    def begin(self, producer_id: int, epoch: int) -> None:
        self.ref = TransactionRef(self.ref.transactional_id, producer_id, epoch)
        self.parts, self.groups, self.sequences = 0, set(), {}


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # epochs run out soon, so that producer ids change often
        self.few_epochs = mock.patch.object(transactions, "MAX_EPOCH", LAST_EPOCH + 1)
        self.few_epochs.start()
        self.world = Core(TOPICS, LAST_EPOCH)
        self.model = self.world.model
        self.processes: dict[str, list[ProducerProcess]] = {}
        self.accepted: dict[TransactionRef, set[str]] = {}
        self.committed: set[TransactionRef] = set()

    @initialize()
    def begin(self) -> None:
        self.start("x", 60_000)
        self.start("y", 60_000)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.end_all()
        finally:
            self.few_epochs.stop()

    # -- producers --------------------------------------------------------------------------------------

    @rule(name=names, timeout_ms=st.sampled_from([5_000, 60_000, 900_000]))
    def start(self, name: str, timeout_ms: int) -> None:
        """A new process takes the id over. The process before does not know yet."""
        result = self.world.ask(InitProducer(name, timeout_ms))
        assert isinstance(result, ProducerDone)
        process = ProducerProcess(
            TransactionRef(name, result.producer_id, result.producer_epoch), batch_id=result.batch_id
        )
        self.processes[name] = [process, *self.processes.get(name, [])][:3]

    def process(self, name: str, back: int) -> ProducerProcess:
        processes = self.processes[name]
        return processes[min(back, len(processes) - 1)]

    @rule(
        name=names,
        publishes=st.lists(counts_by_place, max_size=3),
        offset_of=st.none() | topic_partitions,
        commit=st.sampled_from([True, True, True, False, None]),
        batch=batches,
        hears=usually,
        mishap=st.sampled_from(["", "", "", "refused", "late", "operator", "restart"]),
    )
    def work(
        self,
        name: str,
        publishes: list[dict[TopicIdPartition, int]],
        offset_of: TopicIdPartition | None,
        commit: bool | None,
        batch: int | None,
        hears: bool,
        mishap: str,
    ) -> None:
        """Work as producers do: one that may not commit aborts, one without an answer repeats. commit: None leaves
        it open.
        """
        transactional_id, process = self.model.ids.get(name), self.process(name, 0)
        if transactional_id is None or (transactional_id.producer_id, transactional_id.epoch) != (
            process.ref.producer_id,
            process.ref.producer_epoch,
        ):
            self.start(name, 60_000)
        for counts in publishes:
            self.publish(name, 0, counts, True)
        if mishap == "refused":
            self.publish_badly(name, 0, {(1, 0): 1}, "gap")
        elif mishap == "late":
            self.pass_time(60_001)
        elif mishap == "operator":
            self.operator_aborts(name)
        elif mishap == "restart":
            self.restart()
        if not hears:
            self.publish_again(name, 0)
        if offset_of:
            self.commit_offset(name, 0, "g", offset_of, 0, True)
        if commit is not None:
            self.end(name, 0, commit, True, batch, hears)
        process = self.process(name, 0)
        if not hears:
            self.end_again(name, 0)
        elif commit and process.ended and process.ended.transaction == process.ref:
            self.end(name, 0, False, True, None, True)

    @rule(name=names, back=lag, counts=counts_by_place, has_sequences=usually)
    def publish(self, name: str, back: int, counts: dict[TopicIdPartition, int], has_sequences: bool) -> None:
        process = self.process(name, back)
        sequences = {tp: process.sequences.get(tp, 0) for tp in counts} if has_sequences else None
        self.send(process, self.world.draft(process.ref, counts, sequences))

    @rule(name=names, back=lag, counts=counts_by_place, how=st.sampled_from(["bad row", "stale", "gap", "outside"]))
    def publish_badly(self, name: str, back: int, counts: dict[TopicIdPartition, int], how: str) -> None:
        process = self.process(name, back)
        sequences = {tp: process.sequences.get(tp, 0) + (how == "gap") for tp in counts}
        self.send(process, self.world.draft(process.ref, counts, sequences, flaw="" if how == "gap" else how))

    @rule(name=names, back=lag)
    def publish_again(self, name: str, back: int) -> None:
        """Repeat the request as it was sent, though much may have happened since."""
        process = self.process(name, back)
        if process.published and process.published.producer is not None:
            self.send(process, process.published)

    @rule(counts=counts_by_place)
    def publish_outside_of_transactions(self, counts: dict[TopicIdPartition, int]) -> None:
        self.world.ask(self.world.draft(None, counts, None))

    def send(self, process: ProducerProcess, request: Produce) -> None:
        result = self.world.ask(request)
        process.published = request
        if not isinstance(result, Published):
            return
        assert self.is_newest(process), "a zombie was told that it published"
        ref, sequences = request.transaction, request.producer
        assert ref
        if result.duplicate:
            return
        self.accepted.setdefault(ref, set()).update(self.world.values[request.files[0].file_id])
        if ref == process.ref:
            process.parts += 1
            for unit, base in zip(result.units, sequences.base_sequence, strict=True) if sequences else ():
                process.sequences[self.model.find_topic(unit.topic).topic_id, unit.partition] = base + unit.record_count

    @rule(name=names, back=lag, group=groups, tp=topic_partitions, before_end=little, inside=usually)
    def commit_offset(
        self, name: str, back: int, group: str, tp: TopicIdPartition, before_end: int, inside: bool
    ) -> None:
        process = self.process(name, back)
        offset = max(0, len(self.model.log(tp)) - before_end)
        ref = process.ref if inside else None
        request = CommitOffsets(group, [OffsetCommit(self.model.topics[tp[0]].topic, tp[1], offset)], ref)
        result = self.world.ask(request)
        if ref and isinstance(result, Done):
            assert self.is_newest(process), "a zombie was told that it committed offsets"
            process.groups.add(group)
        self.world.ask(FetchOffsets(group))

    @rule(name=names, back=lag, commit=usually, parts_are_right=usually, batch=batches, hears=usually)
    def end(self, name: str, back: int, commit: bool, parts_are_right: bool, batch: int | None, hears: bool) -> None:
        """A process that does not hear of the end asks again, or goes on as if the transaction had not ended."""
        process = self.process(name, back)
        batch_id = None if batch is None else max(0, process.batch_id + batch)
        parts = process.parts + len(process.groups) + (not parts_are_right)
        self.send_end(process, EndTransaction(process.ref, commit, parts, batch_id), hears)

    @rule(name=names, back=lag)
    def end_again(self, name: str, back: int) -> None:
        process = self.process(name, back)
        if process.ended:
            self.send_end(process, process.ended, process.ended.transaction == process.ref)

    def send_end(self, process: ProducerProcess, request: EndTransaction, hears: bool) -> None:
        ref, process.ended = request.transaction, request
        was_open = {id_.open.ref for id_ in self.model.ids.values() if id_.open}
        result = self.world.ask(request)
        if not isinstance(result, TransactionEnded):
            return
        assert self.is_newest(process), "a zombie was told that it ended a transaction"
        if request.commit and ref in was_open and not result.duplicate:
            self.committed.add(ref)
            process.batch_id = max(process.batch_id, -1 if request.batch_id is None else request.batch_id)
        if hears:
            process.begin(result.producer_id, result.producer_epoch)

    def is_newest(self, process: ProducerProcess) -> bool:
        return self.processes[process.ref.transactional_id][0] is process

    # -- others -----------------------------------------------------------------------------------------

    @rule(name=names)
    def operator_aborts(self, name: str) -> None:
        self.world.ask(AbortTransaction(name))

    @rule(ms=st.sampled_from([1, 1, 4_999, 5_000, 60_001, HOUR_MS]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(tp=topic_partitions, before_end=little)
    def delete_records(self, tp: TopicIdPartition, before_end: int) -> None:
        before = max(0, len(self.model.log(tp)) - before_end)
        self.world.ask(DeleteRecords(self.model.topics[tp[0]].topic, {tp[1]: before}))

    @rule(tp=topic_partitions, before_end=little)
    def grow_old(self, tp: TopicIdPartition, before_end: int) -> None:
        self.world.outgrow(tp, max(0, len(self.model.log(tp)) - before_end))

    @rule()
    def project(self) -> None:
        self.world.project()

    @rule()
    def restart(self) -> None:
        self.world.restart()

    # -- invariants after every step --------------------------------------------------------------------

    @invariant()
    def logs_and_state_equal_the_model(self) -> None:
        self.world.check()

    @invariant()
    def only_committed_messages_are_visible(self) -> None:
        visible = self.world.read_values("read_committed")
        assert not any(values & visible for ref, values in self.accepted.items() if ref not in self.committed)

    def end_all(self) -> None:
        """Abort all open transactions. Each acknowledged commit is then visible as a whole, in every partition."""
        for name in [name for name, transactional_id in self.model.ids.items() if transactional_id.open]:
            self.operator_aborts(name)
        self.world.check()
        visible, stored = self.world.read_values("read_committed"), self.world.read_values("read_uncommitted")
        for ref, values in self.accepted.items():
            assert values & visible == (values & stored if ref in self.committed else set())
        self.world.check_transitions()


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = runs(80, 25)
