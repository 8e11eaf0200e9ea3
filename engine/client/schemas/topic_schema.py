"""The schema of a topic, for users: encode values, check them, and give them types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from ...protocol.errors import InvalidRequest, SchemaMismatch
from ...protocol.values.schemas import AVRO, SchemaVersion
from .avro import find_unknown_writers
from .columns import to_json_text
from .json_rows import read_json_row
from .reading_rule import add_schemas, build_missing_schema_error
from .value_schema import ValueSchema, build_schema_rule, compile_schema

_ENCODE_ROWS = 1000
"""Rows that are checked together."""


@dataclass(frozen=True)
class TopicSchema:
    """A version of a topic's schema.

    Attributes:
        topic: name of the topic.
        version: number of the version, from 1.
        type: `ddl`, `json` or `avro`.
        text: the schema.
    """

    topic: str
    version: int
    type: str
    text: str
    _schema: ValueSchema
    _find_newer: Callable[[Sequence[bytes | None]], ValueSchema | None] = lambda _: None
    """Returns the schema again, able to read values that were written under newer versions; None: it is already."""

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of parsed values."""
        return self._schema.parsed_type

    def encode(self, rows: pa.Table | Iterable[Mapping[str, Any]]) -> pa.Array:
        """Return rows as values of messages: JSON, or Avro in its single-object encoding.

        Args:
            rows: an Arrow table, or dictionaries.

        Raises:
            SchemaMismatch: a row does not fit. The error names it.
        """
        encoded: list[bytes] = []
        remaining = iter(rows.to_pylist() if isinstance(rows, pa.Table) else rows)
        while batch := list(islice(remaining, _ENCODE_ROWS)):
            try:
                encoded += self._schema.encode_rows(batch)
            except ValueError:
                encoded += [self._encode_row(number, row) for number, row in enumerate(batch, len(encoded))]
        return pa.array(encoded, pa.binary())

    def _encode_row(self, number: int, row: Any) -> bytes:
        try:
            return self._schema.encode(row)
        except ValueError as error:
            raise self._refuse_row(number, error) from None

    def _refuse_row(self, number: int, error: ValueError) -> SchemaMismatch:
        return SchemaMismatch(
            f"Row {number} does not fit version {self.version} of the schema of {self.topic}: {error}."
        )

    def encode_json(self, texts: Sequence[bytes | None]) -> list[bytes | None]:
        """Return JSON texts as values of messages; null stays null.

        Times and decimals may be text, and bytes are base64, as `decode_json` writes them.

        Raises:
            SchemaMismatch: a text does not fit. The error names its index.
        """
        values: list[bytes | None] = []
        for number, text in enumerate(texts):
            try:
                row = None if text is None else read_json_row(text, self._schema.field)
                values.append(None if text is None else self._schema.encode(row))
            except ValueError as error:
                raise self._refuse_row(number, error) from None
        return values

    def decode_json(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values of messages as JSON texts; those that are JSON, or do not fit, as they are."""
        if self.type != AVRO:
            return list(values)
        decode = (self._find_newer(values) or self._schema).decode
        return [None if value is None else _to_json_or_same(decode, value) for value in values]

    def parse(self, values: Sequence[bytes | None] | pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return values of messages as an array of `arrow_type`; null for values that do not fit.

        Avro values are resolved from the version under which each was written, also from a newer one.
        """
        listed = _to_list(values)
        return (self._find_newer(listed) or self._schema).parse(listed)

    def find_misfits(self, values: Sequence[bytes | None] | pa.Array | pa.ChunkedArray) -> dict[int, str]:
        """Return index -> reason for all values that do not fit."""
        listed = _to_list(values)
        return (self._find_newer(listed) or self._schema).find_misfits(listed)


def _to_json_or_same(decode: Callable[[bytes], Any], value: bytes) -> bytes:
    try:
        return to_json_text(decode(value)).encode()
    except ValueError:
        return value


def _to_list(values: Sequence[bytes | None] | pa.Array | pa.ChunkedArray) -> Sequence[bytes | None]:
    return values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else values


def open_topic_schema(
    topic: str, read_versions: Callable[[], Sequence[SchemaVersion]], version: int | None
) -> TopicSchema:
    """Return a version of a topic's schema, ready to use.

    Args:
        topic: name of the topic.
        read_versions: returns all its versions as of now.
        version: number of the version; None: the newest one.

    Raises:
        InvalidRequest: the topic has no schema, or no such version.
        MissingExtra: the extra `schemas` is not installed.
    """
    versions = read_versions()
    if not versions:
        raise build_missing_schema_error(topic)
    number = versions[-1].version if version is None else version
    if not 1 <= number <= len(versions):
        raise InvalidRequest(
            f"Topic {topic} has no such version of its schema.", found=version, expected=f"1 to {len(versions)}"
        )
    opened = versions[number - 1]
    rule = add_schemas(build_schema_rule(versions[:number]), versions)

    def find_newer(values: Sequence[bytes | None]) -> ValueSchema | None:
        if opened.type != AVRO or not find_unknown_writers(values, (rule.text, *rule.earlier)):
            return None
        return compile_schema(add_schemas(rule, read_versions()))

    return TopicSchema(topic, number, opened.type, opened.schema, compile_schema(rule), find_newer)
