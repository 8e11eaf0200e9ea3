"""Avro: values in the single-object encoding of Avro's specification, read and written by fastavro.

A value begins with two marker bytes and the fingerprint of the schema under which it was written. So a reader finds
that schema among the topic's versions, and fastavro resolves it against the newest one.
"""

import io
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ...namespace.extras import needs
from ...protocol.errors import InvalidConfig
from .avro_check import AvroCheck
from .avro_shape import (
    DECIMAL_TYPES,
    LOGICAL_TYPES,
    RECORD_NAME,
    TEXT_TYPES,
    AvroShape,
    bound_decimals,
    decode_defaults,
    is_null,
    list_types,
    resolve_types,
)
from .budgets import MAX_CELLS, BeyondBudgetError, count_items, parse_json
from .columns import MAX_DIGITS, json_text_field, text_field

MARKER = b"\xc3\x01"
_HEADER_BYTES = 10

_LEAVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}


def parse_avro(text: str) -> Any:
    """Return the schema as fastavro parses it.

    Raises:
        InvalidConfig: the text is no Avro schema.
        MissingExtra: the extra `schemas` is not installed.
    """
    with needs("schemas"):
        import fastavro
    schema = parse_json(text, "an Avro schema")
    try:
        return fastavro.parse_schema(schema)
    except Exception as error:  # fastavro raises whatever its code meets in a schema of a wrong form
        raise InvalidConfig(
            f"The schema is no Avro schema ({type(error).__name__}: {error}).", found=text, expected="an Avro schema"
        ) from None


def fingerprint(parsed: Any) -> bytes:
    """Return the CRC-64-AVRO fingerprint of the schema's canonical form, in the order of bytes of a value."""
    from fastavro import schema

    canonical = schema.to_parsing_canonical_form(parsed)
    return bytes.fromhex(schema.fingerprint(canonical, "CRC-64-AVRO"))


def find_unknown_writers(values: Sequence[bytes | None], schemas: Iterable[str]) -> set[bytes]:
    """Return the fingerprints of schemas, other than these, under which values were written."""
    found = {value[2:_HEADER_BYTES] for value in values if value is not None and value[:2] == MARKER}
    return found - set(map(_fingerprint_text, schemas))


@lru_cache(maxsize=256)
def _fingerprint_text(text: str) -> bytes:
    return fingerprint(parse_avro(text))


class AvroDecoder:
    """Decodes values that were written under one of several schemas, as values of the last one."""

    def __init__(self, schemas: Sequence[Any], shape: AvroShape) -> None:
        """schemas: as `parse_avro` returns them; the last one is the reader's. shape: of the last one."""
        from fastavro import schemaless_reader

        self._read = schemaless_reader
        self._reader = bound_decimals(decode_defaults(schemas[-1]))
        self._writers = {fingerprint(schema): bound_decimals(schema) for schema in schemas}
        self._newest = fingerprint(schemas[-1])
        self._defaults, self._names_records = shape.repeated_defaults, shape.names_records
        self._check = AvroCheck(schemas[-1], is_decoded=True)

    def decode(self, value: bytes) -> Any:
        """Return the value. Raises ValueError, without parts of the value."""
        if value[:2] != MARKER or len(value) < _HEADER_BYTES:
            raise ValueError("found no header of Avro's single-object encoding (C3 01 and a fingerprint)")
        written_under = value[2:_HEADER_BYTES]
        writer = self._writers.get(written_under)
        if writer is None:
            raise ValueError(f"found the schema {written_under.hex()}, which is no version of the topic's schema")
        body = io.BytesIO(value)
        body.seek(_HEADER_BYTES)
        try:
            if written_under != self._newest and len(value) * self._defaults > MAX_CELLS:
                if count_items(self._read(body, writer)) * self._defaults > max(MAX_CELLS, len(value)):
                    raise BeyondBudgetError("found more items than the newest schema's defaults may be added to")
                body.seek(_HEADER_BYTES)
            reader = None if written_under == self._newest else self._reader
            named = self._names_records
            decoded = self._read(body, writer, reader, return_record_name=named, return_record_name_override=named)
        except BeyondBudgetError:
            raise
        except Exception:  # fastavro raises whatever its code meets in damaged bytes
            raise ValueError("found bytes that are no value of the schema") from None
        if body.tell() != len(value):
            raise ValueError("found bytes after the value")
        self._check.check([decoded])
        return _put_names_into_records(decoded) if self._names_records else decoded


