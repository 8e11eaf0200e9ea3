"""The table beside Kafka's tools names commands and options that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from lakemq.jobs.cli import app
from lakemq.jobs.commands.shared.kafka_tools import KAFKA_TOOLS, kafka_tools_section

COMMANDS = [
    (tool, span)
    for tool, rows in KAFKA_TOOLS.items()
    for _, ours in rows
    for span in re.findall(r"`(lakemq [^`]*)`", ours)
]


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
    for tool, rows in KAFKA_TOOLS.items():
        assert len({theirs for theirs, _ in rows}) == len(rows), f"{tool} has a row twice"
        for theirs, ours in rows:
            assert "`lakemq" in ours or ours.startswith("None"), (tool, theirs)


def test_the_section_has_a_line_per_row() -> None:
    lines = [line for line in kafka_tools_section().splitlines() if line.startswith("| ")]
    assert len(lines) == sum(len(rows) + 1 for rows in KAFKA_TOOLS.values())
