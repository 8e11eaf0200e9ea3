"""What docs/delays.md shows runs as it stands and prints what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakemq.jobs.cli import app

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs/delays.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return found


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    code = "\n".join([block("python"), "mq.close()"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("text")
    _, *arguments = shlex.split(block("sh"))
    shown = CliRunner().invoke(app, [str(tmp_path / one) if one == "data/shop" else one for one in arguments])
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[1].split() == ["unpaid", "waiting", "1"]
