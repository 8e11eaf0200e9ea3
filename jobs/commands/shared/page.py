"""Generate docs/command.md from the command itself: `python -m lakemq.jobs.commands.shared.page > docs/command.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

from lakemq.jobs.cli import app
from lakemq.jobs.commands.shared.examples import EXAMPLES
from lakemq.jobs.process.exits import MEANINGS
from lakemq.jobs.process.streams import TRACE_VARIABLE

_EXIT_CODES = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())

_INTRODUCTION = f"""# The command

<!-- Written by `make docs` from jobs/cli.py and jobs/commands/; changes belong there. -->

`lakemq` works without a JVM. `lakemq --help` and `lakemq COMMAND --help` print the same text as this page.
[Kafka's tools](kafka-tools.md) lists what Kafka's tools and kcat do, and the command that does it here.

```
export LAKEMQ_PATH=data/mq
lakemq init
lakemq topics create flights --partitions 8
lakemq publish flights.csv --topic flights --key-column tailnum
lakemq fetch flights --limit 5
lakemq serve                       # in another terminal, for as long as there is work
```

Data goes to stdout, everything else to stderr. An error is one line `NAME: message`. NAME is one of the
[errors](errors.md), or `SQL_ERROR` (from DuckDB), `INPUT_ERROR` and `OUTPUT_ERROR` (stdin or stdout is closed or full),
`CONFIRMATION_REQUIRED` (see below), `INTERRUPTED` (by a signal), or `INTERNAL_ERROR` (a bug:
`{TRACE_VARIABLE}=1` prints a stack trace to report).

| exit code | meaning |
|---|---|
{_EXIT_CODES}
| 130, 143 | interrupted by SIGINT or SIGTERM, within two seconds; `serve`, and SIGINT with `--follow`, end with 0 |
| 141 | the reader closed the pipe, as `head` does. Commands that wait for messages end at once |

A command that waits more than two seconds for an answer says on stderr which sequencer is silent. If you interrupt it,
it says that the outcome is unknown: the request may still take effect.

Commands that delete something permanently ask for confirmation on stderr: `topics delete` and `delete-records`,
`groups delete` and `delete-offsets`, `delayed purge` and `cancel` by a condition, `dead-letters purge`.
`--yes` answers for you. Without it, a script (stdin is not a terminal) is refused with `CONFIRMATION_REQUIRED`, exit
code 2, and nothing changes.

`publish` and `fetch` show a progress bar with rate and time left on stderr if that is a terminal. `fetch` shows none
while its messages go to the same terminal. `doctor`, `audit`, `report` and `topics describe --keys` show there what
they do, once two seconds have passed.

`--output table` is for people: it escapes control characters and shows a key or value that is not UTF-8 as
`base64:...`. `--output json` prints one object per line, for every command except `spark-sql`. `--output csv` prints a
header and a line per record. Both put a key or value that is not UTF-8 into `key_base64` or `value_base64`, so that
nothing is lost; `lakemq publish` reads these fields back. JSON has texts where it has no number (`NaN`, a decimal with
more digits than a double). In CSV an empty field is null, and `""` is an empty text. A pipe gets no colour.

## Completion in the shell

`lakemq --install-completion` sets up completion of commands and options with the Tab key for your shell (bash, zsh,
fish). It works from the next shell on. `lakemq --show-completion` prints the script instead. To name the
shell yourself, or for the current shell only:

```sh
eval "$(_LAKEMQ_COMPLETE=source_bash lakemq)"
```"""


def command_page() -> str:
    """Return the page as Markdown."""
    root = typer.main.get_command(app)
    blocks = [_INTRODUCTION, "## Global options", *_parameters(root), "They may stand before or after the command."]
    for path, command in _commands(root, "lakemq"):
        blocks += [f"## {path}", _text(command.help), *_parameters(command), *_example_block(path)]
    return "\n\n".join(blocks) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands below a group with the words that call them, in the order of `--help`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _example_block(path: str) -> list[str]:
    lines = EXAMPLES.get(path.removeprefix("lakemq "), ())
    return ["\n".join(["```", *lines, "```"])] if lines else []


def _text(help: str | None) -> str:
    return inspect.cleandoc(help or "").replace("*", "\\*")


def _parameters(command: Any) -> list[str]:
    rows = [_row(p) for p in command.params if "--help" not in p.opts]
    if not rows:
        return []
    return ["\n".join(["| option | default | meaning |", "|---|---|---|", *rows])]


def _row(parameter: Any) -> str:
    kind = parameter.param_type_name
    names = [*parameter.opts, *parameter.secondary_opts] if kind == "option" else [parameter.metavar or parameter.name]
    takes = "" if kind == "argument" or _is_flag(parameter) else f" {_metavar(parameter)}"
    shown = ", ".join(f"`{name}{takes}`" for name in names).replace("|", "\\|")
    meaning = (parameter.help or "").replace("|", "\\|")
    variable = f" Also `${parameter.envvar}`." if parameter.envvar else ""
    return f"| {shown} | {_default(parameter)} | {meaning}{variable} |"


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
