"""Schemas and values that cost far more than their size: each is tried in a process with little memory."""

import json
import os
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from lakemq.engine.client.schemas import SchemaRule
from lakemq.engine.client.schemas.avro import MARKER, fingerprint, parse_avro
from lakemq.engine.client.schemas.compatibility import check_compatibility, check_new_schema
from lakemq.engine.client.schemas.topic_schema import ValueSchema, compile_schema
from lakemq.engine.protocol.parameters import SchemaVersion
from lakemq.errors import IncompatibleSchema, InvalidConfig

MOST_BYTES = 600 << 20
"""Address space of a child: an import of the schemas takes a third."""
MOST_CPU_S = 30
"""A case takes less than three seconds."""


def open_schema(type: str, schema: Any, *earlier: Any) -> ValueSchema:
    return compile_schema(SchemaRule(type, json.dumps(schema), tuple(map(json.dumps, earlier))))


def refuse(type: str, text: Any, reason: str) -> None:
    text = text if isinstance(text, str) else json.dumps(text)
    with pytest.raises(InvalidConfig, match=reason):
        check_new_schema({"schema": text, "schema.type": type})
    with pytest.raises(InvalidConfig, match=reason):
        compile_schema(SchemaRule(type, text))


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": fields[field]} for field in fields]}


def refuse_records_within_themselves() -> None:
    refuse("avro", record("R", a="R"), "contains itself")
    refuse("avro", record("A", b=record("B", a=["null", "A"])), "contains itself")


def refuse_items_without_bytes() -> None:
    for items in ("null", record("E"), {"type": "fixed", "name": "F", "size": 0}, record("N", a="null", b="int")):
        refuse("avro", {"type": "array", "items": items}, "take no bytes")
    open_schema("avro", {"type": "array", "items": ["null", record("E")]})
    open_schema("avro", record("R", a="null", e=record("E")))


def refuse_doubling_parts() -> None:
    doubled: Any = record("R0", z="null")
    for level in range(1, 21):
        doubled = record(f"R{level}", x=doubled, y=f"R{level - 1}")
    refuse("avro", doubled, "too many parts")
    for keyword in ("properties", "anyOf"):
        named: dict[str, Any] = {"a0": {"type": "integer"}}
        for level in range(1, 19):
            reference = {"$ref": f"#/$defs/a{level - 1}"}
            both = {"x": reference, "y": reference}
            named[f"a{level}"] = (
                {"anyOf": [*both.values()]} if keyword == "anyOf" else {"type": "object", "properties": both}
            )
        refuse("json", {"$defs": named, "$ref": "#/$defs/a18"}, "too many parts")
        anchored = {name: {"$anchor": name, **definition} for name, definition in named.items()}
        refuse("json", json.dumps({"$defs": anchored, "$ref": "#a18"}).replace("#/$defs/", "#"), "too many parts")
        apart = {name: {"$id": name, **definition} for name, definition in named.items()}
        refuse("json", json.dumps({"$defs": apart, "$ref": "a18"}).replace("#/$defs/", ""), "an .id within itself")


def refuse_deep_schemas() -> None:
    for levels in (80, 240, 4000):
        refuse("ddl", f"a {'array<' * levels}int{'>' * levels}", "nested too deeply")
        refuse("json", '{"type":"array","items":' * levels + "true" + "}" * levels, "nested too deeply")
        refuse("avro", '{"type":"array","items":' * levels + '"int"' + "}" * levels, "nested too deeply")


def refuse_patterns_that_look_around() -> None:
    for pattern in ("^(?=a)(a|aa)+(?=c)$", r"(a)\1", "(?<!a)b"):
        refuse("json", {"patternProperties": {pattern: True}}, "no look-around")
    text = {"type": "string", "pattern": "^(a|aa)+$"}
    schema = open_schema("json", {"type": "object", "patternProperties": {"^(a|aa)+$": {"items": text}}})
    nearly = "a" * 1_000 + "b"
    assert schema.find_misfits([json.dumps({"a": [nearly] * 100, nearly: 1}).encode()])


def refuse_large_patterns() -> None:
    patterns = {f"((a{{100}}){{100}}){{9}}{number}": True for number in range(300)}
    refuse("json", {"patternProperties": patterns}, "no valid JSON Schema")