def _put_names_into_records(value: Any) -> Any:
    """Return a value of fastavro with the name of a record beside its fields, in place of (name, record)."""
    if isinstance(value, tuple):
        name, record = value
        return {RECORD_NAME: name, **_put_names_into_records(record)}
    if isinstance(value, dict):
        return {key: _put_names_into_records(part) for key, part in value.items()}
    return [*map(_put_names_into_records, value)] if isinstance(value, list) else value


class AvroEncoder:
    """Encodes values under one schema. A field may be left out if it has a default, or may be null."""

    def __init__(self, schema: Any) -> None:
        from fastavro import schemaless_writer

        self._write, self._header = schemaless_writer, MARKER + fingerprint(schema)
        self._schema = decode_defaults(schema)
        _default_to_null(self._schema)
        self._check, self._json_check = AvroCheck(self._schema), AvroCheck(self._schema, is_json=True)

    def encode(self, values: Sequence[Any], are_json: bool = False) -> list[bytes]:
        """Return values in the single-object encoding. Raises ValueError, without parts of the values.

        are_json: they are of `read_json`: times are text, bytes are base64, and numbers with a point are decimals.
        """
        return list(map(self._encode_checked, (self._json_check if are_json else self._check).check(values)))

    def _encode_checked(self, value: Any) -> bytes:
        body = io.BytesIO()
        body.write(self._header)
        try:
            # Without this option fastavro drops fields that the schema does not declare, such as a misspelled one.
            self._write(body, self._schema, value, strict_allow_default=True)
        except Exception:  # fastavro raises whatever its code meets in a value of another type
            raise ValueError("found a value of another type, or a field that is missing or undeclared") from None
        return body.getvalue()


def _default_to_null(schema: Any) -> None:
    """Give the default null to all fields that may be null and have no default."""
    for part in list_types(schema):
        for field in part.get("fields", ()) if isinstance(part, dict) else ():
            if isinstance(field["type"], list) and "null" in field["type"]:
                field.setdefault("default", None)


def to_field(schema: Any) -> pa.Field:
    """Return the type of the schema's values, as a field.

    Unions of more than one type beside null are shown as JSON text; UUIDs, times of day and decimals of more than 38
    digits as text.
    """
    return _convert(resolve_types(schema), "value")


def _convert(schema: Any, name: str) -> pa.Field:
    """Return the type of a part, whose names are resolved."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if not is_null(branch)]
        return _convert(branches[0], name) if len(branches) == 1 else json_text_field(name)
    kind = schema["type"]
    logical = (kind, str(schema.get("logicalType")))
    if logical in LOGICAL_TYPES:
        return pa.field(name, LOGICAL_TYPES[logical])
    if logical in TEXT_TYPES:
        return text_field(name)
    if logical in DECIMAL_TYPES:
        precision = schema["precision"]
        fits = precision <= MAX_DIGITS
        return pa.field(name, pa.decimal128(precision, schema.get("scale", 0))) if fits else text_field(name)
    if kind == "array":
        return pa.field(name, pa.list_(_convert(schema["items"], "item")))
    if kind == "map":
        return pa.field(name, pa.map_(pa.string(), _convert(schema["values"], "value")))
    if kind in ("record", "error"):
        fields = [_convert(field["type"], field["name"]) for field in schema["fields"]]
        return pa.field(name, pa.struct(fields)) if fields else json_text_field(name)
    return pa.field(name, _LEAVES[kind]) if kind in _LEAVES else json_text_field(name)
