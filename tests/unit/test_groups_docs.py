"""What docs/groups.md shows runs as it stands and prints what the page says."""

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

PAGE = (Path(__file__).parents[2] / "docs/groups.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the example has run; its output is in `out.txt`."""
    folder = tmp_path_factory.mktemp("groups")
    code = "\n".join([block("python"), "mq.close()"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "out.txt").write_text(done.stdout)
    return folder


def test_the_example_prints_what_the_page_says(folder: Path) -> None:
    assert (folder / "out.txt").read_text() == block("text")


def test_the_commands_show_the_group(folder: Path) -> None:
    said = {}
    for line in block("sh").splitlines():
        name, *arguments = shlex.split(line)
        assert name == "lakemq"
        result = CliRunner().invoke(app, [str(folder / one) if "/" in one else one for one in arguments])
        assert result.exit_code == 0, (line, result.stderr)
        said[arguments[3] if arguments[2] == "groups" else arguments[2]] = result.stdout.splitlines()
    assert [line.split() for line in said["list"][1:]] == [["map", "Empty"]]
    assert said["describe"][1].split()[:3] == ["map", "Empty", "cooperative"]
    assert said["members"][1:] == []
    assert [line.split()[:4] for line in said["assignments"][1:]] == [
        ["map", "positions", str(partition), "unassigned"] for partition in range(4)
    ]
    assert sum(int(line.split()[6]) for line in said["lag"][1:]) == 0
    assert said["sql"][1].split() == ["unassigned", "4"]