def find_long_texts_unfit_for_large_patterns() -> None:
    heavy, text = "[ab]*a[ab]{5000}c", "ab" * 50_000
    string = {"type": "string", "pattern": heavy}
    for schema, value in (
        (string, text),
        ({"not": string}, text),
        ({"anyOf": [{"type": "null"}, {"pattern": "((a{10}){10}|[()]b){50}$"}]}, text),
        ({"items": {"not": string}}, [text[:2_000]] * 50),
        ({"patternProperties": {heavy: True}}, {text: 1}),
        ({"propertyNames": {"pattern": heavy}}, {text: 1}),
    ):
        schema_ = open_schema("json", schema)
        assert "too long for the patterns" in schema_.find_misfits([json.dumps(value).encode()])[0]
    free = open_schema("json", {"properties": {"name": {"pattern": r"^\p{L}{1,50}$"}, "code": {"pattern": heavy}}})
    for fields in ({"name": "Zoë"}, {"name": "x", "code": "a" * 5_001 + "c"}):
        assert not free.find_misfits([json.dumps({"text": "ab" * 5_000_000, **fields}).encode()])
    assert free.find_misfits([json.dumps({"text": text, "code": text[:9_000]}).encode()])[0].startswith("at $.code:")
    refuse("json", {"pattern": "(?x)a # {"}, "flag x")


def refuse_to_compare_many_alternatives() -> None:
    alternatives = [[{"required": [f"p{nth}_{member}"]} for member in range(20)] for nth in range(20)]
    schema = {"allOf": [{"anyOf": branches} for branches in alternatives]}
    old = [SchemaVersion(1, "json", json.dumps(schema), 1)]
    with pytest.raises(IncompatibleSchema):
        check_compatibility("t", old, SchemaRule("json", json.dumps({**schema, "title": "new"})), "backward")


def find_long_decimals_unfit() -> None:
    decimal = {"logicalType": "decimal", "precision": 10_000, "scale": 2}
    free, fixed = {"type": "bytes", **decimal}, {"type": "fixed", "name": "F", "size": 2**21, **decimal}
    short, long = b"\x80\x40", b"\x80\x80\x80\x02"  # 4096 and 2**21, as Avro writes numbers
    for schema, begin in ((record("R", a=["null", free]), b"\2" + long), (record("R", a=fixed), b"")):
        header = MARKER + fingerprint(parse_avro(json.dumps(schema)))
        misfits = open_schema("avro", schema).find_misfits([header + begin + b"\1" * 2**21])
        assert misfits == {0: "found a decimal of more than 4096 bytes"}
    header = MARKER + fingerprint(parse_avro(json.dumps(free)))
    assert open_schema("avro", free).parse([header + short + b"\1" * 4096]).null_count == 0


def find_avro_defaults_unfit() -> None:
    item = {"type": "record", "name": "S", "fields": [{"name": "b", "type": "boolean"}]}
    added = [{"name": f"f{number}", "type": "int", "default": 1} for number in range(1000)]
    old, new = (
        {"type": "array", "items": item},
        {"type": "array", "items": {**item, "fields": [*item["fields"], *added]}},
    )
    values = [open_schema("avro", old).encode([{"b": True}] * count) for count in (100, 100_000)]
    assert list(open_schema("avro", new, old).find_misfits(values)) == [1]


def parse_wide_items_as_null() -> None:
    columns = ",".join(f"f{number}: int" for number in range(6000))
    schema = compile_schema(SchemaRule("ddl", f"a array<struct<{columns}>>"))
    for item in (b"{}", b"null"):
        values = [b'{"a":[' + (item + b",") * count + item + b"]}" for count in (10, 300_000)]
        assert [value is None for value in schema.parse(values).to_pylist()] == [False, True]


def explain_misfits_of_recursive_branches() -> None:
    schema = open_schema("json", {"properties": {"c": {"anyOf": [{"$ref": "#"}] * 3}, "z": {"type": "null"}}})
    values = [b'{"c":' * levels + b'{"z":1}' + b"}" * levels for levels in (2, 14, 100)]
    assert schema.find_misfits(values)[0].startswith("at $.c: found object, expected anyOf")
    assert "too large to say where" in schema.find_misfits(values)[2]
    branches = open_schema("json", {"anyOf": [{"items": {"type": "string"}}] * 3})
    assert branches.find_misfits([b"[" + b"1," * 500_000 + b"1]"])


CASES: list[Callable[[], None]] = [
    refuse_records_within_themselves,
    refuse_items_without_bytes,
    refuse_doubling_parts,
    refuse_deep_schemas,
    refuse_patterns_that_look_around,
    refuse_large_patterns,
    find_long_texts_unfit_for_large_patterns,
    refuse_to_compare_many_alternatives,
    find_long_decimals_unfit,
    find_avro_defaults_unfit,
    parse_wide_items_as_null,
    explain_misfits_of_recursive_branches,
]


@pytest.mark.extended
def test_costly_schemas_and_values_take_little_memory() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-2000:]


def run_case(case: Callable[[], None]) -> None:
    """Run the case in a child with little memory and time. Print its name if it fails."""
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            print(case.__name__)
        return
    for limit, most in ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CPU, MOST_CPU_S)):
        resource.setrlimit(limit, (most, most))
    try:
        case()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    for case in CASES:
        run_case(case)
