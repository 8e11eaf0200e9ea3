"""The log: ranges of rows become dense offsets of partitions. Decided as columns, whatever their number.

Invariant: an offset of a partition is given out once, to one row, and there is no hole below the high watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lakemq.tables.specs.messages import SEQUENCERS_FILES, FileFacts, file_stem

from ..errors import (
    FileMissing,
    InvalidRecord,
    InvalidRequest,
    InvalidTxnState,
    StaleApplicationVersion,
    StaleTopicMetadata,
)
from ..names import MAX_LENGTH, check_destination, shown
from ..values.base import MAX_SEQUENCE
from ..values.deciding import Decision, Given, InlineRows
from ..values.journal import JournalEntry
from ..values.log import (
    Application,
    ApplicationVersion,
    DataFile,
    DeadLettered,
    FilesAdded,
    PendingFile,
    Produce,
    Produced,
    Published,
    RowsJournaled,
    WaitingUnit,
)
from ..values.producers import UnitAppended, waiting_unit
from ..values.segments import NO_SEGMENTS, Segments, segments
from ..values.state import State
from ..values.topics import Topic, TopicRef
from .delays import decide_delayed
from .producers import evolve_appended
from .ranges import Column, RangeColumns, RowSource, dense_offsets
from .registries import Folds, Rules
from .timers import Timers
from .transactions import joined, open_transaction
from .units import Units, appended_before, named_units, refused_unit, units_of, was_refused_before

MAX_VERSION = 2**63 - 1


def decide_produce(state: State, request: Produce, given: Given) -> Decision:
    """Offsets for all ranges of the request, or a refusal of it as a whole.

    What was published before is answered as it was then, whatever became of its topics since: first by the
    application's version, then by the producer's sequences. But what belongs to a transaction that is over is refused.

    Raises InvalidRequest, UnknownProducerId, InvalidProducerEpoch, OutOfOrderSequenceNumber, StaleTopicMetadata,
    FileMissing, DelayQueueFull; of an application StaleApplicationVersion, InvalidTopic (its target is no destination);
    of a transaction InvalidProducerIdMapping, InvalidTxnState, InvalidRecord, TransactionAbortable.
    """
    _check_transaction(state, request)
    if request.application is not None and _is_old(state, request.application):
        return Decision(Published([], duplicate=True))
    source = _row_source(request, given.inline)
    ranges = RangeColumns.of(request.ranges, _partition_counts(request.topics), source)
    units = units_of(request, ranges)
    appended, refused = appended_before(state, request, units), refused_unit(request)
    dead = _dead_letters(request, source)
    refused_count = sum(record.record_count for record in dead)
    if was_refused_before(state, request, refused):
        dead, refused = [], None
    if len(appended) == len(units) and not dead and (appended or refused_count):
        told = [appended[unit] for unit in range(len(units))]
        return Decision(_published(request, units, told, refused_count, duplicate=True))
    topics = _current_topics(state, request)
    _check_files(request, given.facts)
    base_offsets = units.high_watermarks(topics)
    fresh = ranges.where(~np.isin(ranges.unit, list(appended))) if appended else ranges
    added = _appended(request, units, base_offsets, ranges, source)
    entries, waiting = _joined(state, request, topics, units, appended), []
    if fresh.waits.any():
        waiting = decide_delayed(state, request, topics, fresh.where(fresh.waits), source.files)
        fresh = fresh.where(~fresh.waits)
    if request.files and (len(fresh) or dead or waiting):
        entries.append(JournalEntry(FilesAdded(request.files)))
    if len(fresh) or waiting or request.application or request.transaction or refused:
        new = [one for unit, one in enumerate(added) if request.producer is not None and unit not in appended]
        produced = _produced(request, [*new, refused] if refused else new)
        lies = _segments(request, topics, fresh, units, base_offsets, source.files, state.now_ms)
        entries.append(JournalEntry(produced, lies))
    entries += [*waiting, *(JournalEntry(record) for record in dead)]
    told = [appended.get(unit, one) for unit, one in enumerate(added)]
    return Decision(_published(request, units, told, refused_count), tuple(entries))


def _check_transaction(state: State, request: Produce) -> None:
    ref, producer = request.transaction, request.producer
    if ref is None:
        known = state.producers.get(producer.producer_id) if producer else None
        if known is not None and known.transactional_id is not None:
            raise InvalidTxnState(
                "The producer of a transactional id publishes inside transactions only.", found=known.transactional_id
            )
        return
    open_transaction(state, ref)
    if request.application is not None:
        raise InvalidRequest("Inside a transaction the commit carries the version, not a publish.")
    if producer and (producer.producer_id, producer.producer_epoch) != (ref.producer_id, ref.producer_epoch):
        raise InvalidRequest("The sequences are another producer's than the transaction.", found=producer.producer_id)
    if request.refused:
        raise InvalidRecord(
            f"Inside a transaction one bad row refuses the publish: {request.refused[0].reason}",
            found=request.refused[0].error,
        )


def _is_old(state: State, application: ApplicationVersion) -> bool:
    check_destination(application.target)
    if not 0 <= application.txn_version <= MAX_VERSION:
        raise InvalidRequest(
            "txn_version is out of range.", found=application.txn_version, expected=f"0 to {MAX_VERSION}"
        )
    if not 1 <= len(application.txn_app_id) <= MAX_LENGTH:
        raise InvalidRequest(
            "txn_app_id is too short or too long.",
            found=f"{len(application.txn_app_id)} characters",
            expected=f"1 to {MAX_LENGTH}",
        )
    known = state.applications.get((application.txn_app_id, application.target))
    last = known.version if known else -1
    if application.txn_version > last and application.follows not in (None, last):
        raise StaleApplicationVersion(found=last, expected=application.follows)
    return application.txn_version <= last


def _row_source(request: Produce, inline: InlineRows | None) -> RowSource:
    if inline is None or request.files:
        return RowSource(request.files, [file.record_count for file in request.files])
    end = inline.first_row + inline.record_count
    return RowSource([inline.file], [end], inline.first_row + request.first_row, first_file=-1)


def _partition_counts(refs: Sequence[TopicRef]) -> list[int]:
    if len({ref.topic_id for ref in refs}) != len(refs):
        raise InvalidRequest("A topic is named twice.", found=[ref.topic for ref in refs])
    return [ref.partition_count for ref in refs]


def _current_topics(state: State, request: Produce) -> list[Topic]:
    if state.routing_step > request.metadata_step:
        raise StaleTopicMetadata(
            "Subscriptions have changed since.",
            found=f"step {request.metadata_step}",
            expected=f"step {state.routing_step} or later",
        )
    return [_current_topic(state, ref) for ref in request.topics]


def _current_topic(state: State, ref: TopicRef) -> Topic:
    topic = state.topics.get(ref.topic_id)
    if topic is None:
        raise StaleTopicMetadata(f"Topic {shown(ref.topic)} with id {ref.topic_id} is gone.")
    if topic.partition_count != ref.partition_count:
        raise StaleTopicMetadata(
            f"Topic {topic.topic} has another number of partitions.",
            found=ref.partition_count,
            expected=topic.partition_count,
        )
    return topic


def _check_files(request: Produce, facts: Mapping[int, FileFacts | None]) -> None:
    for file in request.files:
        if file.file_id >= SEQUENCERS_FILES:
            raise InvalidRequest(f"Data file {file_stem(file.file_id)} bears an id of the sequencer's own files.")
        found = facts.get(file.file_id)
        expected = FileFacts(file.size_bytes, file.record_count, file.footer_hash)
        if found != expected:
            raise FileMissing(
                f"Data file {file_stem(file.file_id)} is not there as the request says.",
                found="no file" if found is None else _told(found),
                expected=_told(expected),
            )


def _told(file: FileFacts) -> str:
    return f"{file.size_bytes} bytes, {file.flaw or f'{file.record_count} rows, footer {file.footer_hash}'}"


def _joined(
    state: State, request: Produce, topics: Sequence[Topic], units: Units, appended: Mapping[int, UnitAppended]
) -> list[JournalEntry]:
    """What its transaction touches from now on; nothing outside of one."""
    if request.transaction is None:
        return []
    places = zip(units.topic_index.tolist(), units.partition.tolist(), strict=True)
    touched = {(topics[index].topic_id, p) for unit, (index, p) in enumerate(places) if unit not in appended and p >= 0}
    return joined(state, request.transaction, touched)


def _appended(
    request: Produce, units: Units, base_offsets: Column, ranges: RangeColumns, source: RowSource
) -> list[UnitAppended]:
    """The units, as they are if they are new."""
    columns = [units.topic_index, units.partition, units.sequence, units.record_count, base_offsets]
    file_ids: list[int | None] = [None] * len(units)
    if (waits := units.partition < 0).any() and not request.files:
        # where the rows of a file are knows who wrote it
        first = np.unique(ranges.unit, return_index=True)[1]
        columns[4] = np.where(waits, ranges.first_row[first], base_offsets)
        found = zip(waits.tolist(), ranges.file[first].tolist(), strict=True)
        file_ids = [source.files[file].file_id if waits else None for waits, file in found]
    return [
        UnitAppended(request.topics[index].topic_id, *rest)
        for index, *rest in zip(*(column.tolist() for column in columns), file_ids, strict=True)
    ]


def _published(
    request: Produce, units: Units, told: Sequence[UnitAppended], refused_count: int, duplicate: bool = False
) -> Published:
    """told: per unit, of one that came before what was appended then."""
    waiting = [
        WaitingUnit(one.topic_id, waiting_unit(one.partition), one.record_count, one.file_id, one.base_offset)
        for one in told
        if one.partition < 0
    ]
    named = named_units(request, units, [one.base_offset for one in told])
    return Published(named, refused_count, duplicate, waiting)


def _produced(request: Produce, units: list[UnitAppended]) -> Produced:
    application, author = request.application, request.producer or request.transaction
    return Produced(
        target=application.target if application else ",".join(ref.topic for ref in request.topics[:3]),
        transactional_id=request.transaction.transactional_id if request.transaction else None,
        producer_id=author.producer_id if author else None,
        producer_epoch=author.producer_epoch if author else None,
        units=units,
        txn_app_id=application.txn_app_id if application else None,
        txn_version=application.txn_version if application else None,
    )


def _segments(
    request: Produce,
    topics: Sequence[Topic],
    ranges: RangeColumns,
    units: Units,
    unit_offsets: Column,
    files: Sequence[DataFile | PendingFile],
    now_ms: int,
) -> Segments:
    n = len(ranges)
    if n == 0:
        return NO_SEGMENTS
    base_offsets = dense_offsets(ranges.unit, ranges.record_count, unit_offsets)
    # within a unit the sequence runs along with the offset
    sequences = (units.sequence[ranges.unit] + base_offsets - unit_offsets[ranges.unit]) % (MAX_SEQUENCE + 1)
    stamped = [t.setting("message.timestamp.type") == "LogAppendTime" for t in topics]
    by_sequencer = [stamped[t] for t in ranges.topic_index.tolist()]
    partition, author = ranges.partition.tolist(), request.producer or request.transaction
    lives = [t.ttl(request.has_ttl, now_ms) for t in topics]
    ttl_from_ms, ttl_ms = zip(*(lives[t] for t in ranges.topic_index.tolist()), strict=True)
    return segments(
        n,
        kind=["data"] * n,
        topic_id=[topics[t].topic_id for t in ranges.topic_index.tolist()],
        topic=[topics[t].topic for t in ranges.topic_index.tolist()],
        partition=partition,
        base_offset=base_offsets.tolist(),
        record_count=ranges.record_count.tolist(),
        last_offset=(base_offsets + ranges.record_count - 1).tolist(),
        file_id=[files[f].file_id for f in ranges.file.tolist()],
        footer_hash=[files[f].footer_hash for f in ranges.file.tolist()],
        first_row=ranges.first_row.tolist(),
        file_partition=partition,
        min_timestamp_ms=_times(ranges.min_timestamp_ms, by_sequencer, now_ms),
        max_timestamp_ms=_times(ranges.max_timestamp_ms, by_sequencer, now_ms),
        append_time_ms=[now_ms if stamped else None for stamped in by_sequencer],
        ttl_from_ms=list(ttl_from_ms),
        ttl_ms=list(ttl_ms),
        producer_id=[author.producer_id if author else None] * n,
        producer_epoch=[author.producer_epoch if author else None] * n,
        base_sequence=sequences.tolist() if request.producer else [None] * n,
        transactional=[request.transaction is not None] * n,
        origin=["publish"] * n,
    )


def _times(times_ms: Column, by_sequencer: Sequence[bool], now_ms: int) -> list[int]:
    return [now_ms if stamped else ms for ms, stamped in zip(times_ms.tolist(), by_sequencer, strict=True)]


def _dead_letters(request: Produce, source: RowSource) -> list[DeadLettered]:
    dead = []
    for rows in request.refused:
        file, first_row = source.place(rows.file, rows.first_row)
        if not 0 <= file < len(source.files) or first_row + rows.record_count > source.ends[file]:
            raise InvalidRequest("The refused rows are not there.", found=f"file {rows.file}, row {rows.first_row}")
        file_id = source.files[file].file_id
        dead.append(DeadLettered(rows.source, file_id, first_row, rows.record_count, rows.error, rows.reason))
    return dead


def evolve_produced(state: State, record: Produced, segments: Segments) -> None:
    if len(segments):
        names = ("topic_id", "partition", "base_offset", "record_count")
        for topic_id, partition, offset, count in zip(*(segments.column(n) for n in names), strict=True):
            topic = state.own(topic_id)
            # those of a partition stand in the order of their offsets: the last one is the furthest
            topic.high_watermarks[partition] = offset + count
            if record.transactional_id is not None and record.producer_id is not None:
                # the log is stable before the first offset only
                topic.open_transactions.setdefault(partition, {}).setdefault(record.producer_id, offset)
    if transaction := state.transactions.get(record.transactional_id or ""):
        transaction.part_count += 1
    if record.producer_id is not None and record.producer_epoch is not None:
        evolve_appended(state, record.producer_id, record.producer_epoch, record.units)
    if record.txn_app_id is not None and record.txn_version is not None:
        known = Application(record.txn_version, state.now_ms)
        state.applications[record.txn_app_id, record.target] = known


def evolve_nothing(state: State, record: FilesAdded | RowsJournaled | DeadLettered, segments: Segments) -> None:
    """They are for the tables only."""


DECIDE: Rules = {Produce: decide_produce}
EVOLVE: Folds = {
    Produced: evolve_produced,
    FilesAdded: evolve_nothing,
    RowsJournaled: evolve_nothing,
    DeadLettered: evolve_nothing,
}
TIMERS: Timers = ()
