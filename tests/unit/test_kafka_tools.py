"""The table beside Kafka's tools names commands and options that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from lakemq.jobs.cli import app

PAGE = Path(__file__).parents[2] / "docs/kafka-tools.md"


def read_rows() -> list[tuple[str, str, str]]:
    """Return (tool, what it does there, the command here) for each row of the page."""
    rows = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        tool, *lines = section.splitlines()
        cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
        assert [cell.strip() for cell in cells[0]] == [tool, "lakemq"]
        rows += [(tool, theirs.strip(), ours.strip()) for theirs, ours in cells[2:]]
    return rows


ROWS = read_rows()
COMMANDS = [(tool, span) for tool, _, ours in ROWS for span in re.findall(r"`(lakemq [^`]*)`", ours)]


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "line"), COMMANDS)
def test_each_command_of_the_table_exists_with_its_options(tool: str, line: str) -> None:
    command, words = _find_command(line.split()[1:])
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    options |= {name for parameter in typer.main.get_command(app).params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def _find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that the first words name, and the other words."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("--"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_each_row_has_a_command_or_a_reason() -> None:
    assert len({(tool, theirs) for tool, theirs, _ in ROWS}) == len(ROWS) > 90
    for tool, theirs, ours in ROWS:
        assert "`lakemq" in ours or ours.startswith("None"), (tool, theirs)
