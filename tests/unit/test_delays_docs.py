"""The examples of docs/delays.md and docs/ttl.md run as they stand and print what the pages say."""

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

DOCS = Path(__file__).parents[2] / "docs"


def read_block(page: str, language: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return code


@pytest.mark.parametrize(
    ("page", "shown"),
    [("delays.md", [["unpaid", "waiting", "1"]]), ("ttl.md", [["0", "false"], ["1", "true"], ["2", "false"]])],
)
def test_the_example_prints_what_the_page_says(tmp_path: Path, page: str, shown: list[list[str]]) -> None:
    code = "\n".join([read_block(page, "python"), "mq.close()"])
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == read_block(page, "text")
    _, *arguments = shlex.split(read_block(page, "sh"))
    result = CliRunner().invoke(
        app, [str(tmp_path / argument) if argument == "data/shop" else argument for argument in arguments]
    )
    assert result.exit_code == 0, result.stderr
    assert [line.lower().split() for line in result.stdout.splitlines()[1:]] == shown
