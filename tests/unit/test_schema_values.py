"""Values of DDL and JSON schemas: what fits, what does not and why, and the columns that they become."""

import base64
import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakemq.engine.client.schemas import SchemaRule
from lakemq.engine.client.schemas.ddl import parse_ddl, to_ddl
from lakemq.engine.client.schemas.topic_schema import ValueSchema, compile_schema, open_topic_schema
from lakemq.engine.protocol.parameters import SchemaVersion
from lakemq.errors import InvalidConfig, SchemaMismatch

ALL_DDL = (
    "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(5,2), i STRING, j BINARY, k DATE, "
    "l TIMESTAMP, m TIMESTAMP_NTZ, n ARRAY<INT>, o MAP<STRING,ARRAY<INT>>, p STRUCT<`x y`: INT, z: STRING>"
)
ALL_VALUE: dict[str, Any] = {
    "a": True,
    "b": -128,
    "c": 32767,
    "d": -(2**31),
    "e": 2**63 - 1,
    "f": 3.4028234663852886e38,
    "g": 1e300,
    "h": Decimal("-999.99"),
    "i": "ü",
    "j": b"\x00\xff",
    "k": dt.date(2024, 2, 29),
    "l": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),
    "m": dt.datetime(2024, 2, 29, 12),
    "n": [1, None],
    "o": [("k", [1]), ("q", None)],
    "p": {"x y": 1, "z": None},
}


def ddl(text: str) -> ValueSchema:
    return compile_schema(SchemaRule("ddl", text))


def json_schema(**schema: Any) -> ValueSchema:
    return compile_schema(SchemaRule("json", json.dumps(schema)))


def test_each_ddl_type_is_encoded_and_parsed() -> None:
    schema = ddl(ALL_DDL)
    value = schema.encode({**ALL_VALUE, "o": dict(ALL_VALUE["o"])})
    assert json.loads(value)["j"] == base64.b64encode(b"\x00\xff").decode()
    parsed = schema.parse([value, b"{}", None])
    parsed.validate(full=True)
    assert parsed.to_pylist() == [ALL_VALUE, dict.fromkeys(ALL_VALUE), None]
    assert parse_ddl(to_ddl(parse_ddl(ALL_DDL))) == parse_ddl(ALL_DDL)
    assert parse_ddl(f" STRUCT<{ALL_DDL}> ") == parse_ddl(ALL_DDL)


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("a INT NOT NULL", "{}", "at $: object missing required field a"),
        ("a INT NOT NULL", '{"a": null}', "at $.a: found null, expected int"),
        ("a INT", '{"a": "secret"}', "at $.a: found str, expected int | null"),
        ("a INT", '{"a": 1.0}', "at $.a: found float, expected int | null"),
        ("a BIGINT", '{"a": 9223372036854775808}', "at $.a: expected int <= 9223372036854775807"),
        ("a FLOAT", '{"a": 1e39}', "at $.a: expected float < 3.4028235677973366e+38"),
        ("a DECIMAL(3,1)", '{"a": 1.25}', "at $.a: expected decimal(3,1)"),
        ("a DECIMAL(3,1)", '{"a": true}', "at $.a: expected decimal(3,1)"),
        ("a TIMESTAMP", '{"a": "2024-01-01T00:00:00"}', "at $.a: expected datetime with a timezone component"),
        ("a ARRAY<STRUCT<b: INT>>", '{"a": [{}, {"b": "s"}]}', "at $.a[...].b: found str, expected int | null"),
        ("a MAP<STRING,INT>", '{"a": {"secret": "s"}}', "at $.a[...]: found str, expected int | null"),
        ("a INT", "[]", "at $: found array, expected object"),
        ("a INT", '{"a": 1', "found no JSON"),
    ],
)
def test_misfit_of_ddl_has_a_reason(text: str, value: str, reason: str) -> None:
    schema = ddl(text)
    assert schema.find_misfits([b'{"a": 1}' if "NOT" in text else b"{}", value.encode()]) == {1: reason}
    assert schema.parse([value.encode()]).to_pylist() == [None]


