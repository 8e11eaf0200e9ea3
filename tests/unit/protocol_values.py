"""Values of every kind of request, result and record, for tests to draw.

A kind that is missing here fails `tests/unit/test_protocol_subjects.py`.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.clients import Answered, ClientRemoved
from lakemq.engine.protocol.values.consuming.assignments import PartitionStatus
from lakemq.engine.protocol.values.consuming.groups import (
    Assigned,
    ConfigureGroup,
    DeleteGroup,
    GroupConfigured,
    GroupForgotten,
    JoinGroup,
    LeaveGroup,
    MemberJoined,
    MemberLeft,
    MemberMissed,
    Move,
    PartitionsAdded,
    PartitionsGone,
    PartitionsMoved,
    RebalanceCompleted,
    RebalanceDelayed,
    ReleasePartitions,
    TargetSet,
)
from lakemq.engine.protocol.values.consuming.offsets import (
    CommitOffsets,
    CommittedChange,
    DeleteOffsets,
    FetchOffsets,
    OffsetCommit,
    OffsetsChanged,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetsJudged,
    OffsetsRemoved,
    ResetOffsets,
    ResetPartition,
)
from lakemq.engine.protocol.values.delayed.delays import (
    CancelDelays,
    CancelOutcome,
    Delayed,
    DelayedRanges,
    DelaysCancelled,
    DelaysDropped,
    DelaysJudged,
    DelaysReleased,
    DelaysSettled,
    EndedRanges,
    RescheduleDelays,
)
from lakemq.engine.protocol.values.journal import AnyRecord
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.leader import LeaderElected
from lakemq.engine.protocol.values.log import (
    ApplicationVersion,
    DataFile,
    FilesAdded,
    Produce,
    Produced,
    Published,
    Ranges,
    RejectedRows,
    RowsJournaled,
    RowsRejected,
    Unit,
    WaitingUnit,
)
from lakemq.engine.protocol.values.producers import (
    InitProducer,
    ProducerDone,
    ProducerExpired,
    ProducerInitialized,
    ProducerSequences,
    TransactionRef,
    UnitAppended,
)
from lakemq.engine.protocol.values.queues.dead_letters import (
    DeadLettersJudged,
    DeadLettersSettled,
    MessagesDeadLettered,
    SettleDeadLetters,
)
from lakemq.engine.protocol.values.queues.deliveries import (
    Acknowledge,
    Acknowledgement,
    AcknowledgementsJudged,
    AckOutcome,
    Acquire,
    MessageRanges,
    MessagesAcquired,
    MessagesPassed,
    MessagesSettled,
    SettledMessages,
    WantedMessages,
)
from lakemq.engine.protocol.values.queues.stretches import DeathReason, DeliveryStatus
from lakemq.engine.protocol.values.segments import Segments
from lakemq.engine.protocol.values.topics import (
    AlterTopic,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    PartitionsEnded,
    RecordsDeleted,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    TopicDone,
    TopicRef,
)
from lakemq.engine.protocol.values.transactions import (
    AbortTransaction,
    EndReason,
    EndTransaction,
    MarkersWritten,
    TransactionEnded,
    TransactionFailed,
    TransactionMoved,
    TransactionStatus,
)
from lakemq.tables.specs.segments import SEGMENT_SCHEMA

Kinds = dict[type[Any], st.SearchStrategy[Any]]

file_ids = st.integers(0, 2**62 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
small = st.integers(0, 3)
counts = small | st.integers(0, 2**40)
millis = st.integers(-(2**54), 2**54)
sequences = small | st.integers(0, 2**31 - 1)
segment_rows = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["data", "commit", "abort"]),
        "topic_id": st.integers(0, 2**62),
        "topic": texts,
        "partition": st.integers(0, 2**31 - 1),
        "base_offset": st.integers(0, 2**62),
        "record_count": counts,
        "last_offset": st.integers(0, 2**62),
        "file_id": file_ids | st.none(),
        "first_row": counts | st.none(),
        "file_partition": st.none(),
        "footer_hash": st.none() | st.integers(-(2**63), 2**63 - 1),
        "min_timestamp_ms": millis | st.none(),
        "max_timestamp_ms": millis,
        "append_time_ms": st.none() | millis,
        "ttl_from_ms": st.none() | millis,
        "ttl_ms": st.none() | counts,
        "decided_at_ms": st.none() | millis,
        "producer_id": st.none() | small,
        "producer_epoch": st.none() | small,
        "base_sequence": st.none() | sequences,
        "transactional": st.booleans(),
        "origin": st.just("publish"),
        "first_offset": st.none() | st.integers(0, 2**62),
        "dead_letter": st.none() | texts,
        "source_offset": st.none() | st.integers(0, 2**62),
    }
)
segments = st.lists(segment_rows, max_size=4).map(
    lambda rows: Segments([[row[name] for row in rows] for name in SEGMENT_SCHEMA.names])
)


def columns(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=3)


dues = st.just(-1) | st.integers(-1, 3) | st.integers(-1, 2**54)
RANGE = (small, small, st.integers(-1, 1), counts, counts, millis, millis, dues, dues)
settled = st.builds(
    SettledMessages,
    small,
    small,
    st.sampled_from(DeliveryStatus),
    st.lists(st.tuples(small, counts), max_size=3),
    counts,
    st.booleans(),
    st.none() | st.sampled_from(DeathReason),
    texts,
)
delayed_ranges = st.integers(0, 3).flatmap(
    lambda n: st.builds(
        DelayedRanges,
        *(
            st.lists(strategy, min_size=n, max_size=n)
            for strategy in (counts, texts, small, file_ids, st.none() | millis, *(counts,) * 2, *(millis,) * 4)
        ),
        st.just([]) | st.lists(st.booleans(), min_size=n, max_size=n),
        st.just([]) | st.lists(counts, min_size=n, max_size=n),
    )
)
ended_ranges = st.builds(
    lambda ranges, *more: EndedRanges(
        *(getattr(ranges, name) for name in DelayedRanges.__struct_fields__),
        *(column[: len(ranges.topic)] for column in more),
    ),
    delayed_ranges,
    st.just([]) | st.lists(counts, min_size=3, max_size=3),
    *[st.just([]) | st.lists(st.lists(counts, max_size=2), min_size=3, max_size=3)] * 2,
)


def even_ranges(length: int) -> st.SearchStrategy[Ranges]:
    return st.builds(Ranges, *(st.lists(column, min_size=length, max_size=length) for column in RANGE))


epochs = small | st.integers(0, 2**15 - 1)
transactional_ids = st.sampled_from(["etl", "etl", "other", ""]) | texts
transaction_refs = st.builds(TransactionRef, transactional_ids, small | st.integers(0, 2**62), epochs)
files = st.builds(DataFile, file_ids, counts, counts, millis, millis, st.integers(-(2**63), 2**63 - 1))
produces = st.builds(
    Produce,
    topics=st.lists(st.builds(TopicRef, st.sampled_from(["t", "u"]), small, small), max_size=3),
    ranges=st.builds(Ranges, *map(columns, RANGE)) | st.integers(0, 3).flatmap(even_ranges),
    metadata_step=counts,
    files=st.lists(files, max_size=2),
    rejected=st.lists(st.builds(RejectedRows, texts, st.integers(-1, 3), counts, counts, texts, texts), max_size=2),
    producer=st.none()
    | st.builds(ProducerSequences, small, epochs, columns(small), columns(small), columns(sequences)),
    application=st.none() | st.builds(ApplicationVersion, texts, st.integers(), st.sampled_from(["t", "x/y", "", ":"])),
    transaction=st.none() | transaction_refs,
    first_row=counts,
    has_ttl=st.booleans(),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=4
)
configs = st.dictionaries(st.sampled_from(["retention.ms", "partitioner", "x"]), json_values, max_size=2)
names = st.sampled_from(["t", "u", "..", "t/u", ">"]) | texts
offsets = st.lists(
    st.builds(
        OffsetCommit, names, st.integers(-1, 2) | st.integers(), st.integers(-1, 3) | st.integers(), st.none() | texts
    ),
    max_size=3,
)
topic_partitions = st.lists(st.tuples(names, st.integers(-1, 2) | st.integers()), max_size=3)
members = st.sampled_from(["C1", "C2", "", "x" * 250]) | texts
assignors = st.sampled_from(["range", "sticky", "", "x" * 250]) | texts
group_configs = st.dictionaries(st.sampled_from(["group.protocol", "group.assignor", "x"]), json_values, max_size=2)
message_ranges = st.lists(st.tuples(counts, counts), min_size=1, max_size=3)
group_places = st.lists(st.tuples(small, small), max_size=3)
REQUESTS: Kinds = {
    CreateTopic: st.builds(
        CreateTopic, names, st.integers(-1, 4) | st.integers(), configs, st.lists(names, max_size=2)
    ),
    AlterTopic: st.builds(
        AlterTopic,
        names,
        configs,
        st.none() | st.integers(-1, 5),
        st.none() | st.lists(names, max_size=2),
        st.booleans(),
        st.none() | st.integers(0, 2),
    ),
    DeleteTopic: st.builds(DeleteTopic, names),
    DeleteRecords: st.builds(
        DeleteRecords, names, st.dictionaries(st.integers(), st.integers(-2, 3) | st.integers(), max_size=2)
    ),
    InitProducer: st.builds(InitProducer, st.none() | transactional_ids, st.integers(-1, 9) | st.integers()),
    CommitOffsets: st.builds(CommitOffsets, names, offsets, st.none() | transaction_refs, st.none() | members),
    FetchOffsets: st.builds(FetchOffsets, names, st.none() | topic_partitions, st.booleans()),
    EndTransaction: st.builds(
        EndTransaction, transaction_refs, st.booleans(), small | counts, st.none() | small | st.integers(0, 2**62)
    ),
    AbortTransaction: st.builds(AbortTransaction, transactional_ids),
    Produce: produces,
    JoinGroup: st.builds(
        JoinGroup,
        names,
        members,
        st.lists(names, max_size=3),
        st.none() | texts,
        st.none() | members,
        st.integers(5_999, 6_001) | st.integers(),
        st.integers(-1, 2) | st.integers(),
        st.sampled_from(["earliest", "latest", "none", ""]),
        group_configs,
        st.lists(st.builds(Assigned, small, small, counts), max_size=2),
        st.booleans(),
        st.none() | texts,
        st.none() | texts,
        st.none() | counts,
        st.lists(assignors, max_size=3),
    ),
    LeaveGroup: st.builds(LeaveGroup, names, st.lists(members, max_size=2), st.lists(members, max_size=2)),
    ReleasePartitions: st.builds(
        ReleasePartitions, names, members, st.lists(st.builds(Assigned, small, small, counts), max_size=3)
    ),
    ConfigureGroup: st.builds(ConfigureGroup, names, group_configs, st.booleans()),
    SettleDeadLetters: st.builds(
        SettleDeadLetters,
        names,
        small,
        st.dictionaries(small, st.lists(st.tuples(small | counts, counts), max_size=3), max_size=2),
        st.booleans(),
    ),
    Acquire: st.builds(
        Acquire, names, members, st.lists(st.builds(WantedMessages, small, small, small | counts, counts), max_size=3)
    ),
    Acknowledge: st.builds(
        Acknowledge,
        names,
        members,
        st.lists(
            st.builds(
                Acknowledgement,
                small,
                small,
                small | counts,
                st.sampled_from(AckOutcome),
                st.lists(st.tuples(small | counts, small | counts), max_size=3),
                st.none() | counts,
                st.none() | small,
                st.text(max_size=1_000),
            ),
            max_size=3,
        ),
        st.none() | transaction_refs,
    ),
    DeleteGroup: st.builds(DeleteGroup, names),
    DeleteOffsets: st.builds(DeleteOffsets, names, st.lists(st.tuples(names, st.none() | st.integers()), max_size=3)),
    ResetOffsets: st.builds(
        ResetOffsets,
        names,
        st.sampled_from(["earliest", "latest", "offset", "shift"]),
        st.integers(),
        st.none()
        | st.lists(
            st.builds(ResetPartition, names, st.none() | small, st.none() | st.integers(), st.none() | small),
            max_size=3,
        ),
        st.booleans(),
    ),
    CancelDelays: st.builds(CancelDelays, columns(small), columns(file_ids), columns(small), columns(small))
    | st.builds(
        CancelDelays,
        *(st.lists(strategy, min_size=1, max_size=1) for strategy in (small, file_ids, small, small, small)),
    ),
    RescheduleDelays: st.builds(RescheduleDelays, columns(small), columns(file_ids), *(columns(small),) * 4)
    | st.builds(
        RescheduleDelays,
        *(st.lists(strategy, min_size=1, max_size=1) for strategy in (small, file_ids, small, small, small, counts)),
    ),
}

RESULTS: Kinds = {
    Done: st.just(Done()),
    TopicDone: st.builds(TopicDone, small, small),
    ProducerDone: st.builds(ProducerDone, small, epochs, st.integers(-1, 3)),
    Published: st.builds(
        Published,
        columns(st.builds(Unit, texts, small, counts, counts)),
        counts,
        st.booleans(),
        columns(st.builds(WaitingUnit, counts, small, counts, st.none() | file_ids, counts)),
    ),
    DelaysJudged: st.builds(DelaysJudged, columns(st.sampled_from(CancelOutcome)), columns(small), columns(counts)),
    OffsetsFetched: st.builds(OffsetsFetched, offsets),
    OffsetsJudged: st.builds(OffsetsJudged, columns(small)),
    DeadLettersJudged: st.builds(DeadLettersJudged, counts),
    AcknowledgementsJudged: st.builds(
        AcknowledgementsJudged,
        columns(small),
        columns(small),
        st.lists(st.lists(st.tuples(small, small), max_size=2), max_size=2),
    ),
    OffsetsChanged: st.builds(
        OffsetsChanged, columns(st.builds(CommittedChange, texts, small, st.none() | counts, st.none() | counts))
    ),
    TransactionEnded: st.builds(TransactionEnded, small, epochs, st.booleans()),
    Refusal: st.builds(
        Refusal, st.just("INVALID_REQUEST"), texts, st.none() | st.integers() | texts, st.none() | texts
    ),
}

RECORDS: Kinds = {
    TopicCreated: st.builds(TopicCreated, small, texts, small, configs, columns(texts)),
    TopicAltered: st.builds(TopicAltered, small, texts, small, configs, columns(texts)),
    PartitionsEnded: st.builds(PartitionsEnded, small, texts, small),
    TopicDeleted: st.builds(TopicDeleted, small, texts, small),
    RecordsDeleted: st.builds(RecordsDeleted, small, texts, st.dictionaries(small, counts), texts),
    ProducerInitialized: st.builds(ProducerInitialized, small, epochs),
    ProducerExpired: st.builds(ProducerExpired, small),
    FilesAdded: st.builds(FilesAdded, columns(files)),
    RowsJournaled: st.builds(RowsJournaled, small, counts, counts),
    Produced: st.builds(
        Produced,
        texts,
        st.none() | small,
        st.none() | small,
        columns(st.builds(UnitAppended, small, small, sequences, counts, counts, st.none() | file_ids)),
        st.none() | texts,
        st.none() | counts,
        st.none() | texts,
    ),
    Delayed: st.builds(Delayed, delayed_ranges, st.none() | small, st.none() | small, st.none() | texts),
    DelaysCancelled: st.builds(
        DelaysCancelled,
        columns(small),
        columns(file_ids),
        columns(counts),
        columns(columns(counts)),
        ended_ranges,
        delayed_ranges,
        columns(st.none() | small),
        columns(st.none() | small),
    ),
    DelaysReleased: st.builds(
        DelaysReleased, counts, columns(small), columns(file_ids), *[columns(counts)] * 2, ended_ranges, counts
    ),
    DelaysSettled: st.builds(
        DelaysSettled, texts, small, epochs, columns(small), columns(file_ids), columns(counts), delayed_ranges
    ),
    DelaysDropped: st.builds(DelaysDropped, texts, ended_ranges),
    RowsRejected: st.builds(RowsRejected, texts, file_ids, counts, counts, texts, texts),
    OffsetsCommitted: st.builds(OffsetsCommitted, texts, columns(small), offsets, st.none() | texts, st.none() | texts),
    OffsetsRemoved: st.builds(OffsetsRemoved, texts, small, texts, columns(small)),
    GroupConfigured: st.builds(GroupConfigured, texts, group_configs, st.booleans()),
    GroupForgotten: st.builds(GroupForgotten, texts, texts),
    MemberJoined: st.builds(
        MemberJoined,
        texts,
        members,
        columns(texts),
        st.none() | texts,
        st.none() | texts,
        counts,
        counts,
        texts,
        st.none() | texts,
        st.none() | texts,
        st.none() | texts,
        st.none() | counts,
        columns(assignors),
    ),
    MemberLeft: st.builds(MemberLeft, texts, members, texts),
    MemberMissed: st.builds(MemberMissed, texts, members),
    PartitionsAdded: st.builds(PartitionsAdded, texts, small, texts, columns(st.none() | counts), small),
    PartitionsGone: st.builds(PartitionsGone, texts, small, texts, small),
    TargetSet: st.builds(
        TargetSet,
        texts,
        counts,
        texts,
        st.dictionaries(members, group_places, max_size=2),
        group_places,
        st.none() | texts,
    ),
    PartitionsMoved: st.builds(
        PartitionsMoved,
        texts,
        texts,
        columns(
            st.builds(
                Move,
                small,
                small,
                st.sampled_from(PartitionStatus),
                st.none() | members,
                st.none() | counts,
                st.none() | counts,
                columns(st.tuples(small, counts)),
            )
        ),
    ),
    MessagesAcquired: st.builds(
        MessagesAcquired, texts, members, columns(st.builds(MessageRanges, small, small, message_ranges))
    ),
    MessagesSettled: st.builds(
        MessagesSettled,
        texts,
        texts,
        columns(settled),
        st.none() | texts,
    ),
    DeadLettersSettled: st.builds(DeadLettersSettled, counts, texts, texts, columns(settled)),
    MessagesDeadLettered: st.builds(MessagesDeadLettered, texts, texts, texts, columns(settled)),
    MessagesPassed: st.builds(MessagesPassed, texts, small, small, counts),
    RebalanceDelayed: st.builds(RebalanceDelayed, texts, counts),
    RebalanceCompleted: st.builds(RebalanceCompleted, texts, counts, counts),
    TransactionMoved: st.builds(
        TransactionMoved,
        texts,
        small,
        epochs,
        st.sampled_from(TransactionStatus),
        counts,
        st.none() | counts,
        columns(st.tuples(small, small)),
        columns(texts),
        st.none() | st.sampled_from(EndReason),
        st.none() | counts,
        st.none() | counts,
    ),
    TransactionFailed: st.builds(TransactionFailed, texts, texts, texts),
    MarkersWritten: st.builds(MarkersWritten, texts),
    Answered: st.builds(Answered, texts, small, st.lists(st.one_of(*RESULTS.values()), max_size=2)),
    ClientRemoved: st.builds(ClientRemoved, texts, texts),
    LeaderElected: st.builds(LeaderElected, texts, small, counts),
}

requests: st.SearchStrategy[AnyRequest] = st.one_of(*REQUESTS.values())
results: st.SearchStrategy[AnyResult] = st.one_of(*RESULTS.values())
records: st.SearchStrategy[AnyRecord] = st.one_of(*RECORDS.values())
