"""A schema, ready to use: which values fit it, and their typed columns.

Runs on Spark executors, too. Each validating library takes one value at a time; everything else moves as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ...protocol.values.schemas import AVRO, DDL, JSON, SchemaVersion
from . import avro, json_schema
from .avro_shape import AvroShape
from .budgets import MAX_CELLS, check_field, count_cells, has_repeated_parts, refuse_depth
from .columns import make_nullable, to_array
from .ddl import parse_ddl
from .json_rows import encode_json_row
from .json_values import JsonDecoder
from .schema_rule import SchemaRule

PARSED = "parsed"
"""Column of typed values."""


def build_schema_rule(versions: Sequence[SchemaVersion]) -> SchemaRule:
    """Return the rule of the last of these versions."""
    newest = versions[-1]
    if newest.type != AVRO:
        return SchemaRule(newest.type, newest.schema)
    earlier = tuple(version.schema for version in versions[:-1] if version.type == AVRO)
    return SchemaRule(AVRO, newest.schema, earlier)


@dataclass(frozen=True)
class ValueSchema:
    """A schema, ready to use.

    Attributes:
        field: the type of its values, with marks of `columns`.
        check: raises ValueError for a value that does not fit. Its text holds nothing of the value.
        decode: returns a value as Python objects; raises ValueError if it cannot.
        encode_rows: returns Python objects as values; raises ValueError if one does not fit.
        most_cells_per_byte: bound of the cells that a byte of a value may become; 0 if their number is the schema's.
    """

    field: pa.Field
    check: Callable[[bytes], object]
    decode: Callable[[bytes], Any]
    encode_rows: Callable[[Sequence[Any]], list[bytes]]
    most_cells_per_byte: int = 0

    @property
    def parsed_type(self) -> pa.DataType:
        """The type of parsed values. All of it may be null."""
        return make_nullable(self.field).type

    def encode(self, value: Any) -> bytes:
        """Return Python objects as a value. Raises ValueError: they do not fit."""
        return self.encode_rows([value])[0]

    def find_misfits(self, values: Sequence[bytes | None]) -> dict[int, str]:
        """Return index -> reason for all values that do not fit. A missing value fits any schema."""
        misfits: dict[int, str] = {}
        check = self.check
        for index, value in enumerate(values):
            if value is not None:
                try:
                    check(value)
                except ValueError as error:
                    misfits[index] = str(error)
        return misfits

    def parse(self, values: Sequence[bytes | None]) -> pa.Array:
        """Return the values as an array of `parsed_type`; null for values that do not fit, or have too many cells."""
        decoded = [None if value is None else self._decode_or_none(value) for value in values]
        try:
            return to_array(decoded, self.field)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            # One value is outside the range of an Arrow type, such as a year 10000. It alone becomes null.
            return pa.concat_arrays([self._parse_one(value) for value in decoded])

    def _parse_one(self, value: Any) -> pa.Array:
        try:
            return to_array([value], self.field)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return pa.nulls(1, self.parsed_type)

    def _decode_or_none(self, value: bytes) -> Any:
        try:
            decoded = self.decode(value)
        except ValueError:
            return None
        most = max(MAX_CELLS, len(value))
        has_room = len(value) * self.most_cells_per_byte <= most
        return decoded if has_room or count_cells([decoded], self.field.type, most) <= most else None


@lru_cache(maxsize=64)
def compile_schema(rule: SchemaRule) -> ValueSchema:
    """Return the schema, ready to use. Raises InvalidConfig (no valid schema, or beyond the budgets), MissingExtra."""
    try:
        compiled = _COMPILE[rule.type](rule)
    except RecursionError:
        raise refuse_depth() from None
    # A byte is an item with all parts of the schema, or one that a default of the schema fills with items.
    return (
        replace(compiled, most_cells_per_byte=len(rule.text)) if has_repeated_parts(compiled.field.type) else compiled
    )


def _compile_ddl(rule: SchemaRule) -> ValueSchema:
    field = pa.field("value", parse_ddl(rule.text), nullable=False)
    check_field(field)
    decode = JsonDecoder(field).decode
    return ValueSchema(field, decode, decode, _build_json_encoder(decode))


def _compile_json(rule: SchemaRule) -> ValueSchema:
    schema = json_schema.parse_json_schema(rule.text)
    checker, field = json_schema.JsonSchemaCheck(schema), json_schema.to_field(schema)
    check_field(field)
    decode_typed = JsonDecoder(field, has_integral_floats=True).decode

    def check(value: bytes) -> None:
        checker.check(json_schema.decode_json(value), len(value))

    def decode(value: bytes) -> Any:
        check(value)
        return decode_typed(value)

    return ValueSchema(field, check, decode, _build_json_encoder(check))


def _build_json_encoder(check: Callable[[bytes], object]) -> Callable[[Sequence[Any]], list[bytes]]:
    def encode(values: Sequence[Any]) -> list[bytes]:
        encoded = list(map(encode_json_row, values))
        for value in encoded:
            check(value)
        return encoded

    return encode


def _compile_avro(rule: SchemaRule) -> ValueSchema:
    schemas = [avro.parse_avro(text) for text in (*rule.earlier, rule.text)]
    shapes = [AvroShape(schema) for schema in schemas]
    field = avro.to_field(schemas[-1])
    check_field(field)
    decode = avro.AvroDecoder(schemas, shapes).decode
    return ValueSchema(field, decode, decode, avro.AvroEncoder(schemas[-1], shapes[-1]).encode)


_COMPILE: dict[str, Callable[[SchemaRule], ValueSchema]] = {DDL: _compile_ddl, JSON: _compile_json, AVRO: _compile_avro}