def test_fields_with_names_beyond_ascii_are_parsed() -> None:
    schema = ddl("`\u00e9` INT NOT NULL, s STRUCT<`\u65e5`: INT, x: INT>")
    row = {"\u00e9": 1, "s": {"\u65e5": 2, "x": 3}}
    for ensures_ascii in (True, False):
        value = json.dumps(row, ensure_ascii=ensures_ascii).encode()
        assert schema.parse([value]).to_pylist() == [row]
        assert schema.find_misfits([value.replace(b"2", b'"t"')]) == {
            0: "at $.s.\u65e5: found str, expected int | null"
        }


class Foreign:
    """A class that JSON does not know."""


@pytest.mark.parametrize(
    ("part", "place", "found"),
    [
        (float("nan"), "a", "NaN or an infinite number"),
        (np.float32("inf"), "a", "NaN or an infinite number"),
        (Foreign(), "a", "Foreign"),
        ([{"x": 1j}], "a[...].x", "complex"),
        ("\ud800", "a", "str"),
    ],
)
def test_encoding_names_what_json_cannot_hold(part: Any, place: str, found: str) -> None:
    """msgspec alone writes null for NaN."""
    for schema in (ddl("a DOUBLE"), ddl("a STRING"), json_schema()):
        with pytest.raises(ValueError, match=rf"^at \$\.{re.escape(place)}: found {found}, which JSON cannot hold"):
            schema.encode({"n": None, "a": part})


def test_invalid_ddl_schemas_are_refused() -> None:
    for text in (
        "",
        "a",
        "a FROB",
        "a MAP<INT,INT>",
        "a DECIMAL(39,0)",
        "a INT; b INT",
        "INT",
        "a INT DEFAULT 5",
        "a INT NOT NULL PRIMARY KEY",
        "a STRING COLLATE UTF8_LCASE",
        f"a DECIMAL({'9' * 5_000})",
    ):
        with pytest.raises(InvalidConfig, match="cannot be read as DDL"):
            parse_ddl(text)
    with pytest.raises(InvalidConfig, match=r"schema\.type json or avro"):
        parse_ddl('{"type": "object"}')
    remote, missing = '{"$ref": "https://example.com/s.json"}', '{"$ref": "#/$defs/none"}'
    for text in ("{", '{"type": "frob"}', remote, missing, "[]"):
        with pytest.raises(InvalidConfig):
            compile_schema(SchemaRule("json", text))
    for text in ("{", '{"type": "frob"}', '{"type": "record"}', "5", "[]x"):
        with pytest.raises(InvalidConfig, match=r"no Avro schema|no JSON"):
            compile_schema(SchemaRule("avro", text))


def test_fields_that_spark_cannot_tell_apart_are_refused_in_all_languages() -> None:
    """They may stand where `parsed` shows JSON, such as in a union."""
    record = {"type": "record", "name": "S", "fields": [{"name": name, "type": "int"} for name in ("b", "ÄA", "äa")]}
    properties = {"type": "object", "properties": {"b": {}, "ÄA": {}, "äa": {}}}
    for type, text in (
        ("ddl", "b INT, `ÄA` INT, `äa` INT"),
        ("ddl", "x MAP<STRING, ARRAY<STRUCT<b: INT, `ÄA`: INT, `äa`: INT>>>"),
        ("avro", json.dumps(record)),
        ("avro", json.dumps({"type": "array", "items": ["null", record]})),
        ("json", json.dumps(properties)),
        ("json", json.dumps({"items": {"$ref": "#/$defs/p"}, "type": "array", "$defs": {"p": properties}})),
    ):
        with pytest.raises(InvalidConfig, match=r"Spark cannot tell them apart\. Found 'ÄA and äa'"):
            compile_schema(SchemaRule(type, text))
    union = compile_schema(SchemaRule("avro", json.dumps(["int", record])))
    assert union.parse([union.encode({"b": 1, "ÄA": 2, "äa": 3})]).type == pa.string()


