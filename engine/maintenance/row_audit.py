"""Check that all rows that tables point at exist, and are in their keys' partitions.

One pass over the data files does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import MESSAGES, file_stem
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_bounded_parquet
from lakemq.tables.storage.workers import Workers

from ..namespace.data_file import file_name, is_expected_file, read_file_facts, read_footer
from ..namespace.loading.snapshot import Snapshot
from ..protocol.hashing import Partitioner, partition_keys
from ..protocol.values.topics import Topic
from .data_file_removal import parse_file_id

Numbers = npt.NDArray[np.int64]

ANY_PARTITION = -1
"""Partition of a range of rejected rows: its rows are in no partition, and its file is known by name alone."""

POINTING: pa.Schema = pa.schema(
    [(name, pa.int64()) for name in ("file_id", "footer_hash", "first_row", "record_count", "file_partition", "placed")]
)
"""Ranges of needed rows.

file_partition: or ANY_PARTITION; placed: the number of the topic's Placing. -1: no key decided.
"""

_AT_ONCE = 16
_COLUMNS = ["row", "partition", "key"]


class Placing(NamedTuple):
    """How a topic maps keys to partitions at present."""

    partition_count: int
    partitioner: Partitioner

    @classmethod
    def of(cls, topic: Topic) -> Placing:
        return cls(topic.partition_count, topic.setting("partitioner"))


class Flaws(NamedTuple):
    """For each range, the number of missing rows, and of rows in another partition than their key says."""

    missing: Numbers
    elsewhere: Numbers


def find_file_flaws(snapshot: Snapshot, files: Files, ranges: pa.Table) -> dict[str, str]:
    """Return path -> the flaw of a data file, "" if none: for files of `messages` and files that ranges point at."""
    in_partitions = ranges.filter(pc.field("file_partition") != ANY_PARTITION)
    pairs = zip(in_partitions["file_id"].to_pylist(), in_partitions["footer_hash"].to_pylist(), strict=True)
    needed = {f"{file_stem(file_id)}.parquet": footer for file_id, footer in pairs}
    pointed_at = {f"{file_stem(file_id)}.parquet" for file_id in ranges["file_id"].unique().to_pylist()}
    registered = {file.path: file.record_count for file in snapshot.handles[MESSAGES.name].files()}

    def flaw(path: str) -> str:
        file_id = parse_file_id(path)
        facts = None if file_id < 0 else read_file_facts(files, file_id, needed.get(path))
        if facts is None:
            return "gone" if file_id >= 0 else "a foreign file"
        if facts.flaw:
            return facts.flaw
        if path in needed and not is_expected_file(needed[path], facts.footer_hash, facts.is_journaled):
            return "rewritten or damaged"
        if path not in registered:
            return "not in messages"
        return "" if registered[path] == facts.record_count else "not as messages says"

    paths = sorted(pointed_at | registered.keys())
    with Workers(_AT_ONCE, "lakemq-footers") as pool:
        return dict(zip(paths, pool.map(flaw, paths), strict=True))


def find_range_flaws(files: Files, ranges: pa.Table, placings: Sequence[Placing], flaws: Mapping[str, str]) -> Flaws:
    """Return the flaws of ranges, columns of POINTING. Of a flawed file, every row is missing."""
    columns = {name: ranges.column(name).to_numpy() for name in POINTING.names if name != "footer_hash"}
    missing, elsewhere = columns["record_count"].copy(), np.zeros(ranges.num_rows, np.int64)
    for file_id, indexes in _group_by_file(columns["file_id"]):
        if flaws[f"{file_stem(file_id)}.parquet"]:
            continue
        try:
            with files.open_input(file_name(file_id)) as source:
                rows = open_bounded_parquet(source, read_footer(source).parse()).read(_COLUMNS)
        except (OSError, ValueError, pa.ArrowException):
            continue  # a page is damaged: all rows of the file count as missing
        first, counts, partition, placed = (
            columns[name][indexes] for name in ("first_row", "record_count", "file_partition", "placed")
        )
        missing[indexes], elsewhere[indexes] = _count_flaws(rows, first, counts, partition, placed, placings)
    return Flaws(missing, elsewhere)


def _group_by_file(file_ids: Numbers) -> Iterator[tuple[int, Numbers]]:
    order = np.argsort(file_ids, kind="stable")
    ids, begins = np.unique(file_ids[order], return_index=True)
    yield from zip(ids.tolist(), np.split(order, begins[1:]), strict=True) if len(ids) else ()


def _count_flaws(
    rows: pa.Table,
    first: Numbers,
    counts: Numbers,
    partition: Numbers,
    placed: Numbers,
    placings: Sequence[Placing],
) -> tuple[Numbers, Numbers]:
    """Return (missing, elsewhere) for each range of one file, whose rows are numbered from 0."""
    actual, keys = rows.column("partition").to_numpy().astype(np.int64), rows.column("key")
    numbers = rows.column("row").to_numpy()
    is_whole = np.array_equal(numbers, np.arange(len(numbers)))
    ends = np.cumsum(counts)
    index = np.repeat(first - (ends - counts), counts) + np.arange(ends[-1])
    is_there = (index >= 0) & (index < len(actual)) & is_whole
    index = np.where(is_there, index, 0)
    expected = np.repeat(partition, counts)
    is_there &= (expected == ANY_PARTITION) | (actual[index] == expected) if len(actual) else False
    lost = np.add.reduceat((~is_there).astype(np.int64), ends - counts)
    astray = np.zeros(len(counts), np.int64)
    has_key = pc.is_valid(keys).to_numpy()
    for number in np.unique(placed[placed >= 0]).tolist():
        where = partition_keys(keys, placings[number].partition_count, placings[number].partitioner, 0)
        is_astray = (np.repeat(placed, counts) == number) & is_there & has_key[index] & (where[index] != expected)
        astray += np.add.reduceat(is_astray.astype(np.int64), ends - counts)
    return lost, astray
