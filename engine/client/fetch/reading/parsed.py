"""Messages with their values as typed columns, by the schema of their topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ...schemas.schema_rule import SchemaRule
from ...schemas.value_schema import PARSED, compile_schema

_CHUNK_ROWS = 1 << 14
"""Rows that are decoded at once: as Python objects they take many times their size."""


def append_parsed(messages: pa.Table, rule: SchemaRule) -> pa.Table:
    """Return the messages with a column `parsed`: their values by the schema, null where a value does not fit it."""
    schema = compile_schema(rule)
    chunks = [
        schema.parse(messages.column("value").slice(first, _CHUNK_ROWS).to_pylist())
        for first in range(0, messages.num_rows, _CHUNK_ROWS)
    ]
    return messages.append_column(PARSED, pa.chunked_array(chunks, schema.parsed_type))


@dataclass(frozen=True)
class AppendParsed:
    """`append_parsed` as a function for mapInArrow."""

    rule: SchemaRule

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from append_parsed(pa.Table.from_batches([batch]), self.rule).to_batches()
