"""The message rows of a step: few ones as msgpack (`few_rows`), others as an Arrow stream (`letter_rows`).

Building and encoding an Arrow table takes longer than deciding a step of one message. Most readers need the rows of
many steps at once, and build one table for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from .few_rows import MAX_FEW_BYTES, FewRows, Rows, concatenate_rows, decode_few_rows, encode_few_rows, rows_to_table
from .letter_rows import decode_rows, encode_rows

_MOST_FEW_ROWS = 100
"""Arrow takes 60 us longer to begin, and 0.6 us less per row."""

_ARROW_START = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow stream. The msgpack of few rows begins with another byte."""


def join_step_rows(parts: Sequence[Rows]) -> Rows | None:
    """Return the rows of a step's letters, one after another, in the form that is encoded faster; None without rows."""
    if sum(part.num_rows for part in parts) > _MOST_FEW_ROWS:
        return rows_to_table(parts)
    return concatenate_rows(parts)


def encode_step_rows(rows: Rows) -> bytes:
    """Encode the rows of a step for `decode_step_rows`."""
    if isinstance(rows, FewRows):
        body = encode_few_rows(rows)
        if len(body) <= MAX_FEW_BYTES:  # readers refuse more
            return body
    return encode_rows(rows_to_table([rows]))


def decode_step_rows(bodies: Iterable[bytes]) -> pa.Table:
    """Return the rows of steps, one after another, as BODY_SCHEMA.

    Raises ValueError, ArrowException or OSError if a body is not the rows of a step.
    """
    return rows_to_table([_decode(body) for body in bodies])


def _decode(body: bytes) -> Rows:
    view = memoryview(body)
    return decode_rows(view) if body.startswith(_ARROW_START) else decode_few_rows(view)
