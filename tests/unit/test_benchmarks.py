"""Benchmarks that take little processor time run to their end. `--quick` changes only sizes, times and repetitions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUPS = ("schemas", "take-over")


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", GROUPS)
def test_a_quick_benchmark_measures_something(tmp_path: Path, group: str) -> None:
    figures_file = tmp_path / "figures.json"
    command = [sys.executable, "tests/bench/run.py", group, "--quick", "--json", str(figures_file)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=500)
    figures = json.loads(figures_file.read_text())["figures"]
    assert figures
    assert all(isinstance(figure["value"], int | float) for figure in figures)
