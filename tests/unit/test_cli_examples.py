"""Each command has examples in its help, and they are read as that command. `test_cli_json.py` runs every command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lakemq.jobs.cli import app, move_global_options_first
from lakemq.jobs.commands.shared.examples import EXAMPLES

pytestmark = pytest.mark.slow


GLOBAL_OPTIONS = {"--path", "--conf", "--storage-option", "--output"}


def list_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(list_commands(typer.main.get_command(app)))


def test_help_of_each_command_shows_its_examples() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    missing = []
    for words, lines in EXAMPLES.items():
        shown = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
        missing += [line for line in lines if line not in shown.stdout]
    assert missing == []


def test_examples_are_read_as_their_commands() -> None:
    for words, line in ((words, line) for words, lines in EXAMPLES.items() for line in lines):
        name, *arguments = shlex.split(line)
        assert name == "lakemq"
        rest = move_global_options_first(arguments)
        while rest[0] in GLOBAL_OPTIONS:
            rest = rest[2:]
        own = words.split()
        assert rest[: len(own)] == own, line
        COMMANDS[words].make_context(words, rest[len(own) :])
