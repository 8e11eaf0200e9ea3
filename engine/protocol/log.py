"""The log: ranges of rows become dense offsets of partitions. Decided as columns, whatever their number.

Invariant: an offset of a partition is given out once, to one row, and there is no hole below the high watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemq.tables.segments import SEGMENT_SCHEMA

from .decision import Decision
from .errors import FileMissing, InvalidRequest, StaleTopicMetadata
from .producers import check_producer, evolve_appended, find_duplicate
from .ranges import Column, RangeColumns, dense_offsets
from .records import NO_SEGMENTS, DeadLettered, Decided, FilesAdded, Produced, UnitAppended
from .requests import DataFile, Produce, Published, TopicRef, Unit
from .state import Application, State, Topic


@dataclass(frozen=True)
class InlineRows:
    """Where the sequencer wrote the rows that rode in a letter: from row `first_row` of `file` on."""

    file: DataFile
    first_row: int


@dataclass(frozen=True)
class _Units:
    """The (topic, partition) pairs of a request, as columns over all partitions of all its topics.

    sequence: the producer's sequence of the first record, -1 where the request has none; appended: what was appended
    for the unit when it came before.
    """

    topic: Column
    partition: Column
    record_count: Column
    high_watermark: Column
    sequence: Column
    appended: Mapping[int, UnitAppended]


def decide_produce(
    state: State,
    request: Produce,
    now_ms: int,
    inline: InlineRows | None = None,
    sizes: Mapping[str, int | None] | None = None,
) -> Decision:
    """Offsets for all ranges of the request, or a refusal of it as a whole.

    inline: for a request without files, where its rows are; sizes: batch_id -> bytes of that file in the store, None
    where it is not there, for every file the request names.
    Raises StaleTopicMetadata, FileMissing, InvalidRequest, UnknownProducerId, InvalidProducerEpoch,
    OutOfOrderSequenceNumber.
    """
    topics = _current_topics(state, request)
    _check_files(request, sizes or {})
    if _is_old_version(state, request):
        return Decision(Published([], duplicate=True))
    rides = inline is not None and not request.files
    files = [inline.file] if inline is not None and rides else request.files
    inline_first_row = inline.first_row + request.first_row if inline is not None and rides else None
    partition_counts, file_rows = [t.partition_count for t in topics], [f.record_count for f in files]
    ranges = RangeColumns.of(request.ranges, partition_counts, file_rows, inline_first_row)
    units = _units(state, request, topics, ranges)
    fresh = ranges.where(~np.isin(ranges.unit, list(units.appended))) if units.appended else ranges
    dead = _dead_letters(request, files, inline_first_row or 0)
    decided: list[Decided] = []
    if request.files and (len(fresh) or dead):
        decided.append(Decided(FilesAdded(request.files)))
    if len(fresh) or request.application:
        segments = _segments(request, topics, fresh, units, files, now_ms)
        decided.append(Decided(_produced(request, topics, units), segments))
    decided += [Decided(record) for record in dead]
    return Decision(_result(topics, units, dead), tuple(decided))


def _current_topics(state: State, request: Produce) -> list[Topic]:
    if state.subscriptions_step > request.metadata_step and any(
        t.subscriptions for t in state.active_topics()
    ):
        raise StaleTopicMetadata(
            "Topics or subscriptions have changed since.",
            found=f"step {request.metadata_step}",
            expected=f"step {state.subscriptions_step} or later",
        )
    return [_current_topic(state, ref) for ref in request.topics]


def _current_topic(state: State, ref: TopicRef) -> Topic:
    topic = state.topics.get(ref.topic_id)
    if topic is None or not topic.active:
        raise StaleTopicMetadata(f"Topic {ref.topic!r} with id {ref.topic_id} is gone.")
    if topic.partition_count != ref.partition_count:
        raise StaleTopicMetadata(
            f"Topic {ref.topic!r} has another number of partitions.",
            found=ref.partition_count,
            expected=topic.partition_count,
        )
    return topic


def _check_files(request: Produce, sizes: Mapping[str, int | None]) -> None:
    for file in request.files:
        size = sizes.get(file.batch_id)
        if size != file.size_bytes:
            raise FileMissing(
                f"Data file {file.batch_id} is not there as the request says.",
                found="no file" if size is None else f"{size} bytes",
                expected=f"{file.size_bytes} bytes",
            )


def _is_old_version(state: State, request: Produce) -> bool:
    if request.application is None:
        return False
    known = state.applications.get((request.application.txn_app_id, request.application.target))
    return known is not None and request.application.txn_version <= known.version


def _units(state: State, request: Produce, topics: Sequence[Topic], ranges: RangeColumns) -> _Units:
    counts = np.array([t.partition_count for t in topics], np.int64)
    total, starts = int(counts.sum()), np.cumsum(counts) - counts
    record_count = np.zeros(total, np.int64)
    np.add.at(record_count, ranges.unit, ranges.record_count)
    sequence, appended = np.full(total, -1, np.int64), {}
    if request.producer is not None:
        named = request.producer
        producer = check_producer(state, named.producer_id, named.producer_epoch)
        for t, partition, base_sequence in zip(
            named.topic, named.partition, named.base_sequence, strict=True
        ):
            unit = int(starts[t]) + partition
            sequence[unit] = base_sequence
            again = find_duplicate(
                producer, topics[t].topic_id, partition, base_sequence, int(record_count[unit])
            )
            if again is not None:
                appended[unit] = again
        if not np.array_equal(sequence >= 0, record_count > 0):
            raise InvalidRequest("The sequences and the ranges name different partitions.")
    return _Units(
        topic=np.repeat(np.arange(len(topics)), counts),
        partition=np.arange(total) - np.repeat(starts, counts),
        record_count=record_count,
        high_watermark=np.concatenate([np.zeros(0, np.int64), *(t.high_watermarks for t in topics)]),
        sequence=sequence,
        appended=appended,
    )


def _result(topics: Sequence[Topic], units: _Units, dead: Sequence[DeadLettered]) -> Published:
    touched = np.flatnonzero(units.record_count).tolist()
    return Published(
        [
            Unit(
                topics[int(units.topic[u])].topic,
                int(units.partition[u]),
                units.appended[u].base_offset if u in units.appended else int(units.high_watermark[u]),
                int(units.record_count[u]),
            )
            for u in touched
        ],
        refused_count=sum(record.record_count for record in dead),
        duplicate=bool(touched) and len(units.appended) == len(touched),
    )


def _produced(request: Produce, topics: Sequence[Topic], units: _Units) -> Produced:
    fresh = [u for u in np.flatnonzero(units.sequence >= 0).tolist() if u not in units.appended]
    return Produced(
        target=request.application.target if request.application else ",".join(t.topic for t in topics[:3]),
        producer_id=request.producer.producer_id if request.producer else None,
        producer_epoch=request.producer.producer_epoch if request.producer else None,
        units=[
            UnitAppended(
                topics[int(units.topic[u])].topic_id,
                int(units.partition[u]),
                int(units.sequence[u]),
                int(units.record_count[u]),
                int(units.high_watermark[u]),
            )
            for u in fresh
        ],
        txn_app_id=request.application.txn_app_id if request.application else None,
        txn_version=request.application.txn_version if request.application else None,
    )


def _segments(
    request: Produce,
    topics: Sequence[Topic],
    ranges: RangeColumns,
    units: _Units,
    files: Sequence[DataFile],
    now_ms: int,
) -> pa.RecordBatch:
    n = len(ranges)
    if n == 0:
        return NO_SEGMENTS
    base_offsets = dense_offsets(ranges.unit, ranges.record_count, units.high_watermark)
    by_sequencer = np.array([t.setting("message.timestamp.type") == "LogAppendTime" for t in topics])[
        ranges.topic
    ]
    producer_id = request.producer.producer_id if request.producer else None
    producer_epoch = request.producer.producer_epoch if request.producer else None
    # within a unit the sequence runs along with the offset, and the unit's first offset is its high watermark
    sequences = (units.sequence[ranges.unit] + base_offsets - units.high_watermark[ranges.unit]) % 2**31
    columns = [
        pa.repeat("data", n),
        np.array([t.topic_id for t in topics])[ranges.topic],
        pa.array([t.topic for t in topics]).take(pa.array(ranges.topic)),
        ranges.partition.astype(np.int32),
        base_offsets,
        ranges.record_count,
        pa.array([f.batch_id for f in files]).take(pa.array(ranges.file)),
        ranges.first_row,
        ranges.partition.astype(np.int32),
        np.where(by_sequencer, now_ms, ranges.min_timestamp_ms),
        np.where(by_sequencer, now_ms, ranges.max_timestamp_ms),
        pa.array(np.full(n, now_ms), mask=~by_sequencer),
        pa.repeat(pa.scalar(producer_id, pa.int64()), n),
        pa.repeat(pa.scalar(producer_epoch, pa.int32()), n),
        pa.array(sequences, mask=units.sequence[ranges.unit] < 0),
        np.zeros(n, np.bool_),
        pa.repeat("publish", n),
    ]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SEGMENT_SCHEMA)


def _dead_letters(request: Produce, files: Sequence[DataFile], inline_first_row: int) -> list[DeadLettered]:
    return [
        DeadLettered(
            r.source,
            files[max(r.file, 0)].batch_id,
            r.first_row + inline_first_row,
            r.record_count,
            r.error,
            r.reason,
        )
        for r in request.refused
    ]


def evolve_produced(state: State, record: Produced, segments: pa.RecordBatch) -> None:
    if segments.num_rows:
        topic_ids = segments.column("topic_id").to_numpy()
        partitions = segments.column("partition").to_numpy()
        ends = segments.column("base_offset").to_numpy() + segments.column("record_count").to_numpy()
        for topic_id in set(topic_ids.tolist()):
            mine = topic_ids == topic_id
            np.maximum.at(state.topics[topic_id].high_watermarks, partitions[mine], ends[mine])
    if record.producer_id is not None and record.producer_epoch is not None:
        evolve_appended(state, record.producer_id, record.producer_epoch, record.units)
    if record.txn_app_id is not None and record.txn_version is not None:
        known = Application(record.txn_version, state.now_ms)
        state.applications[record.txn_app_id, record.target] = known
