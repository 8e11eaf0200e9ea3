"""Schemas of topics, from a connection: rows that do not fit, typed columns, versions."""

import datetime as dt
import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from targets import extended_but
from unit.served import new_name

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.rows.placing import FIRST_UNFIT, MAX_REASONS, merge_marks, reject_misfits
from lakemq.engine.client.schemas import SchemaRule
from lakemq.engine.namespace.load import load_state, read_watermark
from lakemq.errors import IncompatibleSchema, InvalidConfig, InvalidRequest, SchemaMismatch

SERVED_WITH = {"project.interval.ms": 50}

pytestmark = pytest.mark.slow

DDL = "id BIGINT NOT NULL, amount DOUBLE"
FITS, MISFIT = b'{"id": 1}', b'{"id": "secret"}'
REASON = "The value does not fit the topic's schema at $.id: found str, expected int."
NO_JSON = "The value does not fit the topic's schema: found no JSON."
AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
WIDER = {**AVRO, "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "x"}]}


def test_encode_names_row_and_field_and_gives_values_to_send(mq: Connection) -> None:
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    fields = [{"name": "id", "type": "int"}, {"name": "cents", "type": ["null", cents]}]
    topic = new_topic(mq, {"type": "record", "name": "R", "fields": fields}, schema_type="avro")
    schema = mq.topics.schema(topic)
    for row, reason in (
        ({"id": "secret"}, r"at \$.id: found str, expected int"),
        ({"id": 2**40}, r"at \$.id: found a number out of range, expected int"),
        ({"id": 1, "cents": 1.5}, r"at \$.cents: found float, expected null or decimal\(4,2\)"),
        ({"id": 1, "cent": None}, r"at \$: found fields that the schema does not declare: cent"),
        ({}, r"at \$: found no field id"),
    ):
        with pytest.raises(SchemaMismatch, match=f"Row 1 does not fit .*: {reason}") as raised:
            schema.encode([{"id": 1}, row])
        assert "secret" not in str(raised.value)
    with mq.producer() as producer:
        for value in schema.encode([{"id": 7}]):
            producer.send(topic, value)
    assert mq.fetch(topic, parse=True).to_arrow()["parsed"].to_pylist() == [{"id": 7, "cents": None}]


def new_topic(mq: Connection, schema: Any = DDL, partitions: int = 2, **settings: Any) -> str:
    name = new_name("s")
    mq.topics.create(name, partitions, {"schema": schema, **{k.replace("_", "."): v for k, v in settings.items()}})
    return name


def table(*values: bytes | None) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


def rejected(mq: Connection, source: str) -> list[dict[str, Any]]:
    query = f"""SELECT d.error, d.reason, CAST(m.value AS STRING) AS value FROM rejected_rows d JOIN messages m
        ON m.file_id = d.file_id AND m.row >= d.first_row AND m.row < d.first_row + d.record_count
        WHERE d.source = '{source}' ORDER BY d.reason, value"""
    return mq.sql(query, wait_ms=20_000).to_pylist()


# -- values that do not fit are rejected when they are published ------------------------------------------


@pytest.mark.parametrize("count", [1, 3000], ids=["lists", "file"])
def test_misfits_are_rejected_with_their_reason(mq: Connection, count: int) -> None:
    topic = new_topic(mq)
    done = mq.publish(topic, table(*[FITS] * count, MISFIT, b"{", None))
    assert (done.record_count, done.rejected_count) == (count + 1, 2)
    assert len(mq.fetch(topic)) == count + 1
    assert rejected(mq, topic) == [
        {"error": "SCHEMA_MISMATCH", "reason": REASON, "value": MISFIT.decode()},
        {"error": "SCHEMA_MISMATCH", "reason": NO_JSON, "value": "{"},
    ]


@pytest.mark.parametrize("count", [1, 3000], ids=["lists", "file"])
def test_misfit_refuses_all_rows_with_on_error_fail_and_in_a_transaction(mq: Connection, count: int) -> None:
    topic = new_topic(mq)
    rows = table(*[FITS] * count, MISFIT)
    rows = pa.concat_tables([rows, table(b"{", b"[]")])
    with pytest.raises(
        SchemaMismatch, match=rf"Nothing was published, because 3 rows .*{re.escape(REASON)} Found 'row {count}'"
    ) as refused:
        mq.publish(topic, rows, on_error="fail")
    assert "secret" not in str(refused.value)
    with pytest.raises(SchemaMismatch), mq.transaction("app") as transaction:
        transaction.publish(topic, rows)
    assert len(mq.fetch(topic)) == 0


def test_future_raises_the_misfit_of_its_own_record(mq: Connection) -> None:
    topic = new_topic(mq)
    with mq.producer(on_error="fail", linger_ms=100) as producer:
        futures = [producer.send(topic, value) for value in (FITS, MISFIT, b"[]", FITS)]
        with pytest.raises(SchemaMismatch, match="2 rows are rejected"):
            producer.flush()
    errors = [future.exception() for future in futures]
    assert errors[0] is errors[3] is None
    assert str(errors[1]) == f"SCHEMA_MISMATCH: {REASON}"
    assert "found array, expected object" in str(errors[2])


def test_destination_rejects_misfits_only_for_topics_with_the_schema(mq: Connection) -> None:
    destination = new_name("d/")
    plain, strict = new_name("s"), new_name("s")
    mq.topics.create(plain, subscriptions=[destination])
    mq.topics.create(strict, config={"schema": DDL}, subscriptions=[destination])
    assert mq.publish(destination, table(FITS, MISFIT)).rejected_count == 1
    assert [len(mq.fetch(topic)) for topic in (plain, strict)] == [2, 1]


def test_delayed_messages_are_checked_at_the_publish(mq: Connection) -> None:
    topic = new_topic(mq)
    done = mq.publish(topic, table(FITS, MISFIT), delay_ms=1)
    assert done.rejected_count == 1
    with pytest.raises(SchemaMismatch):
        mq.publish(topic, table(MISFIT), delay_ms=10_000, on_error="fail")


def test_publisher_with_an_older_schema_checks_again(mq: Connection, tmp_path: Path) -> None:
    topic = new_topic(mq, schema_compatibility="none")
    with mq.producer() as producer:
        producer.send(topic, FITS).result()
        other = type(mq)(mq.namespace)
        with other:
            other.topics.alter(topic, {"schema": "id STRING NOT NULL"})
        assert isinstance(producer.send(topic, b'{"id": "x"}').result(), object)
        with pytest.raises(SchemaMismatch):
            producer.send(topic, FITS).result()


# -- fetched values become typed columns ------------------------------------------------------------------


def test_values_are_parsed_with_the_newest_version(mq: Connection) -> None:
    topic = new_topic(mq, AVRO, 1, schema_type="avro")
    first = mq.topics.schema(topic)
    mq.publish(topic, table(*first.encode([{"a": 1}]).to_pylist()))
    mq.topics.alter(topic, {"schema": WIDER})
    newest = mq.topics.schema(topic)
    mq.publish(topic, table(*newest.encode(pa.table({"a": [2**40], "b": ["y"]})).to_pylist(), None))
    mq.publish(topic, table(*first.encode([{"a": 3}]).to_pylist()))  # a producer that was not restarted yet
    parsed = mq.fetch(topic, parse=True).to_arrow()
    assert parsed.column_names == [*mq.fetch(topic).to_arrow().column_names, "parsed"]
    expected = [{"a": 1, "b": "x"}, {"a": 2**40, "b": "y"}, None, {"a": 3, "b": "x"}]
    assert parsed.column("parsed").to_pylist() == expected
    assert first.parse(parsed.column("value")).to_pylist()[0] == {"a": 1}
    assert [piece.num_rows for piece in mq.fetch(topic, parse=True).pieces()] == [4]
    assert mq.fetch(topic, start="latest", parse=True).to_arrow().schema == parsed.schema


@pytest.mark.parametrize("type", ["ddl", "avro"])
def test_parsed_columns_are_encoded_again(mq: Connection, type: str) -> None:
    """Arrow's maps are lists of pairs in Python."""
    inner = {"type": "map", "values": {"type": "array", "items": {"type": "int", "logicalType": "date"}}}
    avro = {"type": "record", "name": "R", "fields": [{"name": "m", "type": {"type": "map", "values": inner}}]}
    schema = {"ddl": "m MAP<STRING, MAP<STRING, ARRAY<DATE>>>", "avro": avro}[type]
    opened = mq.topics.schema(new_topic(mq, schema, schema_type=type))
    parsed = opened.parse(opened.encode([{"m": {"x": {"y": [dt.date(2026, 1, 2)]}, "z": {}}}]))
    assert opened.parse(opened.encode(pa.table({"m": parsed.field("m")}))).equals(parsed)


def test_older_avro_schema_reads_values_of_newer_versions(mq: Connection) -> None:
    topic = new_topic(mq, AVRO, 1, schema_type="avro", schema_compatibility="full")
    early = mq.topics.schema(topic)
    field = {"name": "c", "type": ["null", "string"], "default": None}
    mq.topics.alter(topic, {"schema": {**AVRO, "fields": [{"name": "a", "type": "int"}, field]}})
    values = mq.topics.schema(topic).encode([{"a": 1, "c": "new"}])
    assert early.parse(values).to_pylist() == mq.topics.schema(topic, 1).parse(values).to_pylist() == [{"a": 1}]
    assert early.find_misfits(values) == {}
    (unknown,) = early.find_misfits([b"\xc3\x01" + b"\0" * 9]).values()
    assert "no version of the topic's schema" in unknown


@pytest.mark.parametrize("protocol", extended_but(["queue"], ["cooperative", "queue"]))
def test_batch_of_a_group_has_parsed_values(mq: Connection, protocol: str) -> None:
    topic = new_topic(mq)
    mq.publish(topic, table(FITS))
    with mq.consumer(topic, topics=[topic], protocol=protocol) as consumer:
        batch = consumer.poll(timeout_ms=20_000)
        assert batch.to_arrow(parse=True).select(["value", "parsed"]).to_pylist() == [
            {"value": FITS, "parsed": {"id": 1, "amount": None}}
        ]
        assert "parsed" not in batch.to_arrow().column_names


def test_value_older_than_the_schema_is_fetched_unparsed(mq: Connection) -> None:
    topic = new_name("s")
    mq.topics.create(topic)
    mq.publish(topic, table(b"plain", FITS))
    with pytest.raises(InvalidRequest, match="has no schema"):
        mq.fetch(topic, parse=True)
    with pytest.raises(InvalidRequest, match="has no schema"):
        mq.topics.schema(topic)
    mq.topics.alter(topic, {"schema": DDL})
    messages = mq.fetch(topic, parse=True).to_arrow()
    assert messages.select(["value", "parsed"]).to_pylist() == [
        {"value": b"plain", "parsed": None},
        {"value": FITS, "parsed": {"id": 1, "amount": None}},
    ]


# -- versions ---------------------------------------------------------------------------------------------


def test_schema_versions_survive_in_state_view_and_tables(mq: Connection) -> None:
    topic = new_topic(mq)
    for schema in (f"{DDL}, tags ARRAY<STRING>", f"{DDL}, tags ARRAY<STRING>", None, DDL, DDL):
        mq.topics.alter(topic, {"schema": schema})
    with pytest.raises(IncompatibleSchema):
        mq.topics.alter(topic, {"schema": "id INT NOT NULL"})
    for refused in ("frob", f"{DDL}, Tags INT, tags INT"):
        with pytest.raises(InvalidConfig):
            mq.topics.alter(topic, {"schema": refused})
    described = mq.topics.describe(topic)
    assert [(v.version, v.schema) for v in described.schemas] == [
        (1, DDL), (2, f"{DDL}, tags ARRAY<STRING>"), (3, DDL)
    ]  # fmt: skip
    assert described.config["schema"] == DDL
    view = f"SELECT version, type, schema, step, in_force FROM topic_schemas WHERE topic = '{topic}' ORDER BY version"
    rows = mq.sql(view, wait_ms=20_000).to_pylist()
    assert [(row["version"], row["in_force"]) for row in rows] == [(1, False), (2, False), (3, True)]
    assert [row["step"] for row in rows] == [version.step for version in described.schemas]
    loaded = load_state(mq.namespace.store, read_watermark(mq.namespace.store))
    assert loaded.topic(topic).schemas == tuple(described.schemas)
    mq.topics.alter(topic, {"schema": None})
    assert {row["in_force"] for row in mq.sql(view, wait_ms=20_000).to_pylist()} == {False}
    mq.topics.delete(topic)
    assert mq.sql(view, wait_ms=20_000).num_rows == 0


def test_concurrent_schema_change_is_compared_again(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(mq, "id INT")
    original = mq.topics._check_schema
    raced = threading.Event()

    def compare(name: str, changes: Any) -> Any:
        checked = original(name, changes)
        if not raced.is_set():
            raced.set()
            mq.topics.alter(topic, {"schema": "id BIGINT"})
        return checked

    monkeypatch.setattr(mq.topics, "_check_schema", compare)
    with pytest.raises(IncompatibleSchema, match="cannot read messages of version 2"):
        mq.topics.alter(topic, {"schema": "id INT, n INT"})
    assert [version.schema for version in mq.topics.describe(topic).schemas] == ["id INT", "id BIGINT"]


def test_reasons_of_misfits_are_merged_up_to_their_bound() -> None:
    schema = SchemaRule("json", json.dumps({"properties": {f"p{n}": {"type": "null"} for n in range(300)}}))
    values = [json.dumps({f"p{n}": 1}).encode() for n in range(300)]
    marked, reasons = reject_misfits(values, schema, np.array([-3, *[0] * 299], np.int32))
    assert marked[0] == -3, "a row keeps its first reason"
    assert len(reasons) == MAX_REASONS
    assert marked.min() == FIRST_UNFIT - MAX_REASONS + 1
    assert "another reason" in reasons[-1]
    other = reject_misfits([b"{", values[5], b"{}"], schema, np.zeros(3, np.int32))
    merged, together = merge_marks([other, (marked[:3], reasons)])
    assert merged.tolist() == [FIRST_UNFIT, FIRST_UNFIT - 1, 0, -3, FIRST_UNFIT - 2, FIRST_UNFIT - 3]
    assert together[:4] == (other[1][0], other[1][1], reasons[0], reasons[1])
