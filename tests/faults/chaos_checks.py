"""Invariants after a chaos run, checked on the notes of the processes and on the namespace."""

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from faults.chaos_children import CLASSIC, GROUP, INPUT, OUTPUT, read_notes, tail_notes
from faults.chaos_schedule import MEMBERS, PIPELINE, PRODUCERS
from faults.checks import check_projections
from finals import are_all_final, check_final_messages
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql.query import run_query
from lakemq.jobs.audit import audit


class StoredMessage(NamedTuple):
    """A message and its place."""

    partition: int
    offset: int
    value: str
    key: str


def check(path: str, folder: Path) -> None:
    """Check all invariants after the last sequencer has ended, and that the run did something."""
    with lakemq.connect(path, config={"final.interval.ms": 300}) as mq:
        with mq.serving():
            until(lambda: are_all_final(mq))
        assert check_final_messages(mq)
    with lakemq.connect(path) as mq:
        mq.step_until_idle(wait_ms=60_000)
        assert mq.namespace.mailbox.list_waiting(10) == []
        assert mq.transactions.all(("Ongoing",)) == []
        read, written = rows_of(mq.fetch(INPUT).to_arrow()), rows_of(mq.fetch(OUTPUT).to_arrow())
        check_producers(read, folder)
        check_pipeline(read, written, folder)
        check_members(read, folder)
        for group in (GROUP, CLASSIC):
            check_progress(mq, group, read)
        for topic, rows in ((INPUT, read), (OUTPUT, written)):
            check_tail(topic, rows, folder)
            check_sql(mq, topic, rows)
        check_projections(mq)
        broken = [outcome for outcome in audit(mq.namespace).outcomes if outcome.broken]
        assert not broken, broken


def rows_of(messages: pa.Table) -> list[StoredMessage]:
    """Return the messages as rows, ordered by partition and offset."""
    columns = [messages.column(name).to_pylist() for name in StoredMessage._fields]
    return [
        StoredMessage(partition, offset, value.decode(), key.decode())
        for partition, offset, value, key in zip(*columns, strict=True)
    ]


def check_producers(rows: list[StoredMessage], folder: Path) -> None:
    """I1, I2, I5: each acknowledged message is there exactly once, in the acknowledged place, in order per key and
    producer.
    """
    row_of: dict[str, StoredMessage] = {}
    partition_of: dict[str, int] = {}
    last: dict[str, int] = {}
    expected: Counter[int] = Counter()
    for row in rows:
        assert row.value not in row_of, f"twice: {row_of[row.value]} and {row}"
        row_of[row.value] = row
        assert row.offset == expected[row.partition], f"a hole before {row}"
        expected[row.partition] += 1
        assert partition_of.setdefault(row.key, row.partition) == row.partition, f"{row.key} is in two partitions"
        stream, _, number = row.value.rpartition("/")
        assert int(number) > last.get(stream, -1), f"{row} comes after number {last[stream]}"
        last[stream] = int(number)
    acknowledged = 0
    for name in PRODUCERS:
        for kind, values, ends in (note for note in read_notes(folder / f"{name}.notes") if note[0] == "acknowledged"):
            for value in values:
                assert value in row_of, f"{kind} and not there: {value}"
                first, end = ends[str(row_of[value].partition)]
                assert first <= row_of[value].offset <= end, f"{row_of[value]} was acknowledged in {first} to {end}"
                acknowledged += 1
    assert acknowledged, "nothing was ever acknowledged"


class Copy(NamedTuple):
    """A message that the pipeline has written: the message that it copies, and the attempt."""

    attempt: str
    partition: int
    offset: int
    value: str


