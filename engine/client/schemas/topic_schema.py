"""The schema of a topic: encode values, check them, and give them types; and the rule that travels with rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import pyarrow as pa

from ...protocol.errors import InvalidRequest, SchemaMismatch
from ...protocol.parameters import AVRO, DDL, JSON, SchemaVersion
from ...protocol.values.topics import Topic
from . import SchemaRule, avro, json_schema
from .avro import find_unknown_writers
from .avro_shape import AvroShape
from .budgets import MAX_CELLS, check_field, count_cells, has_repeated_parts, refuse_depth
from .columns import make_nullable, to_array, to_json_text
from .ddl import parse_ddl
from .json_schema import JsonDecoder, encode_json_row, read_json

# A schema, ready to use: which values fit it, and their typed columns.
#
# Runs on Spark executors, too. Each validating library takes one value at a time; everything else moves as columns.


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
        encode_json: returns JSON as a value; raises ValueError if it does not fit.
        most_cells_per_byte: bound of the cells that a byte of a value may become; 0 if their number is the schema's.
    """

    field: pa.Field
    check: Callable[[bytes], object]
    decode: Callable[[bytes], Any]
    encode_rows: Callable[[Sequence[Any]], list[bytes]]
    encode_json: Callable[[bytes], bytes]
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
    return _build_json_schema(field, decode, decode)


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

    return _build_json_schema(field, check, decode)


def _build_json_schema(
    field: pa.Field, check: Callable[[bytes], object], decode: Callable[[bytes], Any]
) -> ValueSchema:
    def encode(values: Sequence[Any]) -> list[bytes]:
        encoded = list(map(encode_json_row, values))
        for value in encoded:
            check(value)
        return encoded

    def take(text: bytes) -> bytes:
        check(text)
        return text

    return ValueSchema(field, check, decode, encode, take)


def _compile_avro(rule: SchemaRule) -> ValueSchema:
    schemas = [avro.parse_avro(text) for text in (*rule.earlier, rule.text)]
    shapes = [AvroShape(schema) for schema in schemas]
    field = avro.to_field(schemas[-1])
    check_field(field)
    decode = avro.AvroDecoder(schemas, shapes[-1]).decode
    encode = avro.AvroEncoder(schemas[-1]).encode
    return ValueSchema(field, decode, decode, encode, lambda text: encode([read_json(text)], are_json=True)[0])


_COMPILE: dict[str, Callable[[SchemaRule], ValueSchema]] = {DDL: _compile_ddl, JSON: _compile_json, AVRO: _compile_avro}


def build_missing_schema_error(topic: str) -> InvalidRequest:
    """Return the error of a call that needs the schema of a topic without one."""
    return InvalidRequest(f"Topic {topic} has no schema. Set one with mq.topics.alter({topic!r}, {{'schema': ...}}).")


def find_reading_rule(topics: Iterable[Topic]) -> SchemaRule:
    """Return the newest schema of the topics. Raises InvalidRequest: one has none, or they have several."""
    rules: dict[SchemaRule, str] = {}
    for topic in topics:
        if not topic.schemas:
            raise build_missing_schema_error(topic.topic)
        rules.setdefault(build_schema_rule(topic.schemas), topic.topic)
    if len(rules) != 1:
        raise InvalidRequest(
            "Values are parsed by one schema.",
            found=f"{len(rules)} schemas, of {', '.join(rules.values()) or 'no topic'}",
            expected="topics with the same schema, or one read per topic",
        )
    return next(iter(rules))


def add_schemas(rule: SchemaRule, versions: Iterable[SchemaVersion]) -> SchemaRule:
    """Return the rule, able to read Avro values that were written under these versions, too."""
    if rule.type != AVRO:
        return rule
    texts = [version.schema for version in versions if version.type == AVRO]
    return rule._replace(earlier=tuple(dict.fromkeys(text for text in (*rule.earlier, *texts) if text != rule.text)))


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
        remaining = iter(rows.to_pylist(maps_as_pydicts="strict") if isinstance(rows, pa.Table) else rows)
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
                values.append(None if text is None else self._schema.encode_json(text))
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
