"""Requests that clients of the state machine send: mostly right, now and then just wrong."""

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import msgspec
from stateful.model.namespace import Topic
from stateful.model.producers import REFUSED
from stateful.world import World

from lakemq.engine.namespace.data_file import file_name
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import ApplicationVersion, DataFile, Produce, Ranges, RejectedRows
from lakemq.engine.protocol.values.producers import InitProducer, ProducerSequences
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic, TopicRef

_names = st.sampled_from(["a", "b", "c"])
_partitions = st.integers(1, 4)
_subscriptions = st.sampled_from([[], [], ["x/>"], ["y/*"]])
_offsets = st.dictionaries(st.integers(0, 2), st.integers(-1, 6), min_size=1)

topic_requests: st.SearchStrategy[AnyRequest] = st.one_of(
    st.builds(CreateTopic, _names, _partitions, st.just({}), _subscriptions),
    st.builds(CreateTopic, _names, _partitions),
    st.builds(AlterTopic, _names, st.just({}), _partitions, st.none() | _subscriptions, st.booleans()),
    st.builds(DeleteRecords, _names, _offsets),
    st.builds(InitProducer),
    st.builds(DeleteTopic, _names),
)


@dataclass
class Asked:
    """A request, the messages that travel in its letter, and all messages of its file (or of the letter)."""

    request: AnyRequest
    inline: list[str]
    rows: list[list[str]]


def now_and_then(rare: Any, usual: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * 9 + [rare])


class Publisher:
    """Draws publishes. It knows the topics as a client does that looked at them just now."""

    def __init__(self, world: World) -> None:
        self.world, self.model, self.messages = world, world.model, 0

    def draw(self, data: st.DataObject) -> Asked:
        """Draw messages for 1 or 2 topics, in a file or not. Each is a range of its own, or ranges are as few as
        possible.
        """
        topics = data.draw(st.lists(st.sampled_from(self.model.active()), min_size=1, max_size=2, unique_by=id))
        picks = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4), label="partition of each message")
        picks = data.draw(now_and_then([], picks), label="messages")
        values = self.new_messages(len(picks) + data.draw(st.integers(0, 1), label="rejected"))
        file = self.world.write_file(values) if values and data.draw(st.booleans(), label="in a file") else None
        index = 0 if file else -1
        request = self.request(data, topics, picks, len(values) - len(picks), index)
        if file is None:
            return Asked(request, values, [values])
        self.lose(file) if data.draw(now_and_then(True, False), label="lose the file") else None
        return Asked(msgspec.structs.replace(request, files=[file]), [], [values])

    def new_messages(self, count: int) -> list[str]:
        self.messages += count
        return [f"m{i}" for i in range(self.messages - count, self.messages)]

    def lose(self, file: DataFile) -> None:
        self.world.namespace.files.delete([file_name(file.file_id)])
        self.model.lost_files.add(file.file_id)

    def request(self, data: st.DataObject, topics: list[Topic], picks: list[int], rejected: int, file: int) -> Produce:
        """picks: the partition of each message, before the rejected ones. file: 0, or -1 for messages in the letter."""
        long_runs = data.draw(st.booleans(), label="long runs")
        version = st.builds(ApplicationVersion, st.just("app"), st.integers(0, 5), st.just("a"))
        request = Produce(
            [TopicRef(t.topic, t.topic_id, t.partitions) for t in topics],
            ranges_of([t.partitions for t in topics], picks, file, long_runs),
            self.world.history[-1].step,
            rejected=[RejectedRows("a", file, len(picks), rejected, "E", "why")] if rejected else [],
            application=data.draw(st.sampled_from([None, None, None]) | version, label="version"),
        )
        return msgspec.structs.replace(request, producer=self.sequences(data, request))

    def sequences(self, data: st.DataObject, request: Produce) -> ProducerSequences | None:
        """Draw the next sequences as a client knows them; now and then a gap, or another epoch."""
        if not data.draw(st.sampled_from([True, True, False]), label="idempotent"):
            return None
        producer_id = data.draw(st.sampled_from(sorted(self.model.producers) or [0]), label="producer")
        producer = self.model.producers.get(producer_id)
        epoch = max(0, (producer.epoch if producer else 0) + data.draw(now_and_then(1, 0) | now_and_then(-1, 0)))
        gap = data.draw(now_and_then(1, 0), label="gap")
        units = sorted(set(zip(request.ranges.topic_index, request.ranges.partition, strict=True)))
        bases = []
        for topic, partition in units:
            key = (request.topics[topic].topic_id, partition)
            last = producer.appended.get(key, [])[-1:] if producer and producer.epoch == epoch else []
            bases.append(sum(last[0][:2]) + gap if last else gap)
        last = producer.appended.get(REFUSED, [])[-1:] if producer and producer.epoch == epoch else []
        rejected_sequence = (sum(last[0][:2]) if last else 0) + data.draw(
            now_and_then(1, 0), label="gap in the refused"
        )
        drawn_sequence = rejected_sequence if request.rejected else None
        return ProducerSequences(
            producer_id, epoch, [t for t, _ in units], [p for _, p in units], bases, drawn_sequence
        )


def ranges_of(partition_counts: list[int], picks: list[int], file: int, long_runs: bool) -> Ranges:
    """partition_counts: per topic; each topic gets all messages, the i-th in partition picks[i] % count."""
    ranges = Ranges()
    for topic, count in enumerate(partition_counts):
        placed = [pick % count for pick in picks]
        row = 0
        while row < len(placed):
            end = row + 1
            while long_runs and end < len(placed) and placed[end] == placed[row]:
                end += 1
            values = (topic, placed[row], file, row, end - row, 1000, 9000, -1, -1)
            for column, value in zip(ranges.__struct_fields__, values, strict=True):
                getattr(ranges, column).append(value)
            row = end
    return ranges
