"""Values of Avro schemas: what fits, what does not and why, their columns, and their form as JSON."""

import datetime as dt
import json
import re
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from lakemq.engine.client.schemas import SchemaRule
from lakemq.engine.client.schemas.topic_schema import ValueSchema, compile_schema, open_topic_schema
from lakemq.engine.protocol.parameters import SchemaVersion
from lakemq.errors import InvalidConfig, SchemaMismatch


def avro(schema: Any, *earlier: Any) -> ValueSchema:
    return compile_schema(SchemaRule("avro", json.dumps(schema), tuple(map(json.dumps, earlier))))


def logical(type: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": name, **more}


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": type} for n, type in fields.items()]}


def test_repetitions_of_avro_are_refused() -> None:
    for types, text in (
        (["int", "string"], "two fields of one name"),
        ([["int", "int"]], "one type twice"),
        ([{"type": "array", "items": ["null", ["int"]]}], "contains a union"),
    ):
        fields = [{"name": "a", "type": type} for type in types]
        with pytest.raises(InvalidConfig, match=text):
            compile_schema(SchemaRule("avro", json.dumps({"type": "record", "name": "R", "fields": fields})))


# -- bytes become columns, and defaults fill in -----------------------------------------------------------


def test_avro_types_become_columns() -> None:
    schema = avro(
        record(
            "ns.R",
            e={"type": "enum", "name": "E", "symbols": ["A"]},
            f={"type": "fixed", "name": "F", "size": 2},
            l={"type": "array", "items": ["null", "int"]},
            m={"type": "map", "values": "E"},
            u=["null", "string", "int"],
            id=logical("string", "uuid"),
            day=logical("int", "date"),
            at=logical("long", "timestamp-millis"),
            of_day=logical("int", "time-millis"),
            d=logical("bytes", "decimal", precision=4, scale=2),
            many=logical("bytes", "decimal", precision=40, scale=2),
            n=logical("int", "decimal", precision=4, scale=2),
        )
    )
    row = {
        "e": "A",
        "f": b"ab",
        "l": [1, None],
        "m": {"k": "A"},
        "u": 3,
        "id": uuid.UUID(int=1),
        "day": dt.date(2024, 1, 1),
        "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "of_day": dt.time(1),
        "d": Decimal("1.25"),
        "many": Decimal("123456789012345678901234567890123456.25"),
        "n": 5,
    }
    (parsed,) = schema.parse([schema.encode(row)]).to_pylist()
    texts = {"u": "3", "id": str(uuid.UUID(int=1)), "of_day": "01:00:00", "many": str(row["many"])}
    assert parsed == {**row, **texts, "m": [("k", "A")]}


def test_avro_default_is_the_value_that_its_encoding_decodes_to() -> None:
    """In a schema, bytes are text of the code points 0 to 255, and a logical type is what it annotates."""
    state = {"type": "enum", "name": "State", "symbols": ["IDLE", "LOST"]}
    part = {"name": "b", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\u00fe"}}
    local = logical("long", "local-timestamp-micros")
    defaults: dict[str, tuple[Any, Any, Any]] = {
        "raw": ("bytes", "\u00ff\u0001", b"\xff\x01"),
        "code": ({"type": "fixed", "name": "Code", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
        "cost": (logical("bytes", "decimal", precision=5, scale=2), "\u00ff", Decimal("-0.01")),
        "day": (logical("int", "date"), 1, dt.date(1970, 1, 2)),
        "at": (logical("long", "timestamp-millis"), 1000, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        "local": (["null", local], 7, dt.datetime(1970, 1, 1, 0, 0, 0, 7)),
        "of_day": (logical("int", "time-millis"), 1000, "00:00:01"),
        "state": (state, "LOST", "LOST"),
        "states": ({"type": "array", "items": ["null", "State"]}, ["LOST", None], ["LOST", None]),
        "ratio": (["boolean", "double"], 2, "2.0"),
        "inner": ({"type": "record", "name": "Inner", "fields": [part]}, {}, {"b": [("k", b"\xfe")]}),
        "again": ({"type": "array", "items": "Inner"}, [{}], [{"b": [("k", b"\xfe")]}]),
    }
    old = record("R", id="int")
    fields = [{"name": name, "type": type, "default": text} for name, (type, text, _) in defaults.items()]
    new = avro({**old, "fields": [*old["fields"], *fields]}, old)
    expected = {"id": 1, **{name: value for name, (_, _, value) in defaults.items()}}
    assert new.parse([avro(old).encode({"id": 1}), new.encode({"id": 1})]).to_pylist() == [expected, expected]


@pytest.mark.parametrize(
    ("type", "default"),
    [
        ("bytes", "\u0100"),
        ({"type": "array", "items": {"type": "map", "values": "int"}}, [[]]),
        (logical("int", "date"), 2**31 - 1),
        (record("Inner", x="int"), {}),
    ],
)
def test_avro_default_that_is_no_value_of_its_type_counts_as_none(type: Any, default: Any) -> None:
    old = record("R")
    new = avro({**old, "fields": [{"name": "b", "type": type, "default": default}]}, old)
    assert new.parse([avro(old).encode({})]).to_pylist() == [None]
    with pytest.raises(ValueError, match="found no field b, expected one"):
        new.encode({})


def test_misfit_of_avro_has_a_reason() -> None:
    old, new = (record("R", a=type) for type in ("int", "long"))
    schema, value = avro(new, old), avro(old).encode({"a": 300})
    unknown = avro(record("S")).encode({})
    assert schema.parse([value]).to_pylist() == [{"a": 300}]
    misfits = schema.find_misfits([value, value[:-1], value + b"\x00", unknown, b"\xc3\x01", b'{"a": 1}', None])
    assert sorted(misfits) == [1, 2, 3, 4, 5]
    assert misfits[1] == "found bytes that are no value of the schema"
    assert misfits[2] == "found bytes after the value"
    assert misfits[3].startswith(f"found the schema {unknown[2:10].hex()}, which is no version")
    assert misfits[4] == misfits[5] == "found no header of Avro's single-object encoding (C3 01 and a fingerprint)"


def test_record_of_a_union_keeps_its_name_in_both_directions() -> None:
    """Card and Voucher have the same fields, so only the name says which one it is."""
    card, voucher = (record(name, number="string") for name in ("Card", "Voucher"))

    def payment(*more: Any) -> dict[str, Any]:
        later = {**voucher, "fields": [*voucher["fields"], *more]}
        fields = [
            {"name": "by", "type": ["null", card, later]},
            {"name": "others", "type": {"type": "array", "items": ["Card", "Voucher", "string"]}, "default": []},
            {"name": "notes", "type": {"type": "map", "values": "string"}, "default": {}},
            {"name": "one", "type": ["null", record("One")]},
        ]
        return {"type": "record", "name": "Payment", "namespace": "shop", "fields": fields}

    paid = {
        "by": {"-type": "shop.Voucher", "number": "7"},
        "others": [{"-type": "shop.Card", "number": "8"}, {"-type": "shop.Voucher", "number": "9"}, "cash"],
        "notes": {"-type": "shop.Card"},
        "one": {},
    }
    before, now = avro(payment()), avro(payment({"name": "left", "type": "int", "default": 0}), payment())
    value = before.encode(paid)
    (row,) = before.parse([value]).to_pylist()
    assert json.loads(row["by"]) == paid["by"]
    assert [json.loads(part) for part in row["others"]] == paid["others"]
    assert row["notes"] == [("-type", "shop.Card")]
    (row,) = now.parse([value]).to_pylist()
    assert json.loads(row["by"]) == {**paid["by"], "left": 0}
    (row,) = before.parse([before.encode({"by": {"number": "7"}})]).to_pylist()
    assert json.loads(row["by"])["-type"] == "shop.Card", "without a name the first that fits"
    with pytest.raises(ValueError, match=r"at \$\.by\.number: found int, expected string"):
        before.encode({"by": {"-type": "shop.Voucher", "number": 7}})


# -- a value is encoded without a loss, or refused --------------------------------------------------------


NOON = dt.datetime(2024, 5, 1, 12)
UTC_NOON = NOON.replace(tzinfo=dt.UTC)
ID = uuid.UUID(int=1)

# type, values that are read as they were written, and values that are refused, with what the error says of them
AVRO_LEAVES: list[tuple[Any, list[Any], list[tuple[Any, str]]]] = [
    ("boolean", [True, False], [(None, "NoneType"), (0, "int"), ("no", "str"), ([], "list")]),
    ("int", [2**31 - 1], [(5.5, "float"), (5.0, "float"), (True, "bool"), (2**31, "a number out of range")]),
    ("long", [-(2**63)], [(5.5, "float"), (Decimal(5), "Decimal"), (ID, "UUID"), (2**63, "a number out of range")]),
    ("float", [1.5, 3, float("inf")], [("5", "str"), (1e39, "a number out of range"), (True, "bool")]),
    ("double", [1e300, 5], [("5", "str"), (Decimal("1.5"), "Decimal"), (10**400, "a number out of range")]),
    ("string", ["t"], [(b"t", "bytes"), (5, "int")]),
    ("bytes", [b"t"], [("t", "str")]),
    ({"type": "fixed", "name": "F", "size": 2}, [b"ab"], [(b"a", "1 bytes, expected fixed F"), ("ab", "str")]),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, ["A"], [("B", "no symbol of it, expected enum E")]),
    ({"type": "array", "items": "int"}, [[1], []], [("", "str"), (b"ab", "bytes"), ({1: 1}, "dict")]),
    ({"type": "map", "values": "int"}, [{"k": 1}], [("", "str"), ({1: 1}, "a key that is no text")]),
    (logical("string", "uuid"), [ID], [("x", "text of another form"), (ID.hex, "text of another form")]),
    (logical("int", "date"), [NOON.date()], [(NOON, "datetime"), ("soon", "text of another form"), (5.5, "float")]),
    (logical("long", "timestamp-micros"), [UTC_NOON], [(NOON, "a time without a zone"), (2**62, "a number out of")]),
    (logical("long", "local-timestamp-micros"), [NOON], [(UTC_NOON, "a time with a zone"), ("now", "str")]),
    (logical("long", "time-micros"), [dt.time(1)], [(UTC_NOON.timetz(), "a time with a zone"), (2**60, "a number")]),
    (
        logical("bytes", "decimal", precision=4, scale=2),
        [Decimal("99.99"), Decimal("-1.5"), Decimal(0)],
        [(Decimal("123"), "a decimal with more digits"), (Decimal("1.255"), "a decimal with more"), (5, "int")],
    ),
    (["null", "int"], [None, 1], [(5.5, "float, expected null or int")]),
    (["null", "float", "string"], [None, "t", 1.5], [(1e39, "float, expected null or float or string")]),
    (["null", logical("string", "uuid")], [ID], [("x", "text of another form, expected null or uuid")]),
]


@pytest.mark.parametrize(("type", "values", "misfits"), AVRO_LEAVES)
def test_avro_encoding_changes_no_value(type: Any, values: list[Any], misfits: list[tuple[Any, str]]) -> None:
    """fastavro alone writes true for any object, 5 for 5.5, infinity for 1e39, and takes a time as one of its zone."""
    schema = avro(record("R", a={"type": "array", "items": record("I", x=type)}))
    row = {"a": [{"x": value} for value in values]}
    assert schema.decode(schema.encode(row)) == row
    for value, found in misfits:
        with pytest.raises(ValueError, match=rf"^at \$\.a\[\.\.\.\]\.x: found {found}"):
            schema.encode({"a": [*row["a"], {"x": value}]})


def test_avro_encoding_takes_what_loses_nothing() -> None:
    """Numbers of NumPy, text of a date, the number beneath a logical type, and tuples that name a branch."""
    for type, value, read in (
        ("boolean", np.bool_(True), True),
        ("long", np.int64(5), 5),
        ({"type": "array", "items": "double"}, np.array([1.5]), [1.5]),
        (logical("int", "date"), "2024-05-01", NOON.date()),
        (logical("int", "date"), dt.datetime(2024, 5, 1), NOON.date()),
        (logical("long", "timestamp-millis"), np.int64(1), dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC)),
        (logical("string", "uuid"), str(ID), ID),
        (["int", "string", "null"], ("string", "t"), "t"),
        (["int", "string", "null"], ("null", None), None),
    ):
        schema = avro(type)
        assert schema.decode(schema.encode(value)) == read


def test_avro_decimal_of_more_digits_does_not_fit() -> None:
    """Its column has no room for it. Text would have other digits, because fastavro rounds."""
    for precision in (4, 40):
        schema = avro(logical("bytes", "decimal", precision=precision, scale=2))
        header = schema.encode(Decimal("0.01"))[:10]
        for digits in (precision, precision + 1):
            number = (10**digits - 1).to_bytes(20, "big")
            found = schema.find_misfits([header + bytes([40]) + number])
            assert ("a decimal with more digits" in found.get(0, "")) == (digits > precision)


# -- unions and records -----------------------------------------------------------------------------------


MAYBE = ["null", "int"]
DAY = logical("int", "date")


@pytest.mark.parametrize(
    ("union", "values"),
    [
        (["double", "long"], [2**53 + 1, 5, 5.0, 1e300]),
        (["float", "int", "string"], [5, 5.0, "5"]),
        (["null", "float", "double"], [0.1, 0.5, None]),
        (["boolean", "int"], [True, 1]),
        ([DAY, logical("long", "timestamp-millis")], [UTC_NOON, dt.date(2024, 5, 1)]),
        ([logical("int", "time-millis"), logical("long", "time-micros")], [dt.time(1, 2, 3, 456)]),
        (["double", logical("bytes", "decimal", precision=4, scale=2), "string"], [Decimal("1.50"), 1.5, "1.50"]),
        ([record("R", a="int"), {"type": "map", "values": "int"}], [{"a": 1}, {"b": 1}, {}]),
        ([{"type": "map", "values": ["null", logical("string", "uuid"), DAY]}, "null"], [{"k": ID, "l": None}, None]),
        ([{"type": "map", "values": "long"}, record("R", a=MAYBE)], [{}, {"a": 1}, {"a": None}, {"b": 1}]),
    ],
)
def test_value_of_an_avro_union_is_of_the_branch_that_gives_it_back(union: Any, values: list[Any]) -> None:
    """fastavro takes the first branch that can write a value: 1.0 for 1, and a day for the number of one."""
    schema = avro(record("T", v=union))
    for value in values:
        for given in ({"v": value}, {"v": np.array(value)[()]} if type(value) in (int, float, bool) else {"v": value}):
            assert repr(schema.decode(schema.encode(given))) == repr({"v": value})


def test_record_of_an_avro_union_is_the_named_one_or_that_with_most_fields() -> None:
    pair = [record("R", a=MAYBE), record("S", a=MAYBE, b=MAYBE), record("T", a="string")]
    schema = avro({"type": "array", "items": pair})
    rows = [{"a": 1}, {"a": 1, "b": 2}, {"a": "x"}, {}, {"b": 2}, {"-type": "S", "a": 1}, {"-type": "S"}]
    decoded = schema.decode(schema.encode(rows))
    assert [row["-type"] for row in decoded] == ["R", "S", "T", "R", "S", "S", "S"]
    assert schema.encode(decoded) == schema.encode(rows)
    for row, reason in (
        ({"-type": "T", "a": 1}, "[...].a: found int, expected string"),
        ({"-type": "U", "a": 1}, "[...]: found a -type that names no record of the union, expected record R or "),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)):
            schema.encode([row])


@pytest.mark.parametrize(("type", "bits"), [("float", 24), ("double", 53)])
def test_whole_number_that_a_float_would_change_does_not_fit(type: str, bits: int) -> None:
    for number in (2**bits, 2**60, -(2**bits), np.int64(2**bits)):
        assert avro(type).decode(avro(type).encode(number)) == number
    for number in (2**bits + 1, np.int64(2**bits + 1)):
        with pytest.raises(ValueError, match=f"found a whole number of more than {bits} bits, expected {type}"):
            avro(type).encode(number)


def test_decoded_values_of_another_branch_are_no_misfit() -> None:
    """`int` may be out of range in written bytes, so decoded values are checked against each branch."""
    schema = avro([record("R", a="int"), {"type": "map", "values": "int"}, {"type": "array", "items": "int"}])
    values = [schema.encode(value) for value in ({"a": 1}, {"b": 2}, [3])]
    assert schema.parse(values).to_pylist() == ['{"a":1}', '{"b":2}', "[3]"]
    schema = avro([record("R", a="float"), "int"])
    assert schema.parse([schema.encode({"a": 0.5}), schema.encode(5)]).to_pylist() == ['{"a":0.5}', "5"]
    out_of_range = schema.encode(5)[:10] + b"\x02" + b"\xff" * 9 + b"\x01"
    assert schema.find_misfits([out_of_range]) == {0: "at $: found int, expected record R or int"}


def test_avro_encoding_refuses_undeclared_fields_and_fills_in_defaults() -> None:
    inner = record("S", x=["int", "null"])
    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 3}]
    fields += [{"name": "c", "type": ["null", inner]}, {"name": "d", "type": {"type": "array", "items": "S"}}]
    schema = avro({"type": "record", "name": "R", "fields": fields})
    assert schema.parse([schema.encode({"a": 1, "d": [{}]})]).to_pylist() == [
        {"a": 1, "b": 3, "c": None, "d": [{"x": None}]}
    ]
    for row in ({"a": 1, "d": [], "bb": 4}, {"a": 1, "d": [], "c": {"y": 1}}, {"a": 1, "d": [{"y": 1}]}, {"d": []}):
        with pytest.raises(ValueError, match=r"fields that the schema does not declare: |found no field "):
            schema.encode(row)