def test_time_outside_the_years_that_python_reads_is_null() -> None:
    schema = ddl("at TIMESTAMP, more ARRAY<TIMESTAMP>")
    outside = ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999-01:00"]
    within = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"]
    values = [json.dumps(row).encode() for time in outside for row in ({"at": time}, {"more": [time]})]
    values += [json.dumps({"at": time, "more": [time]}).encode() for time in within]
    assert schema.find_misfits(values) == {}
    first, last = (dt.datetime(*day, tzinfo=dt.UTC) for day in ((1, 1, 1), (9999, 12, 31, 23, 59, 59, 999999)))
    assert schema.parse(values).to_pylist() == [None] * 4 + [{"at": time, "more": [time]} for time in (first, last)]


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "object", "required": ["a"]}, "{}", 'at $: found object without a, expected required ["a"]'),
        ({"properties": {"a": {"type": "string"}}}, '{"a": 1}', 'at $.a: found integer, expected type "string"'),
        ({"properties": {"a": {"minimum": 0}}}, '{"a": -1.5}', "at $.a: found number, expected minimum 0"),
        ({"items": {"enum": ["x"]}}, '["secret"]', 'at $[...]: found string, expected enum ["x"]'),
        ({"additionalProperties": False}, '{"secret": 1}', "at $: found an undeclared property, expected additional"),
        ({"additionalProperties": {"type": "null"}}, '{"secret": 1}', 'at $.*: found integer, expected type "null"'),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}, "1", "at $: found integer, expected type"),
        (
            {"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"properties": {"a": {"maxLength": 2}}}}},
            '[{"a": "secret"}]',
            "at $[...].a: found string, expected maxLength 2",
        ),
        ({}, "{", "found no JSON"),
    ],
)
def test_misfit_of_a_json_schema_has_a_reason(schema: Any, value: str, reason: str) -> None:
    found = json_schema(**schema).find_misfits([value.encode()])[0]
    assert found.startswith(reason)
    assert "secret" not in found


def test_json_schema_becomes_typed_columns_where_types_are_clear() -> None:
    schema = json_schema(
        type="object",
        properties={
            "i": {"type": "integer"},
            "n": {"type": ["null", "number"]},
            "l": {"type": "array", "items": {"$ref": "#/$defs/p"}},
            "any": {},
            "two": {"type": ["string", "integer"]},
            "self": {"$ref": "#"},
        },
        **{"$defs": {"p": {"type": "object", "properties": {"x": {"type": "boolean"}}}}},
    )
    value = {"i": 2.0, "n": 1, "l": [{"x": True, "y": 1}], "any": {"b": [1.5, "t"]}, "two": "t", "self": {"i": 1}}
    (parsed,) = schema.parse([json.dumps(value).encode()]).to_pylist()
    assert json.loads(parsed.pop("self")) == {"i": 1}
    assert parsed == {"i": 2, "n": 1.0, "l": [{"x": True}], "any": '{"b":[1.5,"t"]}', "two": '"t"'}
    assert schema.parse([b'{"i": 1e300}', b'{"i": 3}'])[1].as_py()["i"] == 3, "one value outside of 64 bits is alone"


def test_too_deeply_nested_value_does_not_fit() -> None:
    """msgspec ends at Python's limit of recursion, which is the stack since 3.14, jsonschema-rs at its own."""
    deep, middle = (b"[" * depth + b"]" * depth for depth in (1_000_000, 400))
    strict = json_schema(type="object")
    cases = [(ddl("a INT"), b'{"b": ' + deep + b"}"), (strict, b'{"b": ' + deep + b"}"), (strict, middle)]
    for schema, value in cases:
        assert schema.find_misfits([b"{}", value]) == {1: "found JSON that is nested too deeply"}
        assert [parsed is None for parsed in schema.parse([b"{}", value]).to_pylist()] == [False, True]


@pytest.mark.parametrize(
    ("type", "schema"),
    [
        ("ddl", "day DATE, raw BINARY, price DECIMAL(6,2)"),
        (
            "json",
            '{"required": ["day"], "properties": {"raw": {"type": "string"}, "price": {"type": ["string", "number"]}}}',
        ),
    ],
)
def test_json_that_fits_is_kept_byte_for_byte(type: str, schema: str) -> None:
    topic = open_topic_schema("t", lambda: [SchemaVersion(1, type, schema, 1)], None)
    texts = [b'{"day": "2024-05-01", "raw": "/w==", "price": 12.30}', b'{"day":"2024-05-01","price":"12.30"}', None]
    assert topic.encode_json(texts) == texts
    assert topic.parse(texts).null_count == 1
    for wrong in (b'{"day": "2024-05-01", "raw": 7}', b"{"):
        with pytest.raises(SchemaMismatch, match="Row 0 does not fit"):
            topic.encode_json([wrong])
