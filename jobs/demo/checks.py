"""What the demo checks: that each row sent is one message, in its place, in order, whichever way it is read.

A check takes what was sent and what was fetched and says what it found, or raises CheckFailed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json


class CheckFailed(Exception):
    """What was found is not what must hold."""


@dataclass(frozen=True)
class Checked:
    """A check that passed: what holds, and the figures it was seen in."""

    holds: str
    found: str


def check(holds: str, passed: bool, found: str) -> Checked:
    """`holds` was looked at. Raises CheckFailed."""
    if not passed:
        raise CheckFailed(f"It does not hold that {holds[0].lower()}{holds[1:]}: {found}")
    return Checked(holds, found)


def check_count(topic: str, fetched: pa.Table, sent_count: int) -> Checked:
    return check(
        f"All of {topic} is there, once",
        fetched.num_rows == sent_count,
        f"{fetched.num_rows:,} messages of {sent_count:,} sent",
    )


def check_dense_offsets(topic: str, fetched: pa.Table, end_offsets: Mapping[int, int]) -> Checked:
    """Each partition holds offsets 0, 1, 2, ... to its end, none missing, none twice."""
    partitions, offsets = fetched.column("partition").to_numpy(), fetched.column("offset").to_numpy()
    wrong = [
        partition
        for partition, end in end_offsets.items()
        if not np.array_equal(np.sort(offsets[partitions == partition]), np.arange(end))
    ]
    return check(
        f"Offsets of {topic} run from 0 without a gap",
        not wrong,
        f"partitions with a gap: {wrong}" if wrong else f"{len(end_offsets)} partitions",
    )


def check_content(values: pa.Table, sent: pa.Table) -> Checked:
    """The values are the rows that were sent, column by column. values: flights as `flights_of` reads them."""
    identity = [(name, "ascending") for name in ("time_hour", "minute", "carrier", "flight")]
    there, given = values.select(sent.column_names).sort_by(identity), sent.sort_by(identity)
    there = there.set_column(
        there.column_names.index("time_hour"),
        "time_hour",
        there.column("time_hour").cast(given.schema.field("time_hour").type),
    )
    odd = [name for name in sent.column_names if not there.column(name).equals(given.column(name))]
    return check(
        "Every value is the row that was sent",
        not odd,
        f"columns that differ: {odd}" if odd else f"{len(sent.column_names)} columns alike",
    )


def check_key_order(values: pa.Table) -> Checked:
    """A key's messages stand in one partition, in the order of departure. values: as `flights_of` reads them."""
    keyed = values.filter(pc.field("tailnum").is_valid())
    departures = [(name, "ascending") for name in ("tailnum", "time_hour", "minute", "carrier", "flight")]
    ordered = keyed.sort_by(departures)
    key = ordered.column("tailnum").combine_chunks().dictionary_encode().indices.to_numpy()
    same = key[1:] == key[:-1]
    moved = np.diff(ordered.column("partition").to_numpy()) != 0
    back = np.diff(ordered.column("offset").to_numpy()) <= 0
    wrong = int((same & (moved | back)).sum())
    keys = int(key.max()) + 1 if len(key) else 0
    return check("The order per key is kept", wrong == 0, f"{keys:,} keys, {wrong} out of order")


def check_partition_is_hash(misplaced: int, keyed: int) -> Checked:
    """By Spark's own hash function, which LakeMQ does not use."""
    return check("A message is where the hash of its key says", misplaced == 0, f"{misplaced} of {keyed:,} misplaced")


def check_ways_agree(arrow: pa.Table, spark: pa.Table) -> Checked:
    """Both ways to fetch give the same messages, byte by byte, with the same columns."""
    order = [("partition", "ascending"), ("offset", "ascending")]
    alike = spark.column_names == arrow.column_names and spark.cast(arrow.schema).sort_by(order).equals(arrow)
    return check("Arrow and Spark fetch the same", alike, f"{arrow.num_rows:,} and {spark.num_rows:,} messages")


def flights_of(fetched: pa.Table, columns: pa.Schema) -> pa.Table:
    """The JSON values as columns (those of `columns`), with the partition and offset of each message."""
    # JSON's times are UTC already, and pyarrow reads no zone
    fields = [pa.field(f.name, pa.timestamp("ms")) if pa.types.is_timestamp(f.type) else f for f in columns]
    parse = pa.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error")
    lines = b"\n".join(fetched.column("value").to_pylist())
    values = pa.json.read_json(pa.BufferReader(lines), pa.json.ReadOptions(block_size=1 << 24), parse_options=parse)
    placed = values.append_column("partition", fetched.column("partition"))
    return placed.append_column("offset", fetched.column("offset"))


def check_busiest(answer: pa.Table, sent: pa.Table) -> Checked:
    counts = sent.filter(pc.field("tailnum").is_valid()).group_by("tailnum").aggregate([([], "count_all")])
    most = counts.sort_by([("count_all", "descending"), ("tailnum", "ascending")]).slice(0, answer.num_rows)
    return _check_answer("the busiest aircraft", answer, most, {"tailnum": "tailnum", "flights": "count_all"})


def check_late(answer: pa.Table, sent: pa.Table, late_minutes: int) -> Checked:
    late = pc.fill_null(pc.greater_equal(sent.column("arr_delay"), late_minutes), False)
    flagged = sent.select(["carrier"]).append_column("late", late.cast(pa.int64()))
    counts = flagged.group_by("carrier").aggregate([([], "count_all"), ("late", "sum")]).sort_by("carrier")
    columns = {"carrier": "carrier", "flights": "count_all", "late": "late_sum"}
    return _check_answer("flights and delays per carrier", answer.sort_by("carrier"), counts, columns)


def check_one_aircraft(answer: pa.Table, sent: pa.Table, tailnum: str) -> Checked:
    flown = sent.filter(pc.field("tailnum") == tailnum)
    flown = flown.sort_by([(n, "ascending") for n in ("time_hour", "minute", "carrier", "flight")])
    names = pc.binary_join_element_wise(flown.column("carrier"), flown.column("flight").cast(pa.string()), " ")
    columns = {name: name for name in ("flight", "origin", "dest", "dep_delay", "arr_delay")}
    flown = flown.set_column(flown.column_names.index("flight"), "flight", names)
    return _check_answer(f"the flights of {tailnum}, in order", answer, flown, columns)


def _check_answer(about: str, answer: pa.Table, wanted: pa.Table, columns: Mapping[str, str]) -> Checked:
    """columns: name in the answer -> name in what is wanted; the rows of both are in the same order."""
    odd = [a for a, w in columns.items() if answer.column(a).to_pylist() != wanted.column(w).to_pylist()]
    return check(
        f"SQL over the log and the input agree on {about}",
        not odd,
        f"columns that differ: {odd}" if odd else f"{answer.num_rows} rows",
    )
