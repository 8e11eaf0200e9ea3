"""Building a produce request from rows in Arrow: the body, its ranges, and the request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.delayed import NOT_DELAYED
from lakemq.tables.specs.messages import HEADERS
from lakemq.tables.specs.spec import TIME

from ...namespace.data_file import BODY, BODY_SCHEMA, WrittenFile
from ...protocol.errors import (
    ExpectationFailed,
    InvalidRecord,
    LakeMQError,
    Refusal,
    SchemaMismatch,
    error_from_refusal,
)
from ...protocol.values.log import DataFile, Produce, Ranges, RejectedRows
from .delay_rule import DUE_BY_CALL, FAR_MS, DelayRule, RequestedDelays, compute_requested_due_us, move_delay_headers
from .placing import FIRST_FAILED, NO_SUCH_PARTITION, REJECTIONS, Copy, RowRun, reject_bad_delays
from .publication import Publication
from .routing import Route

COLUMNS = ("key", "value", "headers", "timestamp", "partition", "deliver_at", "delay_ms", "ttl_ms")
"""What a user gives of a message."""

KEY_HEADERS = ("QUEUE_PARTITION_KEY", "JMSXGroupID")
"""Headers that supply a missing key: the first with a value counts. Solace's and JMS clients set them."""


def build_body(table: pa.Table, destination: str, now_ms: int) -> tuple[pa.Table, npt.NDArray[np.int64] | None]:
    """The user's columns as a message body, and the partitions they ask for.

    table: `value` (text or binary), and optionally `key` (text or binary), `headers` (list of key, value), `timestamp`,
    `partition` (whole numbers; null: by the key), `deliver_at` (times, or milliseconds), `delay_ms` (null: at once),
    `ttl_ms`. Where a delay counts from the call in some topics, a column DUE_BY_CALL comes after those of a body.
    Raises InvalidRecord for a missing, unknown or ill-typed column.
    """
    unknown = [name for name in table.column_names if name not in COLUMNS]
    if unknown or "value" not in table.column_names:
        raise InvalidRecord(
            "The columns do not make a message.",
            found=table.column_names,
            expected="value, and optionally key, headers, timestamp, partition, deliver_at or delay_ms, ttl_ms",
        )
    n = table.num_rows
    stamps = _read_column(table, "timestamp", TIME)
    if stamps.null_count:
        stamps = pc.fill_null(stamps, pa.scalar(now_ms * 1000, TIME))
    headers = _read_column(table, "headers", HEADERS)
    key = _fill_key_from_headers(_read_column(table, "key", pa.binary()), headers)
    at_us, delay_ms = _read_times(table, "deliver_at"), _read_column(table, "delay_ms", pa.int64())
    headers, at_us, delay_ms = move_delay_headers(headers, at_us, delay_ms)
    due, by_call = _compute_due_columns(at_us, delay_ms, stamps, now_ms)
    columns = {
        "topic": pa.repeat(destination, n),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), n),
        "key": key,
        "value": _read_column(table, "value", pa.binary()),
        "headers": headers,
        "timestamp": stamps,
        "deliver_at": pa.nulls(n, TIME) if due is None else due.cast(TIME),
        "ttl_ms": _read_column(table, "ttl_ms", pa.int64()),
    }
    body = pa.table([columns[name] for name in BODY], schema=BODY_SCHEMA)
    if by_call is not None:
        body = body.append_column(DUE_BY_CALL, by_call.cast(TIME))
    if "partition" not in table.column_names:
        return body, None
    requested = pc.fill_null(_read_column(table, "partition", pa.int64()), -1).to_numpy()
    return body, np.maximum(requested, NO_SUCH_PARTITION)


def _compute_due_columns(
    at_us: pa.ChunkedArray, delay_ms: pa.ChunkedArray, stamps: pa.ChunkedArray, now_ms: int
) -> tuple[pa.ChunkedArray | None, pa.ChunkedArray | None]:
    """In microseconds when rows are due, null where they are not delayed: by their timestamps, and by the call."""
    if at_us.null_count == len(at_us) and delay_ms.null_count == len(delay_ms):
        return None, None
    if delay_ms.null_count == len(delay_ms):
        return at_us, None
    return compute_requested_due_us(at_us, delay_ms, stamps.cast(pa.int64())), compute_requested_due_us(
        at_us, delay_ms, pa.scalar(now_ms * 1000)
    )


