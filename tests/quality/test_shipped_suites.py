"""Great Expectations and the gate read the suites in `conf/expectations`, and agree about the demo's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from quality.test_gate_rules import find_failed_rows

import lakemq
from lakemq.engine.client.quality.gate import Gate
from lakemq.engine.client.quality.gx_context import create_ephemeral_context, import_great_expectations
from lakemq.engine.client.quality.suites import load_suite
from lakemq.jobs.demo.data import Source, load_source

pytestmark = pytest.mark.slow

FOLDER = Path(lakemq.__file__).parent / "conf/expectations"
ROWS = 20_000


@pytest.fixture(scope="module")
def source() -> Source:
    return load_source(ROWS)


def rows_refused_by_gx(topic: str, table: pa.Table) -> set[int]:
    """Validate the file's suite with Great Expectations. Return the rows that fail an expectation other than a
    warning.
    """
    gx = import_great_expectations()
    loaded: dict[str, Any] = json.loads((FOLDER / f"{topic}.json").read_text())
    context = create_ephemeral_context()
    batches = context.data_sources.add_pandas("p").add_dataframe_asset(topic).add_batch_definition_whole_dataframe("a")
    suite = context.suites.add(gx.ExpectationSuite(**loaded))
    result = batches.get_batch({"dataframe": table.to_pandas()}).validate(suite, result_format="COMPLETE")
    refused_rows: set[int] = set()
    for expectation, outcome in zip(loaded["expectations"], result.results, strict=True):
        assert not outcome.exception_info.get("raised_exception"), outcome.exception_info
        if expectation.get("severity") != "warning":
            refused_rows.update(outcome.result.get("unexpected_index_list") or ())
    return refused_rows


@pytest.mark.parametrize("topic", ["flights", "weather"])
def test_great_expectations_and_the_gate_refuse_the_same_rows(topic: str, source: Source) -> None:
    table: pa.Table = getattr(source, topic)
    broken = table.set_column(
        table.column_names.index("origin"), "origin", pa.array(["BOS"] * 3 + ["EWR"] * (ROWS - 3))
    )
    gate = Gate(topic, load_suite(FOLDER / f"{topic}.json"))
    for rows in (table, broken):
        assert set(find_failed_rows(gate, rows)) == rows_refused_by_gx(topic, rows)
    assert set(find_failed_rows(gate, broken)) - set(find_failed_rows(gate, table)) == {0, 1, 2}


def test_the_demo_publishes_every_flight(source: Source) -> None:
    assert find_failed_rows(Gate("flights", load_suite(FOLDER / "flights.json")), source.flights) == []


def test_each_file_is_named_after_its_topic() -> None:
    files = sorted(FOLDER.iterdir())
    assert [file.name for file in files] == ["flights.json", "weather.json"]
    assert [json.loads(file.read_text())["name"] for file in files] == [file.stem for file in files]
