"""The log: ranges of rows get dense offsets in their partitions, and become final later.

The rules work on columns, because a request may have many ranges.

Invariant: an offset of a partition is given to one row, once, and there is no gap below the high watermark.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from lakemq.tables.specs.messages import SEQUENCERS_FILES, FileFacts, file_stem

from ..errors import (
    FileMissing,
    InvalidRecord,
    InvalidRequest,
    InvalidTxnState,
    StaleApplicationVersion,
    StaleTopicMetadata,
)
from ..names import MAX_LENGTH, check_destination, shorten
from ..values.base import MAX_SEQUENCE, Done
from ..values.decision import Decision, DecisionInputs, InlineRows
from ..values.journal import JournalEntry
from ..values.log import (
    Application,
    ApplicationVersion,
    DataFile,
    FilesAdded,
    PendingFile,
    Produce,
    Produced,
    Published,
    RangesFinalized,
    RangesWritten,
    RowsJournaled,
    RowsRejected,
    WaitingUnit,
    find_range_ends,
)
from ..values.producers import UnitAppended, waiting_unit
from ..values.segments import NO_SEGMENTS, Segments, build_segments
from ..values.state import State
from ..values.topics import Topic, TopicRef
from .clients import remember_units
from .delays import decide_delayed_rows
from .timers import Folds, Rules, Timers
from .transactions import build_join_entries, check_can_join
from .units import (
    Column,
    RangeColumns,
    RowSource,
    Units,
    build_rejected_unit,
    build_units,
    compute_base_offsets,
    find_earlier_appends,
    is_repeated_rejection,
    list_log_units,
)

MAX_VERSION = 2**63 - 1

T = TypeVar("T")


def decide_produce(state: State, request: Produce, inputs: DecisionInputs) -> Decision:
    """Give offsets to all ranges of the request, or refuse it as a whole.

    A repeat gets the answer that it got the first time, even if its topics have changed since. It is recognized by the
    version of the application, then by the sequences of the producer. But a publish in a transaction that is over is
    refused.

    Raises InvalidRequest, UnknownProducerId, InvalidProducerEpoch, OutOfOrderSequenceNumber, StaleTopicMetadata,
    FileMissing, DelayQueueFull; for an application StaleApplicationVersion, InvalidTopic (its target is not a
    destination); for a transaction InvalidProducerIdMapping, InvalidTxnState, InvalidRecord, TransactionAbortable.
    """
    _check_transaction(state, request)
    if request.application is not None and _is_repeat(state, request.application):
        return Decision(Published([], duplicate=True))
    source = _find_row_source(request, inputs.inline)
    ranges = RangeColumns.from_ranges(request.ranges, _list_partition_counts(request.topics), source)
    units = build_units(request, ranges)
    earlier, rejected_unit = find_earlier_appends(state, request, units), build_rejected_unit(request)
    rejections = _build_rejections(request, source)
    rejected_count = sum(record.record_count for record in rejections)
    if is_repeated_rejection(state, request, rejected_unit):
        rejections, rejected_unit = [], None
    if len(earlier) == len(units) and not rejections and (earlier or rejected_count):
        answers = [earlier[unit] for unit in range(len(units))]
        return Decision(_build_result(request, units, answers, rejected_count, duplicate=True))
    topics = _find_current_topics(state, request)
    _check_files(request, inputs.facts)
    base_offsets = units.high_watermarks(topics)
    new_ranges = ranges.where(unit not in earlier for unit in ranges.unit) if earlier else ranges
    appends = _build_appends(request, units, base_offsets, ranges, source)
    entries, waiting = _build_join_entries(state, request, topics, units, earlier), []
    if new_ranges.has_waiting:
        waits = new_ranges.waits
        waiting = decide_delayed_rows(state, request, topics, new_ranges.where(waits), source.files)
        new_ranges = new_ranges.where(not is_waiting for is_waiting in waits)
    if request.files and (len(new_ranges) or rejections or waiting):
        entries.append(JournalEntry(FilesAdded(request.files)))
    if len(new_ranges) or waiting or request.application or request.transaction or rejected_unit:
        new_appends = [
            append for unit, append in enumerate(appends) if request.producer is not None and unit not in earlier
        ]
        produced = _build_record(request, [*new_appends, rejected_unit] if rejected_unit else new_appends)
        segments = _build_segments(request, topics, new_ranges, units, base_offsets, source.files, state.now_ms)
        entries.append(JournalEntry(produced, segments))
    entries += [*waiting, *(JournalEntry(record) for record in rejections)]
    answers = [earlier.get(unit, append) for unit, append in enumerate(appends)]
    return Decision(_build_result(request, units, answers, rejected_count), tuple(entries))


def _check_transaction(state: State, request: Produce) -> None:
    ref, producer = request.transaction, request.producer
    if ref is None:
        state_of_producer = state.producers.get(producer.producer_id) if producer else None
        if state_of_producer is not None and state_of_producer.transactional_id is not None:
            raise InvalidTxnState(
                "A producer with a transactional id can only publish inside a transaction.",
                found=state_of_producer.transactional_id,
            )
        return
    check_can_join(state, ref)
    if request.application is not None:
        raise InvalidRequest("Inside a transaction, give the application's version to the commit, not to a publish.")
    if producer and (producer.producer_id, producer.producer_epoch) != (ref.producer_id, ref.producer_epoch):
        raise InvalidRequest(
            "The sequences belong to another producer than the transaction.", found=producer.producer_id
        )
    if request.rejected:
        raise InvalidRecord(
            f"Inside a transaction a bad row refuses the whole publish: {request.rejected[0].reason}",
            found=request.rejected[0].error,
        )


def _is_repeat(state: State, application: ApplicationVersion) -> bool:
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
    published = state.applications.get((application.txn_app_id, application.target))
    last = published.version if published else -1
    if application.txn_version > last and application.follows not in (None, last):
        raise StaleApplicationVersion(found=last, expected=application.follows)
    return application.txn_version <= last


def _find_row_source(request: Produce, inline: InlineRows | None) -> RowSource:
    if inline is None or request.files:
        return RowSource(request.files, [file.record_count for file in request.files])
    end = inline.first_row + inline.record_count
    return RowSource([inline.file], [end], inline.first_row + request.first_row, first_file=-1)


def _list_partition_counts(refs: Sequence[TopicRef]) -> list[int]:
    if len({ref.topic_id for ref in refs}) != len(refs):
        raise InvalidRequest("The request names a topic twice.", found=[ref.topic for ref in refs])
    return [ref.partition_count for ref in refs]


def _find_current_topics(state: State, request: Produce) -> list[Topic]:
    if state.routing_step > request.metadata_step:
        raise StaleTopicMetadata(
            "Subscriptions have changed since the client loaded its metadata.",
            found=f"step {request.metadata_step}",
            expected=f"step {state.routing_step} or later",
        )
    return [_find_current_topic(state, ref) for ref in request.topics]


def _find_current_topic(state: State, ref: TopicRef) -> Topic:
    topic = state.topics.get(ref.topic_id)
    if topic is None:
        raise StaleTopicMetadata(f"Topic {shorten(ref.topic)} with id {ref.topic_id} is gone.")
    if topic.partition_count != ref.partition_count:
        raise StaleTopicMetadata(
            f"Topic {topic.topic} has a different number of partitions now.",
            found=ref.partition_count,
            expected=topic.partition_count,
        )
    return topic


def _check_files(request: Produce, facts: Mapping[int, FileFacts | None]) -> None:
    for file in request.files:
        if file.file_id >= SEQUENCERS_FILES:
            raise InvalidRequest(
                f"Data file {file_stem(file.file_id)} has an id that is reserved for the sequencer's own files."
            )
        stored = facts.get(file.file_id)
        expected = FileFacts(file.size_bytes, file.record_count, file.footer_hash)
        if stored != expected:
            raise FileMissing(
                f"Data file {file_stem(file.file_id)} does not exist, or differs from what the request says.",
                found="no file" if stored is None else _describe_file(stored),
                expected=_describe_file(expected),
            )


def _describe_file(file: FileFacts) -> str:
    return f"{file.size_bytes} bytes, {file.flaw or f'{file.record_count} rows, footer {file.footer_hash}'}"


def _build_join_entries(
    state: State, request: Produce, topics: Sequence[Topic], units: Units, earlier: Mapping[int, UnitAppended]
) -> list[JournalEntry]:
    """Return the entries that add the touched partitions to the transaction; none outside a transaction."""
    if request.transaction is None:
        return []
    places = zip(units.topic_index, units.partition, strict=True)
    touched = {(topics[index].topic_id, p) for unit, (index, p) in enumerate(places) if unit not in earlier and p >= 0}
    return build_join_entries(state, request.transaction, touched)


def _build_appends(
    request: Produce, units: Units, base_offsets: Column, ranges: RangeColumns, source: RowSource
) -> list[UnitAppended]:
    """Return what each unit appends if it is new."""
    topic_ids = [request.topics[index].topic_id for index in units.topic_index]
    columns = (topic_ids, units.partition, units.sequence, units.record_count, base_offsets)
    appends = list(map(UnitAppended, *columns))
    if ranges.has_waiting and not request.files:
        # rows that travelled in the letter: only the sequencer knows their file, so the record names it
        for unit, first in enumerate(ranges.list_first_of_units()):
            if units.partition[unit] < 0:
                file_id, first_row = source.files[ranges.file[first]].file_id, ranges.first_row[first]
                appends[unit] = msgspec.structs.replace(appends[unit], base_offset=first_row, file_id=file_id)
    return appends


def _build_result(
    request: Produce, units: Units, appends: Sequence[UnitAppended], rejected_count: int, duplicate: bool = False
) -> Published:
    """Return the result. appends: one per unit; for a repeated unit its first append."""
    waiting = [
        WaitingUnit(
            append.topic_id, waiting_unit(append.partition), append.record_count, append.file_id, append.base_offset
        )
        for append in appends
        if append.partition < 0
    ]
    named = list_log_units(request, units, [append.base_offset for append in appends])
    return Published(named, rejected_count, duplicate, waiting)


def _build_record(request: Produce, units: list[UnitAppended]) -> Produced:
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


def _build_segments(
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
    base_offsets = compute_base_offsets(ranges.unit, ranges.record_count, unit_offsets)
    sequences: list[int | None] = [None] * n
    if request.producer:  # within a unit, sequence and offset grow together
        sequences = [
            (units.sequence[unit] + offset - unit_offsets[unit]) % (MAX_SEQUENCE + 1)
            for unit, offset in zip(ranges.unit, base_offsets, strict=True)
        ]
    partition, author = list(ranges.partition), request.producer or request.transaction

    def repeat_per_range(values: list[T]) -> list[T]:
        """Return the value of each range's topic. values: one per topic."""
        return values * n if len(values) == 1 else [values[t] for t in ranges.topic_index]

    stamped = repeat_per_range([t.setting("message.timestamp.type") == "LogAppendTime" for t in topics])
    lives = [t.ttl(request.has_ttl, now_ms) for t in topics]
    return build_segments(
        n,
        kind=["data"] * n,
        topic_id=repeat_per_range([t.topic_id for t in topics]),
        topic=repeat_per_range([t.topic for t in topics]),
        partition=partition,
        base_offset=base_offsets,
        record_count=list(ranges.record_count),
        last_offset=[offset + count - 1 for offset, count in zip(base_offsets, ranges.record_count, strict=True)],
        file_id=[files[f].file_id for f in ranges.file],
        footer_hash=[files[f].footer_hash for f in ranges.file],
        first_row=list(ranges.first_row),
        file_partition=partition,
        min_timestamp_ms=_list_times(ranges.min_timestamp_ms, stamped, now_ms),
        max_timestamp_ms=_list_times(ranges.max_timestamp_ms, stamped, now_ms),
        append_time_ms=[now_ms if is_append_time else None for is_append_time in stamped],
        ttl_from_ms=repeat_per_range([from_ms for from_ms, _ in lives]),
        ttl_ms=repeat_per_range([ttl_ms for _, ttl_ms in lives]),
        producer_id=[author.producer_id if author else None] * n,
        producer_epoch=[author.producer_epoch if author else None] * n,
        base_sequence=sequences,
        transactional=[request.transaction is not None] * n,
        origin=["publish"] * n,
    )


