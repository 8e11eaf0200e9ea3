"""The pure protocol and its model side by side, and what must hold of both after every step."""

from __future__ import annotations

from typing import Any

import msgspec
from protocol_harness import HOUR_MS, Harness, plain
from protocol_reader import Reader
from protocol_tables import Tables, add_pass, mark_of, restored
from stateful.transaction_model import Model, Place, Publish, Result

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import Produce, RefusedRows
from lakemq.engine.protocol.values.producers import TransactionRef
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.engine.protocol.values.transactions import TRANSITIONS, TransactionMoved, TransactionStatus

FOREVER_MS = 10**12
TOPICS = {1: ("t", 2), 2: ("u", 1)}
PLACES = [(1, 0), (1, 1), (2, 0)]
LAST_EPOCH = 3


class TransactionWorld:
    """`values`: of each file that was published, so that rows have names."""

    def __init__(self) -> None:
        self.mq, self.model, self.reader = Harness(), Model(TOPICS, LAST_EPOCH), Reader()
        self.model.now_ms = self.mq.now_ms
        self.values: dict[int, list[str]] = {}
        self.tables: Tables = {}
        self.read_steps = self.projected_steps = self.message_count = 0
        self.stable = dict.fromkeys(PLACES, 0)
        for name, count in TOPICS.values():
            self.mq.create(name, count)
        self.project()

    def ask(self, request: AnyRequest, expected: Result) -> AnyResult:
        result = self.mq.one(request)
        found = result.error if isinstance(result, Refusal) else result
        assert found == expected, (request, result, expected, self.mq.now_ms)
        return result

    def draft(
        self, ref: TransactionRef | None, counts: dict[Place, int], sequences: dict[Place, int] | None
    ) -> Publish:
        """Messages never sent before."""
        values, file_id = {}, len(self.values)
        for place in sorted(counts):
            values[place] = [f"m{self.message_count + i}" for i in range(counts[place])]
            self.message_count += counts[place]
        self.values[file_id] = [value for of_place in values.values() for value in of_place]
        return Publish(ref, file_id, values, sequences)

    def produce(self, request: Publish) -> Produce:
        counts = {(TOPICS[t][0], p): len(values) for (t, p), values in request.values.items()}
        ref, producer = request.ref, None
        if ref and request.sequences is not None:
            producer = (ref.producer_id, ref.producer_epoch)
        sequences = [request.sequences[place] for place in request.values] if request.sequences else []
        made = self.mq.produce_to(counts, request.file_id, None if request.outside else ref, producer, sequences)
        if request.flaw == "bad row":
            made = msgspec.structs.replace(made, refused=[RefusedRows("t", 0, 0, 1, "INVALID_RECORD", "bad")])
        if request.flaw == "stale":
            made = msgspec.structs.replace(made, topics=[TopicRef(r.topic, r.topic_id, 9) for r in made.topics])
        return made

    def pass_time(self, ms: int) -> None:
        self.mq.now_ms += ms
        self.model.now_ms = self.mq.now_ms
        self.model.pass_time(HOUR_MS)
        self.mq.expire(FOREVER_MS, FOREVER_MS, HOUR_MS)

    def project(self) -> None:
        add_pass(self.tables, self.mq.state, self.mq.steps[self.projected_steps :])
        self.projected_steps, self.mark = len(self.mq.steps), mark_of(self.mq.state)

    def restart(self) -> None:
        """Another sequencer: the projections, and what the journal holds beyond them."""
        state = machine.replay(restored(self.mark, self.tables), self.mq.steps[self.projected_steps :])
        # a step in which nothing was decided is in no journal
        state.step, state.now_ms = self.mq.state.step, self.mq.state.now_ms
        assert plain(state) == plain(self.mq.state)
        self.mq.state = state

    # -- what holds after every step --------------------------------------------------------------------

    def check_logs(self) -> None:
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
        return self.values[row.file_id][row.row]

    def seen(self, isolation: str) -> set[str]:
        """All values that a reader sees now."""
        return {value for place in PLACES for value in self.read(place, isolation).values()}

    def check_offsets(self) -> None:
        committed = self.mq.state.offsets
        found = {group: {place: one.offset for place, one in of.items()} for group, of in committed.items()}
        assert found == self.model.offsets
        assert all(offset <= len(self.model.logs[place]) for of in found.values() for place, offset in of.items())

    def check_ids(self) -> None:
        state = self.mq.state
        identities = {name: (one.producer_id, one.producer_epoch) for name, one in state.transactions.items()}
        assert identities == {name: (one.producer_id, one.epoch) for name, one in self.model.ids.items()}
        ongoing = {name for name, one in state.transactions.items() if one.status == "Ongoing"}
        assert ongoing == state.ongoing == {name for name, one in self.model.ids.items() if one.open}
        writing = {i for t in state.topics.values() for firsts in t.open_transactions.values() for i in firsts}
        assert writing <= {state.transactions[name].producer_id for name in ongoing}

    def check_transitions(self) -> None:
        now: dict[str, str] = {}
        for step in self.mq.steps:
            for one in step.entries:
                if isinstance(one.record, TransactionMoved):
                    name, status = one.record.transactional_id, one.record.status
                    TRANSITIONS.check(now.get(name, TransactionStatus.DEAD), status)
                    now[name] = status
            assert not any(status.startswith("Prepare") for status in now.values())
