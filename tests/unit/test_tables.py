"""The tables: each is declared once and completely, and everything else follows from the declaration."""

import dataclasses
import json
import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemq.engine.client.sql.query import _MACROS
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import BODY_SCHEMA, MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import INT64, TIME, VERSION_PROPERTY
from lakemq.tables.specs.topics import PARTITIONS, SEGMENT_SCHEMA, SEGMENT_STRUCT, SegmentRow
from lakemq.tables.storage.delta.catalog import catalog_sql, columns_ddl, database_name
from lakemq.tables.storage.delta.store import Store, select_newest
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.tables.views import VIEW_COLUMNS, VIEWS

# -- every table ----------------------------------------------------------------------------------------


def test_table_and_each_column_have_a_comment() -> None:
    for spec in TABLES:
        assert spec.comment.endswith((".", "processes.")), spec.name
        assert all(field.metadata[b"comment"].decode().endswith(".") for field in spec.schema), spec.name


def test_keys_and_order_name_columns_without_nulls() -> None:
    for spec in TABLES:
        assert {*spec.keys, *spec.sort_by} <= set(spec.schema.names), spec.name
        assert spec.keys or spec.name == "inbox"
        assert not any(spec.schema.field(key).nullable for key in (*spec.keys, *spec.sort_by)), spec.name


def test_table_that_the_engine_writes_begins_with_the_step() -> None:
    for spec in TABLES:
        if spec.shape == "data":
            assert "step" not in spec.schema.names or "step" in spec.partitioned_by
        else:
            assert (spec.schema.names[0], spec.schema.field("step").type) == ("step", INT64), spec.name


def test_times_are_timestamps_or_have_their_unit_in_the_name() -> None:
    for spec in TABLES:
        for field in spec.schema:
            if pa.types.is_timestamp(field.type):
                assert field.type == TIME
            elif field.name.endswith("_ms"):
                assert field.type in (INT64, pa.list_(INT64)), field.name


def test_rows_become_a_table_of_the_stored_schema() -> None:
    for spec in TABLES:
        table = spec.table([spec.row(**{field.name: None for field in dataclasses.fields(spec.row)})])
        assert (table.schema, table.num_rows) == (spec.stored_schema, 1), spec.name
        assert spec.table([]).schema == spec.empty().schema == spec.stored_schema
        optional = [field.name for field in dataclasses.fields(spec.row) if field.default is None]
        assert optional == [field.name for field in spec.schema if field.nullable], spec.name


def test_delta_stores_columns_comment_and_version(tmp_path: Path) -> None:
    store = Store(LocalFiles(str(tmp_path)))
    for spec in (JOURNAL, PARTITIONS):
        store.create(spec)
        table = DeltaTable(store.uri(spec))
        assert pa.schema(table.schema()) == spec.stored_schema
        metadata = table.metadata()
        assert (metadata.name, metadata.description, metadata.partition_columns) == (spec.name, spec.comment, [])
        assert metadata.configuration == spec.configuration
        assert VERSION_PROPERTY in metadata.configuration


# -- types and rows -------------------------------------------------------------------------------------


def test_every_column_has_its_ddl() -> None:
    for spec in TABLES:
        listed = columns_ddl(spec.stored_schema).split(", ")
        assert [line.split("`")[1] for line in listed] == spec.schema.names


def test_schema_of_a_segment_has_the_columns_of_segments_but_step() -> None:
    assert SEGMENT_SCHEMA.names == [field.name for field in dataclasses.fields(SegmentRow) if field.name != "step"]
    assert pa.struct(list(SEGMENT_SCHEMA)) == SEGMENT_STRUCT
    assert JOURNAL.schema.field("segments").type == pa.list_(SEGMENT_STRUCT)
    assert ["file_id", "row", *BODY_SCHEMA.names] == MESSAGES.schema.names


# -- changelogs ---------------------------------------------------------------------------------------------


def rows(*values: tuple[int, str, int, str]) -> pa.Table:
    return pa.table({name: [v[i] for v in values] for i, name in enumerate(("step", "k", "n", "value"))})


def test_select_newest_returns_the_newest_row_of_each_key() -> None:
    table = rows((3, "a", 1, "a3"), (1, "a", 1, "a1"), (2, "b", 1, "b2"), (1, "a", 2, "c1"), (2, "a", 1, "a2"))
    assert select_newest(table, ["k", "n"]).column("value").to_pylist() == ["c1", "b2", "a3"]


# -- the catalog --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/mq", "mq"),
        ("s3://bucket/Some-Where.2/", "some_where_2"),
        ("/x/2024", "mq_2024"),
        ("/x/'; DROP--", "drop"),
        ("/x/___", "mq"),
    ],
)
def test_a_database_is_named_after_the_namespace(path: str, name: str) -> None:
    assert database_name(path) == name


def test_the_catalog_names_every_table_and_quotes_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    sql = catalog_sql(str(folder), Store(LocalFiles(str(folder))))
    for spec in TABLES:
        assert f"`it_s`.{spec.name} USING delta LOCATION '" in sql
    assert "it\\'s" in sql
    assert sql.rstrip().endswith("USE `it_s`;")
    assert json.dumps(sql)


def test_the_declared_columns_of_views_are_those_of_their_queries() -> None:
    declared = {view: re.findall(r"(?:^|, )`?(\w+)`? ", columns) for view, columns in VIEW_COLUMNS.items()}
    with duckdb.connect(":memory:") as connection:
        for macro in _MACROS:
            connection.execute(macro)
        for spec in TABLES:
            connection.from_arrow(spec.empty()).create_view(spec.name)
        for view, query in VIEWS.items():
            rows = connection.execute(query.format(database="main"))
            assert [name for name, *_ in rows.description or ()] == declared[view], view
