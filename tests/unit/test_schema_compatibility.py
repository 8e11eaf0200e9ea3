"""Which changes of a schema each compatibility admits: as docs/schemas.md lists them, and as values show."""

import json
from typing import Any

import fastavro
import hypothesis.strategies as st
import msgspec
import pytest
from examples import examples
from hypothesis import assume, given

from lakemq.engine.client.schemas import SchemaRule
from lakemq.engine.client.schemas.avro import parse_avro
from lakemq.engine.client.schemas.compatibility import (
    check_compatibility,
    find_avro_obstacle,
    find_json_schema_obstacle,
)
from lakemq.engine.client.schemas.ddl import find_struct_obstacle, parse_ddl, to_ddl
from lakemq.engine.client.schemas.topic_schema import compile_schema
from lakemq.engine.protocol.parameters import SchemaVersion
from lakemq.errors import IncompatibleSchema


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(type: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


def an_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


INTEGER, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
DATE, UUID = {"type": "int", "logicalType": "date"}, {"type": "string", "logicalType": "uuid"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}

CLOSED = {"additionalProperties": False}
B = an_object(b=TEXT)
XB = an_object(x=B)
A_REFERENCE = {"$ref": "#/$defs/d"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
NEVER = {"never"}

# old schema, new schema, and the compatibilities that admit the change; `none` admits all but those of NEVER
CHANGES: list[tuple[str, str, Any, Any, set[str]]] = [
    ("ddl", "add a field", "a INT", "a INT, b INT", {"backward", "forward"}),
    ("ddl", "add a required field", "a INT", "a INT, b INT NOT NULL", {"forward"}),
    ("ddl", "remove a field", "a INT, b INT", "a INT", {"backward", "forward"}),
    ("ddl", "remove a required field", "a INT, b INT NOT NULL", "a INT", {"backward"}),
    ("ddl", "let a field be missing", "a INT NOT NULL", "a INT", {"backward"}),
    ("ddl", "require a field", "a INT", "a INT NOT NULL", {"forward"}),
    ("ddl", "widen a whole number", "a TINYINT", "a BIGINT", {"backward"}),
    ("ddl", "narrow a whole number", "a BIGINT", "a INT", {"forward"}),
    ("ddl", "whole to double", "a INT", "a DOUBLE", {"backward"}),
    ("ddl", "long to double", "a BIGINT", "a DOUBLE", set()),
    ("ddl", "int to float", "a INT", "a FLOAT", set()),
    ("ddl", "short to float", "a SMALLINT", "a FLOAT", {"backward"}),
    ("ddl", "float to double", "a FLOAT", "a DOUBLE", {"backward"}),
    ("ddl", "more digits", "a DECIMAL(10,2)", "a DECIMAL(12,4)", {"backward"}),
    ("ddl", "other digits", "a DECIMAL(10,2)", "a DECIMAL(10,4)", set()),
    ("ddl", "text to number", "a STRING", "a INT", set()),
    ("ddl", "rename", "a INT, x INT NOT NULL", "a INT, y INT NOT NULL", set()),
    ("ddl", "deep inside", "a ARRAY<STRUCT<b: INT>>", "a ARRAY<STRUCT<b: BIGINT>>", {"backward"}),
    ("avro", "add with a default", record(), record(field("int", default=1)), {"backward", "forward"}),
    ("avro", "add without a default", record(), record(field("int")), {"forward"}),
    ("avro", "remove without a default", record(field("int")), record(), {"backward"}),
    ("avro", "promote", record(field("int")), record(field("double")), {"backward"}),
    ("avro", "demote", record(field("long")), record(field("int")), {"forward"}),
    ("avro", "text and bytes", record(field("string")), record(field("bytes")), {"backward", "forward"}),
    ("avro", "text to number", record(field("string")), record(field("int")), set()),
    ("avro", "into a union", record(field("int")), record(field(["null", "int"])), {"backward"}),
    ("avro", "a larger union", record(field(["null", "int"])), record(field(["null", "int", "string"])), {"backward"}),
    ("avro", "a symbol", record(field(ENUM)), record(field({**ENUM, "symbols": ["A", "B", "C"]})), {"backward"}),
    ("avro", "the name", record(), record(name="S"), set()),
    ("avro", "an alias", record(field("int")), record(field("int", "b", aliases=["a"])), {"backward"}),
    ("avro", "milliseconds to microseconds", record(field(MILLIS)), record(field(MICROS)), NEVER),
    ("avro", "a number to a time", record(field("long")), record(field(MILLIS)), NEVER),
    ("avro", "a date to a number", record(field(DATE)), record(field("long")), NEVER),
    ("avro", "text to a UUID", record(field("string")), record(field(UUID)), NEVER),
    ("avro", "text to a decimal", record(field("string")), record(field(DECIMAL)), NEVER),
    ("avro", "another scale", record(field(DECIMAL)), record(field({**DECIMAL, "scale": 1})), NEVER),
    ("avro", "an unknown logical type", record(field("int")), record(field({"type": "int", "logicalType": "age"})),
     {"backward", "forward"}),
    ("json", "add a property", an_object(a=INTEGER), an_object(a=INTEGER, b=TEXT), {"backward", "forward"}),
    ("json", "add a required one", an_object(a=INTEGER), an_object("b", a=INTEGER, b=TEXT), {"forward"}),
    ("json", "remove a required one", an_object("b", a=INTEGER, b=TEXT), an_object(a=INTEGER), {"backward"}),
    ("json", "let one be missing", an_object("a", a=INTEGER), an_object(a=INTEGER), {"backward"}),
    ("json", "widen", an_object(a=INTEGER), an_object(a=NUMBER), {"backward"}),
    ("json", "narrow", an_object(a=NUMBER), an_object(a=INTEGER), {"forward"}),
    ("json", "two types", an_object(a=INTEGER), an_object(a={"type": ["integer", "null"]}), {"backward"}),
    ("json", "loosen", an_object(a={**NUMBER, "minimum": 1}), an_object(a={**NUMBER, "minimum": 0}), {"backward"}),
    ("json", "a value more", an_object(a={"enum": [1]}), an_object(a={"enum": [1, 2]}), {"backward"}),
    ("json", "rename", an_object("a", a=TEXT), an_object("b", b=TEXT), set()),
    ("json", "deep", an_object(a={"type": "array", "items": an_object(b=INTEGER)}),
     an_object(a={"type": "array", "items": an_object(b=NUMBER)}), {"backward"}),
    ("json", "close", an_object(a=TEXT), {**an_object(a=TEXT), **CLOSED}, {"forward"}),
    ("json", "close a part", an_object(a=an_object(b=TEXT)), an_object(a={**an_object(b=TEXT), **CLOSED}), {"forward"}),
    ("json", "restrict others", an_object(a=TEXT), {**an_object(a=TEXT), "additionalProperties": TEXT}, {"forward"}),
    ("json", "extend what is closed", {**an_object(a=TEXT), **CLOSED}, {**an_object(a=TEXT, b=TEXT), **CLOSED},
     {"backward"}),
    ("json", "values of a map", {"additionalProperties": an_object(a=INTEGER)},
     {"additionalProperties": an_object(a=INTEGER, b=TEXT)}, {"backward", "forward"}),
    ("json", "add to an optional part", an_object(a={"anyOf": [an_object(b=INTEGER), {"type": "null"}]}),
     an_object(a={"anyOf": [an_object(b=INTEGER, c=TEXT), {"type": "null"}]}), {"backward", "forward"}),
    ("json", "add to one of two parts", {"oneOf": [an_object("a", a={"const": 1}), an_object("a", a={"const": 2})]},
     {"oneOf": [an_object("a", a={"const": 1}, b=TEXT), an_object("a", a={"const": 2})]}, {"backward", "forward"}),
    ("json", "read one part as the other", {"anyOf": [an_object(a=INTEGER), an_object(b=TEXT)]},
     an_object(a=INTEGER, b=TEXT), {"forward"}),
    ("json", "a part more", {"anyOf": [INTEGER, TEXT]}, {"anyOf": [INTEGER, TEXT, {"type": "null"}]}, {"backward"}),
    ("json", "add to a definition beside anyOf",
     {**an_object(a=A_REFERENCE, b={"anyOf": [TEXT, A_REFERENCE]}), "$defs": {"d": an_object(x=INTEGER)}},
     {**an_object(a=A_REFERENCE, b={"anyOf": [TEXT, A_REFERENCE]}), "$defs": {"d": an_object(x=INTEGER, y=TEXT)}},
     {"backward", "forward"}),
    ("json", "narrow what has a required name", an_object("z", a=INTEGER), an_object("z", a=TEXT), set()),
    ("json", "fewer values", an_object(a={"enum": [1, 2]}), an_object(a={"const": 1}), {"forward"}),
    ("json", "a format of draft 7", {**an_object(a=TEXT), **DRAFT_7},
     {**an_object(a={**TEXT, "format": "date"}), **DRAFT_7},
     {"backward", "forward"}),
    ("json", "annotations", an_object(a=TEXT), {**an_object(a={**TEXT, "title": "x"}), "$id": "urn:x"},
     {"backward", "forward"}),
]  # fmt: skip


def as_text(schema: Any) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def admits(type: str, old: Any, new: Any, compatibility: str) -> bool:
    return admits_after(type, [old], new, compatibility)


def admits_after(type: str, schemas: list[Any], new: Any, compatibility: str) -> bool:
    versions = [SchemaVersion(number, type, as_text(schema), 1) for number, schema in enumerate(schemas, 1)]
    try:
        check_compatibility("t", versions, SchemaRule(type, as_text(new)), compatibility)
    except IncompatibleSchema as error:
        return not (error.found and error.expected)
    return True


def test_each_change_is_admitted_as_the_page_says() -> None:
    wrong = []
    for type, change, old, new, admitted in CHANGES:
        allowed = {kind for kind in ("backward", "forward", "full", "none") if admits(type, old, new, kind)}
        both = {"full"} if {"backward", "forward"} <= admitted else set()
        expected = set() if admitted is NEVER else admitted | both | {"none"}
        if allowed != expected or not admits(type, old, old, "full"):
            wrong.append((type, change, allowed))
    assert not wrong


@pytest.mark.parametrize(
    ("type", "with_text", "without", "with_number"),
    [
        ("ddl", "a INT, b STRING", "a INT", "a INT, b INT"),
        ("json", an_object(a=INTEGER, b=TEXT), an_object(a=INTEGER), an_object(a=INTEGER, b=INTEGER)),
        ("avro", record(field("string", default="")), record(), record(field("int", default=0))),
    ],
)
def test_field_that_comes_back_with_another_type_is_refused(
    type: str, with_text: Any, without: Any, with_number: Any
) -> None:
    assert admits_after(type, [without], with_number, "backward")
    assert not admits_after(type, [with_text, without], with_number, "backward")
    assert admits_after(type, [with_text, without], with_text, "backward")
    # the newest version cannot read the first one either, so the change makes nothing worse
    assert admits_after(type, [with_text, with_number], with_number, "backward")


def test_default_that_older_values_need_stays() -> None:
    without, with_default = record(), record(field("int", default=1))
    assert admits_after("avro", [with_default], record(field("int")), "backward")
    assert not admits_after("avro", [without, with_default], record(field("int")), "backward")


def test_avro_time_never_changes_its_unit() -> None:
    """The first and the last of these schemas have the same fingerprint, so that values cannot be told apart."""
    millis, micros = record(field(MILLIS, default=0)), record(field(MICROS, default=0))
    assert not admits_after("avro", [millis, record()], micros, "backward")
    assert not admits_after("avro", [millis, record()], micros, "none")
    nullable = [record(field(["null", unit])) for unit in (MILLIS, MICROS)]
    assert not admits("avro", *nullable, "none")
    assert admits("avro", nullable[0], millis, "none")
    assert not admits("avro", record(field("long")), record(field(MILLIS), field("int", "b", default=0)), "none")
    assert admits("avro", record(field("boolean")), record(field(MILLIS)), "none")


def test_schema_in_another_language_is_incompatible() -> None:
    with pytest.raises(IncompatibleSchema, match=r"Found 'schema.type=json'. Expected schema.type=ddl"):
        check_compatibility("t", [SchemaVersion(1, "ddl", "a INT", 1)], SchemaRule("json", "{}"), "backward")


def test_refusal_names_the_innermost_place() -> None:
    deep = find_struct_obstacle(parse_ddl("a ARRAY<STRUCT<b: INT>>"), parse_ddl("a ARRAY<STRUCT<b: STRING>>"))
    assert deep is not None
    assert (deep.place, deep.written, deep.readable) == ("$.a[...].b", "string", "int")
    items = find_json_schema_obstacle(
        an_object(a={"type": "array", "items": an_object(b=INTEGER)}),
        an_object(a={"type": "array", "items": an_object(b=TEXT)}),
    )
    assert items is not None
    assert items.place == "$.a[...].b"
    for defined, place in (
        (an_object(b=INTEGER, more=A_REFERENCE), "$.a.b"),
        ({**an_object(b=TEXT, more=A_REFERENCE), "maxProperties": 1}, "$.a"),
    ):
        referring = find_json_schema_obstacle(
            {**an_object(a=A_REFERENCE), "$defs": {"d": defined}},
            {**an_object(a=A_REFERENCE), "$defs": {"d": an_object(b=TEXT, more=A_REFERENCE)}},
        )
        assert referring is not None
        assert referring.place == place
        assert referring.written != referring.readable
    nested = find_avro_obstacle(
        parse_avro(as_text(record(field(record(field("int", "b"), name="S"))))),
        parse_avro(as_text(record(field(record(field("string", "b"), name="S"))))),
    )
    assert nested is not None
    assert nested.place == "$.a.b"


def test_recursive_schemas_are_compared() -> None:
    tree = {"$ref": "#/$defs/n", "$defs": {"n": an_object(a=INTEGER, next={"$ref": "#/$defs/n"})}}
    assert admits("json", tree, tree, "full")


def test_closed_parts_of_all_of_admit_no_narrower_schema() -> None:
    """`allOf` of two closed objects would hold no value, and every schema would admit that."""
    both = {"allOf": [an_object(a=INTEGER), an_object(b=INTEGER)]}
    named = {"allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]}
    named["$defs"] = {"x": an_object(a=INTEGER), "y": an_object(b=INTEGER)}  # type: ignore[assignment]
    narrow = an_object(a={**INTEGER, "minimum": 5}, b=INTEGER)
    assert not admits("json", both, narrow, "backward")
    assert not admits("json", named, narrow, "backward")


@pytest.mark.parametrize(
    "more",
    [{"allOf": [XB]}, {"dependentSchemas": {"x": XB}}, {"if": True, "then": XB}, {"patternProperties": {"^x": B}}],
)
def test_part_described_twice_keeps_the_properties_of_both(more: dict[str, Any]) -> None:
    writer = {**an_object(x=an_object(a=INTEGER)), **more}
    reader = an_object(x=an_object(a=INTEGER, b=INTEGER))
    text = json.dumps({"x": {"b": "text"}}).encode()
    assert compile_schema(SchemaRule("json", as_text(writer))).find_misfits([text]) == {}
    assert compile_schema(SchemaRule("json", as_text(reader))).find_misfits([text]) != {}
    assert not admits("json", writer, reader, "backward")


# -- what is admitted can be read -----------------------------------------------------------------------

avro_leaves = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"])
avro_types = st.recursive(
    avro_leaves | st.just(ENUM) | st.just({**ENUM, "symbols": ["A"]}),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner.filter(lambda items: items != "null"))
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
        | st.lists(avro_leaves, min_size=1, max_size=3, unique=True)
    ),
    max_leaves=3,
)
avro_records = st.lists(
    st.tuples(st.sampled_from("abc"), avro_types, st.booleans()), max_size=3, unique_by=lambda f: f[0]
)


def to_record(fields: list[tuple[str, Any, bool]]) -> dict[str, Any]:
    named: set[str] = set()
    made = []
    for name, type, is_optional in fields:
        text = json.dumps(type)
        if '"name": "E"' in text:
            if named:
                continue
            named.add("E")
        made.append(field(["null", type], name, default=None) if is_optional and type not in ("null",) and not
                    isinstance(type, list) else field(type, name))  # fmt: skip
    return record(*made)


def draw_value(data: st.DataObject, schema: Any) -> Any:
    """Return a value of an Avro schema."""
    if isinstance(schema, list):
        return draw_value(data, data.draw(st.sampled_from(schema)))
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return draw_value(data, kind)
    if kind == "record":
        return {f["name"]: draw_value(data, f["type"]) for f in schema["fields"]}
    if kind == "array":
        return [draw_value(data, schema["items"]) for _ in range(data.draw(st.integers(0, 2)))]
    if kind == "map":
        return {"k": draw_value(data, schema["values"])}
    leaves: dict[str, Any] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=3),
        "bytes": st.text(max_size=3).map(str.encode),  # bytes that are no text cannot be read as text
        "enum": st.sampled_from(schema["symbols"] if isinstance(schema, dict) and "symbols" in schema else ["A"]),
    }
    return data.draw(leaves[kind])