def check_pipeline(read: list[StoredMessage], written: list[StoredMessage], folder: Path) -> None:
    """I3, I4, I5: each message is copied exactly once, in order; a transaction is there as a whole or not at all."""
    copies = [_copy(row) for row in written]
    counts = Counter((copy.partition, copy.offset, copy.value) for copy in copies)
    twice = [copy for copy, count in counts.items() if count > 1]
    assert not twice, f"{len(twice)} copied twice: {twice[:3]}"
    expected = {(row.partition, row.offset, row.value) for row in read}
    assert counts.keys() == expected, (
        f"missed {sorted(expected - counts.keys())[:3]}, made {sorted(counts.keys() - expected)[:3]}"
    )
    last: dict[tuple[int, int], int] = {}
    for row, copy in zip(written, copies, strict=True):
        lane = (row.partition, copy.partition)
        assert copy.offset > last.get(lane, -1), f"{row} comes after offset {last[lane]}"
        last[lane] = copy.offset
    notes = read_notes(folder / f"{PIPELINE}.notes")
    whole = {note[1]: note[2] for note in notes if note[0] == "begins"}
    parts = Counter(copy.attempt for copy in copies)
    torn = {attempt: (count, whole[attempt]) for attempt, count in parts.items() if count != whole[attempt]}
    assert not torn, f"transactions in part, as (rows seen, rows sent): {torn}"
    aborted = {note[1] for note in notes if note[0] == "aborts"}
    assert not aborted & parts.keys(), f"aborted and seen: {sorted(aborted & parts.keys())[:3]}"
    lost = {note[1] for note in notes if note[0] == "committed"} - parts.keys()
    assert not lost, f"committed and not seen: {sorted(lost)[:3]}"


def _copy(row: StoredMessage) -> Copy:
    attempt, partition, offset, value = row.value.split("|", 3)
    return Copy(attempt, int(partition), int(offset), value)


def check_members(rows: list[StoredMessage], folder: Path) -> None:
    """Check that members read exactly the stored messages, and that no offset is committed by two members."""
    notes = [note for name in MEMBERS for note in read_notes(folder / f"{name}.notes")]
    read = {tuple(message) for kind, *details in notes if kind == "read" for message in details[0]}
    assert read == {(row.partition, row.offset, row.value) for row in rows}, "read is not what is there"
    stretches: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for kind, *details in notes:
        for partition, (first, end) in details[0].items() if kind == "committed" else ():
            stretches[partition].append((first, end))
    assert stretches, "nothing was ever committed by a member"
    for partition, ranges in stretches.items():
        for (_, end), (first, _) in pairwise(sorted(ranges)):
            assert end <= first, f"of {INPUT}-{partition} offsets {first} to {end} were committed by two"


def check_progress(mq: Connection, group: str, read: list[StoredMessage]) -> None:
    """I7: the group has committed everything that it has read."""
    ends = Counter(row.partition for row in read)
    lags = [lag for lag in mq.groups.lag(group) if lag.committed_offset is not None]
    assert {lag.partition: lag.committed_offset for lag in lags} == dict(ends), f"committed {lags}, read {ends}"


def check_tail(topic: str, rows: list[StoredMessage], folder: Path) -> None:
    """I2, I3, I5: the tail saw exactly the stored messages, each once, in the order of offsets."""
    tailed: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for partition, offsets, values in read_notes(tail_notes(folder, topic)):
        tailed[partition] += zip(offsets, values, strict=True)
    stored: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        stored[row.partition].append((row.offset, row.value))
    for partition, fetched in stored.items():
        differs = next((pair for pair in zip(tailed[partition], fetched, strict=False) if pair[0] != pair[1]), None)
        assert differs is None, f"{topic}-{partition}: the tail saw {differs[0]} where {differs[1]} is"  # type: ignore[index]
        assert len(tailed[partition]) == len(fetched), (
            f"{topic}-{partition}: {len(tailed[partition])} tailed of {len(fetched)}"
        )
    assert tailed.keys() == stored.keys()


def check_sql(mq: Connection, topic: str, rows: list[StoredMessage]) -> None:
    """Check that SQL shows the messages of a fetch."""
    _, selected = run_query(
        mq.namespace, f"""SELECT "partition", "offset", "value" FROM log_committed WHERE topic = '{topic}'"""
    )
    assert Counter(selected) == Counter((row.partition, row.offset, row.value.encode()) for row in rows)
