"""The pure protocol as a world: in memory, with a step for each request, thousands of them in seconds."""

import msgspec
from protocol_harness import HOUR_MS, Harness, plain
from protocol_reader import Reader
from protocol_tables import Tables, add_pass, mark_of, restored
from stateful.model import Model
from stateful.model.namespace import TopicIdPartition
from stateful.model.topics import outgrow
from stateful.side_by_side import Shown, SideBySide

from lakemq.engine.client.fetch.plan import Isolation
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import Produce, RejectedRows
from lakemq.engine.protocol.values.producers import TransactionRef
from lakemq.engine.protocol.values.topics import CreateTopic, LogOutgrown, Topic, TopicRef
from lakemq.engine.protocol.values.transactions import TRANSACTION_TRANSITIONS, TransactionMoved, TransactionStatus

FOREVER_MS = 10**12


class Core(SideBySide):
    """`values`: the messages of each published file, so that rows have names."""

    def __init__(self, topics: dict[str, int], last_epoch: int) -> None:
        """topics: name -> partitions; last_epoch: the last epoch that a producer id gets."""
        super().__init__(Model(last_epoch))
        self.mq, self.reader = Harness(), Reader()
        self.values: dict[int, list[str]] = {}
        self.tables: Tables = {}
        self._read_steps = self._projected_steps = self._message_count = 0
        for name, count in topics.items():
            self.ask(CreateTopic(name, count))
        self.project()

    def ask(self, request: AnyRequest) -> AnyResult:
        """Return the answer, after checking that it is the model's."""
        rows = [self.values[file.file_id] for file in request.files] if isinstance(request, Produce) else []
        result = self.mq.one(request)
        self.model.step = self.mq.state.step
        expected = self.model.decide(request, rows, self.mq.now_ms)
        outcome = result.error if isinstance(result, Refusal) else result
        assert outcome == expected, (request, result, expected, self.mq.now_ms)
        return result

    def draft(
        self,
        ref: TransactionRef | None,
        counts: dict[TopicIdPartition, int],
        sequences: dict[TopicIdPartition, int] | None,
        flaw: str = "",
    ) -> Produce:
        """Build a publish of new messages.

        sequences: partition -> sequence of its first message. flaw: bad row, stale, or outside, which is outside of the
        transaction whose producer sends it.
        """
        file_id = len(self.values)
        self.values[file_id] = [f"m{self._message_count + i}" for i in range(sum(counts.values()))]
        self._message_count += len(self.values[file_id])
        topic_partitions = sorted(counts)
        request = self.mq.produce_to(
            {(self.model.topics[t].topic, p): counts[t, p] for t, p in topic_partitions},
            file_id,
            None if flaw == "outside" else ref,
            (ref.producer_id, ref.producer_epoch) if ref and sequences is not None else None,
            [sequences[tp] for tp in topic_partitions] if sequences is not None else [],
        )
        if flaw == "bad row":
            rejected = [RejectedRows("t", 0, 0, 1, "INVALID_RECORD", "bad")]
            return msgspec.structs.replace(request, rejected=rejected)
        if flaw == "stale":
            return msgspec.structs.replace(request, topics=[TopicRef(r.topic, r.topic_id, 9) for r in request.topics])
        return request

    def pass_time(self, ms: int) -> None:
        self.mq.now_ms += ms
        self.model.pass_time(self.mq.now_ms, HOUR_MS)
        self.mq.expire(FOREVER_MS, FOREVER_MS, HOUR_MS)

    def outgrow(self, tp: TopicIdPartition, offset: int) -> None:
        """A look at the log finds that everything below this offset is too old."""
        topic_id, partition = tp
        setting = self.mq.state.topics[topic_id].setting
        outgrown = LogOutgrown(topic_id, setting("retention.ms"), setting("retention.bytes"), {partition: offset}, {})
        self.mq.see(outgrown)
        outgrow(self.model, topic_id, outgrown.by_age)

    def project(self) -> None:
        add_pass(self.tables, self.mq.state, self.mq.steps[self._projected_steps :])
        self._projected_steps, self._mark = len(self.mq.steps), mark_of(self.mq.state)

    def restart(self) -> None:
        """Another sequencer loads the projections, and applies the later steps of the journal."""
        state = machine.replay(restored(self._mark, self.tables), self.mq.steps[self._projected_steps :])
        # a step that decided nothing is in no journal
        state.step, state.now_ms = self.mq.state.step, self.mq.state.now_ms
        assert plain(state) == plain(self.mq.state)
        self.mq.state = state

    # -- invariants after every step --------------------------------------------------------------------

    def check(self) -> None:
        """Check the log entry by entry, what both isolations show of it, and the state."""
        self.reader.follow(self.mq.steps[self._read_steps :])
        self._read_steps = len(self.mq.steps)
        for tp, log in self.model.logs().items():
            rows = self.reader.logs.get(tp, {})
            assert [None if row.is_marker else self.values[row.file_id][row.row] for row in rows.values()] == log
        self.check_state(self.mq.state)
        self.check_visible_messages(self.mq.state, self.read_topic)

    def read_topic(self, topic: Topic, isolation: Isolation) -> Shown:
        return {
            partition: [
                (offset, self.values[row.file_id][row.row])
                for offset, row in self.reader.read(topic, partition, isolation).items()
            ]
            for partition in range(topic.log_count)
        }

    def read_values(self, isolation: Isolation) -> set[str]:
        """Return all messages that a reader sees now."""
        shown = (self.read_topic(topic, isolation) for topic in self.mq.state.topics.values())
        return {value for of_topic in shown for log in of_topic.values() for _, value in log}

    def check_transitions(self) -> None:
        now: dict[str, str] = {}
        for step in self.mq.steps:
            for entry in step.entries:
                if isinstance(entry.record, TransactionMoved):
                    name, status = entry.record.transactional_id, entry.record.status
                    assert TRANSACTION_TRANSITIONS.allows(now.get(name, TransactionStatus.DEAD), status)
                    now[name] = status
            assert not any(status.startswith("Prepare") for status in now.values())