# -- values as JSON text ----------------------------------------------------------------------------------


def test_avro_values_are_written_and_read_as_json() -> None:
    types = {
        "at": logical("long", "timestamp-micros"),
        "day": logical("int", "date"),
        "price": logical("bytes", "decimal", precision=6, scale=2),
        "raw": "bytes",
        "any": ["null", "string", "long"],
        "many": {"type": "array", "items": {"type": "map", "values": "bytes"}},
        "of_day": ["null", logical("int", "time-millis")],
        "digits": logical("bytes", "decimal", precision=40, scale=2),
        "exact": logical("bytes", "decimal", precision=38, scale=2),
        "ratio": ["null", "double", "string"],
    }
    topic = open_topic_schema("t", lambda: [SchemaVersion(1, "avro", json.dumps(record("R", **types)), 1)], None)
    row = {
        "at": "2024-05-01T12:00:00.000001Z",
        "day": "2024-05-01",
        "price": 12.3,
        "raw": "/w==",
        "any": 7,
        "many": [{"k": "AA=="}],
        "of_day": "12:30:00",
        "digits": "12345678901234567890123456789012345678.25",
        "exact": "123456789012345678901234567890123456.25",
        "ratio": 0.1,
    }
    values = topic.encode_json([json.dumps(row).encode(), None])
    assert topic.find_misfits(values) == {}
    text, null, foreign = topic.decode_json([*values, b"no avro"])
    assert null is None
    assert foreign == b"no avro"
    assert topic.encode_json([text, null]) == values
    written = json.loads(text or b"", parse_float=Decimal)
    numbers = {name: Decimal(str(row[name])) for name in ("price", "digits", "exact", "ratio")}
    assert written == {**row, **numbers}
    for wrong in (row | {"more": 1}, row | {"at": "soon"}, row | {"raw": "?"}, row | {"price": "much"}):
        with pytest.raises(SchemaMismatch, match="Row 0 does not fit"):
            topic.encode_json([json.dumps(wrong).encode()])


