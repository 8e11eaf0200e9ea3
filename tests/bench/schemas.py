"""Values of four fields, checked and parsed by a schema of each language."""

import json
from collections.abc import Iterator

from figures import Figure, measure_in_turn

from lakemq.engine.client.schemas import SchemaRule
from lakemq.engine.client.schemas.topic_schema import ValueSchema, compile_schema

DDL = "id BIGINT NOT NULL, customer STRING, amount DOUBLE, paid BOOLEAN"
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string"},
        "amount": {"type": "number"},
        "paid": {"type": "boolean"},
    },
    "required": ["id"],
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "paid", "type": "boolean"},
    ],
}

TARGETS = {"ddl": (1_250_000, 285_000), "json": (550_000, 175_000), "avro": (150_000, 110_000)}
"""Language -> least values per second that are checked and parsed: half of the figures in docs/schemas.md."""


def run(count: int, rounds: int) -> Iterator[Figure]:
    for language, text in (("ddl", DDL), ("json", json.dumps(JSON_SCHEMA)), ("avro", json.dumps(AVRO))):
        yield from _measure(compile_schema(SchemaRule(language, text)), language, count, rounds)


def _measure(schema: ValueSchema, language: str, count: int, rounds: int) -> Iterator[Figure]:
    values = [
        schema.encode({"id": n, "customer": f"customer {n % 1000}", "amount": n / 8, "paid": n % 2 == 0})
        for n in range(count)
    ]
    assert schema.find_misfits(values) == {}
    assert schema.parse(values).null_count == 0
    durations_s = measure_in_turn([lambda: schema.find_misfits(values), lambda: schema.parse(values)], rounds)
    for activity, times_s, target in zip(("check", "parse"), durations_s, TARGETS[language], strict=True):
        note = f"values of four fields, one core, best of {rounds}"
        yield Figure(f"schema {language}, {activity}", count / min(times_s), "values/s", target, ">=", note)
