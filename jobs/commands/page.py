"""docs/command.md, from the command itself: `python -m lakemq.jobs.commands.page > docs/command.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

from lakemq.jobs.cli import app
from lakemq.jobs.exits import MEANINGS
from lakemq.jobs.logs import TRACE_VARIABLE

_EXIT_CODES = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())

_INTRODUCTION = f"""# The command

<!-- Written by `make docs` from jobs/cli.py and jobs/commands/; changes belong there. -->

`lakemq` works without a JVM. `lakemq --help` and `lakemq COMMAND --help` say what follows.

```
export LAKEMQ_PATH=data/mq
lakemq init
lakemq topics create flights --partitions 8
lakemq publish flights.csv --topic flights --key-column tailnum
lakemq fetch flights --limit 5
lakemq serve                       # in another terminal, for as long as there is work
```

Data goes to stdout, all else to stderr; what is refused or fails is one line `NAME: message`. NAME is one of the
[errors](errors.md), or `SQL_ERROR` (DuckDB's), or `INTERRUPTED` (by a signal), or `INTERNAL_ERROR` (a bug: with
`{TRACE_VARIABLE}=1` there is a stack trace to report).

| exit code | what it says |
|---|---|
{_EXIT_CODES}
| 130, 143 | interrupted by SIGINT or SIGTERM, within two seconds; `serve` finishes its step and ends with 0 |
| 141 | whoever read the output had enough, as in a pipe into `head` |

A command that waits for an answer for more than two seconds says on stderr for whom. One that is interrupted meanwhile
says so, and that the outcome is unknown: what it asked for may still be decided.

`--output table` is for eyes: control characters are shown escaped, and a key or value that is not UTF-8 as
`base64:...`. `--output json` prints one object a line, `--output csv` a header and a line per record. In both, what is
not UTF-8 stands in `key_base64` or `value_base64` instead of `key` or `value`, so that nothing is lost, and
`lakemq publish` reads it back. What JSON has no number for (`NaN`, a decimal with more digits
than a double) is text in it. In CSV nothing at all is null, and `""` is an empty text. A pipe gets no colour."""


def command_page() -> str:
    """The page as Markdown."""
    root = typer.main.get_command(app)
    blocks = [_INTRODUCTION, "## Global options", *_parameters(root), "They may stand before or behind the command."]
    for path, command in _commands(root, "lakemq"):
        blocks += [f"## {path}", _text(command.help), *_parameters(command)]
    return "\n\n".join(blocks) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All commands below a group with the words that call them, in the order of `--help`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _text(help: str | None) -> str:
    return inspect.cleandoc(help or "").replace("*", "\\*")


def _parameters(command: Any) -> list[str]:
    rows = [_row(p) for p in command.params if "--help" not in p.opts]
    if not rows:
        return []
    return ["\n".join(["| option | default | what |", "|---|---|---|", *rows])]


def _row(parameter: Any) -> str:
    kind = parameter.param_type_name
    names = [*parameter.opts, *parameter.secondary_opts] if kind == "option" else [parameter.metavar or parameter.name]
    takes = "" if kind == "argument" or _is_flag(parameter) else f" {_metavar(parameter)}"
    shown = ", ".join(f"`{name}{takes}`" for name in names).replace("|", "\\|")
    what = (parameter.help or "").replace("|", "\\|")
    variable = f" Also `${parameter.envvar}`." if parameter.envvar else ""
    return f"| {shown} | {_default(parameter)} | {what}{variable} |"


def _is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def _metavar(parameter: Any) -> str:
    if isinstance(parameter.default, Enum):
        return "|".join(str(choice.value) for choice in type(parameter.default))
    return str(parameter.metavar or parameter.name.upper())


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or callable(default) or isinstance(default, list | tuple):
        return ""
    if default is True:
        return f"`{parameter.opts[0]}`"
    return f"`{default.value if isinstance(default, Enum) else default}`"


if __name__ == "__main__":
    sys.stdout.write(command_page())
