"""A reader of the log: the segments of the steps, offset by offset, for both isolations."""

from collections.abc import Iterable
from typing import NamedTuple

from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.segments import segments_to_table
from lakemq.engine.protocol.values.topics import Topic

NO_FILE = -1
TopicIdPartition = tuple[int, int]
"""topic_id and partition."""


class Row(NamedTuple):
    """The row at an offset: row `row` of file `file_id`, or a marker, which is in no file."""

    file_id: int
    row: int
    producer_id: int | None
    transactional: bool
    is_marker: bool = False


class Reader:
    """Partitions as columns of rows. Markers are all that it knows about transactions."""

    def __init__(self) -> None:
        self.logs: dict[TopicIdPartition, dict[int, Row]] = {}
        self.aborted: set[tuple[TopicIdPartition, int]] = set()

    def follow(self, steps: Iterable[Step]) -> None:
        for segment in segments_to_table(entry.segments for step in steps for entry in step.entries).to_pylist():
            tp = (segment["topic_id"], segment["partition"])
            log, base = self.logs.setdefault(tp, {}), segment["base_offset"]
            author = (segment["producer_id"], segment["transactional"])
            assert base == len(log), "an offset is one row for ever, and there is no hole"
            assert segment["last_offset"] == base + segment["record_count"] - 1
            if segment["kind"] == "data":
                for i in range(segment["record_count"]):
                    log[base + i] = Row(segment["file_id"], segment["first_row"] + i, *author)
                continue
            assert segment["record_count"] == 1
            log[base] = Row(NO_FILE, 0, *author, is_marker=True)
            transaction_offsets = [o for o in range(segment["first_offset"], base) if log[o][2:] == (*author, False)]
            assert transaction_offsets[0] == segment["first_offset"]
            if segment["kind"] == "abort":
                self.aborted.update((tp, offset) for offset in transaction_offsets)

    def read(self, topic: Topic, partition: int, isolation: str) -> dict[int, Row]:
        """Return offset -> row, of all that this isolation shows."""
        tp = (topic.topic_id, partition)
        committed = isolation == "read_committed"
        ends = topic.last_stable_offsets if committed else topic.high_watermarks
        log = self.logs.get(tp, {})
        return {
            offset: log[offset]
            for offset in range(int(topic.log_starts[partition]), int(ends[partition]))
            if not log[offset].is_marker and not (committed and (tp, offset) in self.aborted)
        }