def change(data: st.DataObject, fields: list[tuple[str, Any, bool]], types: Any) -> list[tuple[str, Any, bool]]:
    """Return fields of which some are those of before, some are gone, and some are others."""
    kept = [f for f in fields if data.draw(st.integers(0, 3))]
    changed = [(name, data.draw(types), required) if not data.draw(st.integers(0, 2)) else (name, type, required)
               for name, type, required in kept]  # fmt: skip
    return [*changed, ("d", data.draw(types), False)] if data.draw(st.booleans()) else changed


@pytest.mark.slow
@examples(200)
@given(avro_records, st.data())
def test_avro_values_are_read_under_every_admitted_schema(writer: Any, data: st.DataObject) -> None:
    old = to_record(writer)
    new = to_record(
        [(name, type, name == "d" or nullable) for name, type, nullable in change(data, writer, avro_types)]
    )
    assume(find_avro_obstacle(parse_avro(as_text(new)), parse_avro(as_text(old))) is None)
    before = compile_schema(SchemaRule("avro", as_text(old)))
    after = compile_schema(SchemaRule("avro", as_text(new), (as_text(old),)))
    value = before.encode(draw_value(data, old))
    assert after.find_misfits([value]) == {}
    assert fastavro.parse_schema(new)


ddl_leaves = st.sampled_from(
    ["TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BOOLEAN", "DECIMAL(4,1)", "DECIMAL(6,2)"]
)
ddl_types = st.recursive(
    ddl_leaves,
    lambda inner: (
        st.builds("ARRAY<{}>".format, inner)
        | st.builds("MAP<STRING,{}>".format, inner)
        | st.builds("STRUCT<x: {}>".format, inner)
    ),
    max_leaves=3,
)
ddl_fields = st.lists(
    st.tuples(st.sampled_from("abc"), ddl_types, st.booleans()), min_size=1, max_size=3, unique_by=lambda f: f[0]
)


