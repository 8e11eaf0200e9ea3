"""Rows whose values do not fit the schema of a topic: marked like other rejected rows, each kind with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.schema_rule import SchemaRule

FIRST_UNFIT = -100
"""Partition of rows that do not fit for reason 0; for reason n they have this minus n."""

MAX_REASONS = 200
"""Most reasons of one body that are told apart, so that no code reaches those of failed expectations."""

_OTHER = "for another reason than the rows before"

Partitions = npt.NDArray[np.int32]


def reject_misfits(
    values: pa.ChunkedArray | Sequence[bytes | None], schema: SchemaRule | None, partition: Partitions
) -> tuple[Partitions, tuple[str, ...]]:
    """Return `partition` with a mark for each row that does not fit the schema, and the reasons that marks name.

    Rows that are rejected already keep their first reason.
    """
    if schema is None or not len(partition):
        return partition, ()
    from ..schemas.value_schema import compile_schema  # executors without schemas have not all that it needs

    plain = values.to_pylist() if isinstance(values, pa.ChunkedArray) else values
    misfits = compile_schema(schema).find_misfits(plain)
    misfits = {row: reason for row, reason in misfits.items() if partition[row] >= 0}
    if not misfits:
        return partition, ()
    codes: dict[str, int] = {}
    marked = partition.copy()
    for row, reason in misfits.items():
        if reason not in codes and len(codes) >= MAX_REASONS - 1:
            reason = _OTHER
        marked[row] = FIRST_UNFIT - codes.setdefault(reason, len(codes))
    return marked, tuple(map(_to_sentence, codes))


def _to_sentence(reason: str) -> str:
    return f"The value does not fit the topic's schema{' ' if reason.startswith('at ') else ': '}{reason}."


def find_reason(partition: int, reasons: Sequence[str]) -> str:
    """Return the reason that a mark names; empty for other partitions."""
    index = FIRST_UNFIT - partition
    return reasons[index] if 0 <= index < len(reasons) else ""


def merge_marks(parts: Iterable[tuple[Partitions, tuple[str, ...]]]) -> tuple[Partitions, tuple[str, ...]]:
    """Return the marks of several bodies, one after the other, with one list of reasons."""
    merged: dict[str, int] = {}
    columns = []
    for partition, reasons in parts:
        renamed = partition.copy() if reasons else partition
        for index, reason in enumerate(reasons):
            renamed[partition == FIRST_UNFIT - index] = FIRST_UNFIT - merged.setdefault(reason, len(merged))
        columns.append(renamed)
    return np.concatenate(columns), tuple(merged)