def _list_times(times_ms: Column, stamped: Sequence[bool], now_ms: int) -> list[int]:
    """Return the times, replaced by now where the topic's messages get the time of their step."""
    if not any(stamped):
        return list(times_ms)
    return [now_ms if is_append_time else ms for ms, is_append_time in zip(times_ms, stamped, strict=True)]


def _build_rejections(request: Produce, source: RowSource) -> list[RowsRejected]:
    rejections = []
    for rows in request.rejected:
        file, first_row = source.locate(rows.file, rows.first_row)
        if not 0 <= file < len(source.files) or first_row + rows.record_count > source.ends[file]:
            raise InvalidRequest("The rejected rows do not exist.", found=f"file {rows.file}, row {rows.first_row}")
        file_id = source.files[file].file_id
        rejections.append(RowsRejected(rows.source, file_id, first_row, rows.record_count, rows.error, rows.reason))
    return rejections


def append_rows(state: State, record: Produced, segments: Segments) -> None:
    if len(segments):
        state.change_partitions(segments)
        names = ("topic_id", "partition", "base_offset", "record_count")
        for topic_id, partition, offset, count in zip(*(segments.column(n) for n in names), strict=True):
            topic = state.topics[topic_id]
            # segments of a partition come in the order of their offsets, so the last one sets the high watermark
            topic.high_watermarks[partition] = offset + count
            if record.transactional_id is not None and record.producer_id is not None:
                # read_committed ends at the transaction's first offset, so later ones do not replace it
                topic.open_transactions.setdefault(partition, {}).setdefault(record.producer_id, offset)
    if record.transactional_id is not None and (transaction := state.change_transaction(record.transactional_id)):
        transaction.part_count += 1
    if record.producer_id is not None and record.producer_epoch is not None:
        remember_units(state, record.producer_id, record.producer_epoch, record.units)
    if record.txn_app_id is not None and record.txn_version is not None:
        application = Application(record.txn_version, state.now_ms)
        state.set_application(record.txn_app_id, record.target, application)


