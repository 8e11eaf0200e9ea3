"""docs/command.md is what the command says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lakemq
from lakemq.jobs.commands.shared.page import command_page

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/command.md"


def test_the_page_is_up_to_date() -> None:
    command = "python -m lakemq.jobs.commands.shared.page > docs/command.md"
    assert PAGE.read_text() == command_page(), f"run: {command}"


def test_every_command_and_option_is_explained() -> None:
    for line in command_page().splitlines():
        if line.startswith("| `"):
            assert not line.endswith("|  |"), line


def test_help_is_there_at_once_and_loads_nothing_heavy() -> None:
    code = """
import sys
from typer.testing import CliRunner
from lakemq.jobs.cli import app
assert "doctor" in CliRunner().invoke(app, ["--help"]).stdout
heavy = {"pyarrow", "numpy", "pandas", "deltalake", "duckdb", "pyspark", "msgspec", "yaml"} & set(sys.modules)
assert not heavy, heavy
"""
    done, help_s = run_measured(code)
    assert (done.returncode, done.stderr) == (0, "")
    # most of it is the library that lays out the page; a busy machine makes both slower
    _, layout_s = run_measured("import typer.main, typer.testing, typer.rich_utils, rich.markdown")
    assert help_s < 2.5 * layout_s


def run_measured(code: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the code in a Python of its own; also return the seconds of processor time that it took."""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    after = os.times()
    return done, after.children_user - before.children_user + after.children_system - before.children_system


def test_there_is_no_colour_in_a_pipe() -> None:
    command = [sys.executable, "-m", "lakemq.jobs.cli", "doctor", "--no-spark"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("check")
    assert "\x1b" not in done.stdout + done.stderr


_COMMAND = """
import sys
from lakemq.jobs.cli import main
try:
    main(["--path", sys.argv[1], "topics", "list"])
except SystemExit as end:
    assert not end.code, end
print(sorted({"pandas", "pyspark", "duckdb", "lakemq.engine.sequencer.sequencer"} & set(sys.modules)))
import pandas, pyarrow
print(pyarrow.array(pandas.Series([1, 2], dtype="Int64")).type, pyarrow.table({"a": [1]}).to_pandas().shape)
"""


def test_a_command_loads_nothing_heavy_that_it_has_no_use_for(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    lakemq.connect(path, create=True).close()
    done = subprocess.run([sys.executable, "-c", _COMMAND, path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["[]", "int64 (1, 1)"], "and who wants pandas later has it"