def to_text(fields: list[tuple[str, Any, bool]]) -> str:
    return ", ".join(f"{name} {type}{' NOT NULL' if required else ''}" for name, type, required in fields)


def draw_json(data: st.DataObject, field: Any) -> Any:
    """Return a JSON value of an Arrow field, at the ends of its range."""
    if field.nullable and data.draw(st.booleans()):
        return None
    ddl = to_ddl(field.type)
    if ddl.startswith("struct"):
        return {f.name: draw_json(data, f) for f in field.type if not f.nullable or data.draw(st.booleans())}
    if ddl.startswith("array"):
        return [draw_json(data, field.type.value_field)]
    if ddl.startswith("map"):
        return {"k": draw_json(data, field.type.item_field)}
    ends: dict[str, list[Any]] = {"string": ["x"], "boolean": [True], "float": [0.5, 1], "double": [0.1, 2]}
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}.get(ddl)
    if bits:
        return data.draw(st.sampled_from([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]))
    return data.draw(st.sampled_from(ends.get(ddl, [999, 0.1])))


@pytest.mark.slow
@examples(200)
@given(ddl_fields, st.data())
def test_json_values_are_read_under_every_admitted_struct(fields: Any, data: st.DataObject) -> None:
    old, new = to_text(fields), to_text(change(data, fields, ddl_types) or fields)
    assume(find_struct_obstacle(parse_ddl(new), parse_ddl(old)) is None)
    before, after = compile_schema(SchemaRule("ddl", old)), compile_schema(SchemaRule("ddl", new))
    value = msgspec.json.encode(draw_json(data, before.field))
    assert before.find_misfits([value]) == {}
    assert after.find_misfits([value]) == {}