def _read_times(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Times, or whole milliseconds, in microseconds; null where there is no such column."""
    if name not in table.column_names or not _is_whole(table.column(name).type):
        return _read_column(table, name, TIME).cast(pa.int64())
    ms = _read_column(table, name, pa.int64())
    bounded = pc.max_element_wise(pc.min_element_wise(ms, FAR_MS, skip_nulls=False), -1, skip_nulls=False)
    return pc.multiply(bounded, 1000)


def _read_column(table: pa.Table, name: str, wanted: pa.DataType) -> pa.ChunkedArray:
    if name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, wanted)])
    column = table.column(name)
    try:
        if pa.types.is_timestamp(wanted) and not _is_time(column.type):
            raise pa.ArrowTypeError("not a timestamp")
        if pa.types.is_binary(wanted) and not _is_bytes(column.type):
            raise pa.ArrowTypeError("neither text nor bytes")
        if pa.types.is_integer(wanted) and not _is_whole(column.type):
            raise pa.ArrowTypeError("no whole numbers")
        return column.cast(wanted)
    except pa.ArrowException as error:
        # of a value that cannot be cast Arrow says the value, which in headers is the payload's
        why = str(error) if isinstance(error, pa.ArrowTypeError | pa.ArrowNotImplementedError) else "a value is no such"
        raise InvalidRecord(
            f"Column {name} is not usable: {why}", found=str(column.type), expected=str(wanted)
        ) from None


def _is_time(type: pa.DataType) -> bool:
    return pa.types.is_timestamp(type) or pa.types.is_null(type)


def _is_whole(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or pa.types.is_null(type)


def _is_bytes(type: pa.DataType) -> bool:
    tests = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_null,
    )
    return any(test(type) for test in tests) or pa.types.is_fixed_size_binary(type)


def _fill_key_from_headers(key: pa.ChunkedArray, headers: pa.ChunkedArray) -> pa.ChunkedArray:
    """The key, else the value of the first of KEY_HEADERS that a row has, wherever it stands among its headers."""
    if key.null_count == 0 or headers.null_count == len(headers):
        return key
    flat = pc.list_flatten(headers)
    names, values = pc.struct_field(flat, "key"), pc.struct_field(flat, "value")
    rows = pc.list_parent_indices(headers)
    for name in KEY_HEADERS:
        chosen = pc.and_kleene(pc.equal(names, name), pc.is_valid(values))
        first_rows, first = np.unique(rows.filter(chosen).to_numpy(), return_index=True)
        places = np.full(len(key), -1)
        places[first_rows] = first
        key = pc.coalesce(key, values.filter(chosen).take(pa.array(places, mask=places < 0)))
    return key


def build_produce_ranges(
    route: Route, parts: Sequence[tuple[int, Copy, Sequence[RowRun]]], expectations: Sequence[str] = ()
) -> tuple[Ranges, list[RejectedRows]]:
    """Ranges of a request from (file, copy, runs) in the order of writing; and the rejected rows.

    expectations: by which rows may have been rejected.
    """
    ranges, rejected = Ranges(), []
    for file, copy, runs in parts:
        for run in runs:
            if run.partition < 0:
                error, reason = _describe_refusal(run, expectations)
                rejected.append(RejectedRows(route.destination, file, run.first_row, run.record_count, error, reason))
                continue
            for index in copy.topics:
                ranges.topic_index.append(index)
                ranges.partition.append(run.partition)
                ranges.file.append(file)
                ranges.first_row.append(run.first_row)
                ranges.record_count.append(run.record_count)
                ranges.min_timestamp_ms.append(run.min_timestamp_ms)
                ranges.max_timestamp_ms.append(run.max_timestamp_ms)
                ranges.first_due_ms.append(run.first_due_ms)
                ranges.last_due_ms.append(run.last_due_ms)
    if all(due_ms == NOT_DELAYED for due_ms in ranges.first_due_ms):
        ranges.first_due_ms.clear()
        ranges.last_due_ms.clear()
    return ranges, rejected


def _describe_refusal(run: RowRun, expectations: Sequence[str]) -> tuple[str, str]:
    if run.reason:
        return SchemaMismatch.name, run.reason
    if run.partition > FIRST_FAILED:
        return REJECTIONS[-1 - run.partition]
    return ExpectationFailed.name, expectations[FIRST_FAILED - run.partition]


def round_due_ms(rule: DelayRule, timestamp_us: int, due_us: int) -> int:
    """Return the due time of a row in milliseconds, rounded by the rule. Raises InvalidTimestamp, DelayTooLong."""
    requested = np.array([due_us], np.int64)
    partition, due = reject_bad_delays(
        RequestedDelays(np.array([timestamp_us], np.int64), requested, requested),
        rule,
        np.zeros(1, np.int32),
        by_slot=True,
    )
    if partition[0] < 0:
        raise error_from_refusal(Refusal(*REJECTIONS[-1 - int(partition[0])]))
    return int(due.ms[0])


def error_of_rejected_rows(rejected: Sequence[RejectedRows], partition: npt.ArrayLike = ()) -> LakeMQError:
    """The error of a publish with on_error="fail". partition: of each row in the caller's order, negative: rejected."""
    first = rejected[0]
    count = sum(r.record_count for r in rejected)
    text = f"{count} rows are rejected, hence all: {first.reason}"
    rows = np.flatnonzero(np.asarray(partition) < 0).tolist() if first.error == SchemaMismatch.name else []
    return error_from_refusal(Refusal(first.error, text, f"row {rows[0]}" if rows else None))


def build_produce_request(
    publication: Publication,
    route: Route,
    ranges: Ranges,
    rejected: Sequence[RejectedRows],
    files: Sequence[WrittenFile] = (),
    has_ttl: bool = False,
) -> Produce:
    """has_ttl: some of the rows have a time to live."""
    sequences = publication.sequences
    return Produce(
        topics=list(route.topics),
        ranges=ranges,
        metadata_step=route.metadata_step,
        files=[DataFile(*file) for file in files],
        rejected=list(rejected),
        producer=sequences.of(route, ranges, rejected) if sequences else None,
        application=publication.application,
        transaction=publication.transaction,
        has_ttl=has_ttl,
    )