def test_json_of_avro_parts_without_a_column_is_encoded_again() -> None:
    """Unions have no Arrow type that says what their text is."""
    decimal, moment = logical("bytes", "decimal", precision=30, scale=4), logical("long", "timestamp-micros")
    parts = {
        "at": ["null", moment, "int"],
        "raw": ["bytes", "long"],
        "price": decimal,
        "size": ["double", decimal],
        "day": ["string", logical("int", "date")],
    }
    node = record("Node", **parts, inner=["null", record("Leaf", **parts), {"type": "array", "items": "Leaf"}])
    topic = open_topic_schema("t", lambda: [SchemaVersion(1, "avro", json.dumps(node), 1)], None)
    leaf = {"at": UTC_NOON, "raw": b"ab", "price": Decimal("0.1000"), "size": 1.5, "day": "2024-05-01"}
    small = {"at": 5, "raw": 7, "price": Decimal(3), "size": Decimal("12345678901234567890.1234"), "day": "x"}
    rows = [leaf | {"inner": small}, small | {"inner": [leaf, leaf | {"raw": b"\xff"}]}]
    values = topic.encode(rows).to_pylist()
    assert topic.encode_json(topic.decode_json(values)) == values
    (text,) = topic.decode_json(topic.encode([leaf]).to_pylist())
    row = json.loads(text or b"")
    del row["inner"]
    for name, wrong in (("at", "soon"), ("raw", "?"), ("price", "much"), ("size", True)):
        nested = json.dumps(row | {"inner": row | {name: wrong}}).encode()
        with pytest.raises(SchemaMismatch, match=rf"at \$\.inner.*\.{name}: found (str|bool)"):
            topic.encode_json([nested])


