"""A command starts quickly: it loads nothing heavy that it has no use for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lakemq

pytestmark = pytest.mark.slow


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from typer.testing import CliRunner
from lakemq.jobs.cli import app
assert "doctor" in CliRunner().invoke(app, ["--help"]).stdout
heavy = {"pyarrow", "numpy", "pandas", "deltalake", "duckdb", "pyspark", "msgspec", "yaml"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_command_loads_no_engine_and_no_pandas(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    lakemq.connect(path, create=True).close()
    done = subprocess.run([sys.executable, "-c", _COMMAND, path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["[]", "int64 (1, 1)"], "and who wants pandas later has it"