def ignore_record(state: State, record: FilesAdded | RowsJournaled | RowsRejected, segments: Segments) -> None:
    """Do nothing: these records only matter to the tables."""


# Final messages: decide that ranges of messages are in files of `final_messages`.
#
# Invariants: `final_offset` of a partition only grows, and never passes its last stable offset. Each range begins where
# the one before has ended. So each committed message is in one file, once, and of two writers the second one is
# refused.


def decide_final_ranges(state: State, written: RangesWritten, inputs: DecisionInputs) -> Decision:
    """Accept the files. If the topic or its log has changed meanwhile, they are left over.

    Raises InvalidRequest: a range does not begin at the final offset, or ends beyond the last stable offset.
    """
    topic = state.topics.get(written.topic_id)
    if topic is None:
        return Decision(Done())
    stable = topic.last_stable_offsets
    for partition, (first, end) in find_range_ends(written.ranges).items():
        topic.find_partition(partition)
        final = int(topic.final_offsets[partition])
        if first != final or end > stable[partition]:
            raise InvalidRequest(
                f"These offsets of {topic.topic}-{partition} cannot become final now.",
                found=f"{first} to {end - 1}",
                expected=f"from {final}, below {stable[partition]}",
            )
    record = RangesFinalized(topic.topic_id, topic.topic, written.files, written.ranges)
    return Decision(Done(), (JournalEntry(record),))


def advance_final_offsets(state: State, record: RangesFinalized, segments: Segments) -> None:
    for partition, (_, end) in find_range_ends(record.ranges).items():
        state.change_partition(record.topic_id, partition).final_offsets[partition] = end


DECIDE: Rules = {Produce: decide_produce, RangesWritten: decide_final_ranges}

EVOLVE: Folds = {
    Produced: append_rows,
    FilesAdded: ignore_record,
    RowsJournaled: ignore_record,
    RowsRejected: ignore_record,
    RangesFinalized: advance_final_offsets,
}

TIMERS: Timers = ()