def test_nan_and_infinity_of_avro_are_text_in_json_and_encoded_again() -> None:
    numbers = ["null", "double", "long"]
    schema = record("R", a="float", b=["null", "double"], c=numbers, d={"type": "array", "items": numbers})
    topic = open_topic_schema("t", lambda: [SchemaVersion(1, "avro", json.dumps(schema), 1)], None)
    rows = [{"a": n, "b": n, "c": n, "d": [n, None, -0.0]} for n in (float("nan"), float("inf"), float("-inf"))]
    values = topic.encode(rows).to_pylist()
    texts = topic.decode_json(values)
    assert texts[2] == b'{"a":"-Infinity","b":"-Infinity","c":"-Infinity","d":["-Infinity",null,-0.0]}'
    assert topic.encode_json(texts) == values
    assert topic.parse(values).field("c").to_pylist() == ['"NaN"', '"Infinity"', '"-Infinity"']
    with pytest.raises(SchemaMismatch, match=r"at \$\.a: found str, expected float"):
        topic.encode_json([(texts[0] or b"").replace(b'{"a":"NaN"', b'{"a":"nan"')])


def test_avro_fingerprint_is_that_of_the_specification() -> None:
    """The fingerprint of the schema "int", as the Java implementation has it, in the order of the encoding."""
    assert compile_schema(SchemaRule("avro", '"int"')).encode(1)[2:10] == bytes.fromhex("8f5c393f1ad57572")
