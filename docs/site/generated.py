"""Generate the pages of docs/ that follow from the code: the command, tables, settings, errors, states.

    python docs/site/generated.py            write them
    python docs/site/generated.py --check    exit with 1 if one is stale

Each page is a function that returns its text. tests/unit/test_docs.py fails if a stored page differs.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from lakemq.engine.client.consume.options import CONSUMER, PROTOCOLS, ConsumerOption
from lakemq.engine.client.producer.options import PRODUCER
from lakemq.engine.client.producer.producer import Producer
from lakemq.engine.client.transactions.state import PHASE_TRANSITIONS
from lakemq.engine.namespace.config import ENGINE
from lakemq.engine.protocol.parameters import GROUP, MEMBER, TOPIC, Parameter
from lakemq.engine.protocol.unsupported_settings import REPLACEMENTS, UNSUPPORTED
from lakemq.engine.protocol.values.assignments import PARTITION_TRANSITIONS
from lakemq.engine.protocol.values.base import Transitions
from lakemq.engine.protocol.values.dead_letters import REDRIVE_TRANSITIONS
from lakemq.engine.protocol.values.delays import DELAY_TRANSITIONS
from lakemq.engine.protocol.values.deliveries import DELIVERY_TRANSITIONS
from lakemq.engine.protocol.values.schedules import SCHEDULE_TRANSITIONS
from lakemq.engine.protocol.values.topics import LOG_TRANSITIONS
from lakemq.engine.protocol.values.transactions import TRANSACTION_TRANSITIONS
from lakemq.errors import LakeMQError, all_errors
from lakemq.jobs.cli import app
from lakemq.jobs.commands.shared.examples import EXAMPLES
from lakemq.jobs.output import format_setting
from lakemq.jobs.process.exits import MEANINGS
from lakemq.jobs.process.streams import TRACE_VARIABLE
from lakemq.tables.specs.groups import LIVE_TABLES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.catalog import ddl_type
from lakemq.tables.views import VIEWS

FOLDER = Path(__file__).resolve().parents[1]

_GENERATED = "<!-- Written by `make docs` from {source}; change it there. -->"

_SHAPES = {
    "log": "log: each row is a fact, written once",
    "changelog": "changelog: the newest row of a key is its state",
    "data": "data",
    "live": "live: read with each query",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python docs/site/generated.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a page is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the pages (%(default)s)")
    options = parser.parse_args(arguments)
    stale = stale_pages(options.folder)
    for name in stale:
        if not options.check:
            (options.folder / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"{options.folder / name}: {'stale, run: make docs' if options.check else 'written'}")
    return 1 if options.check and stale else 0


def stale_pages(folder: Path) -> list[str]:
    """Return the names of the pages in `folder` that are missing or differ from the code."""
    stored = {name: folder / name for name in PAGES}
    return [
        name for name, path in stored.items() if not path.exists() or path.read_text(encoding="utf-8") != PAGES[name]()
    ]


def tables_page() -> str:
    """Return the page of all tables with their columns, and of the views."""
    lines = [
        "# Tables",
        _GENERATED.format(source="tables/"),
        "Each table is a Delta table in a folder of its name under the namespace. Times are UTC. A column that ends in "
        "`_ms` holds milliseconds since 1970. `step` is the sequencer's step that decided the row.",
        "In a *changelog*, the row of a key with the highest `step` is its state. The sequencer decides in `journal`; "
        "the other tables follow about a second later. Only the sequencer writes tables; only `inbox` is yours.",
        "\n".join(f"- [`{spec.name}`](#{spec.name}): {spec.comment}" for spec in TABLES),
    ]
    for spec in TABLES:
        lines += _table_section(spec)
    lines += [
        "## Live tables",
        "Only `lakemq sql`, `mq.sql` and the console's SQL have these, for now: nothing is stored. "
        "[SQL](sql.md#live-tables) says more.",
    ]
    for spec in LIVE_TABLES:
        lines += _table_section(spec)
    lines += ["## Views", "In Spark's catalog and in `lakemq sql`. `{database}` is the namespace's database."]
    for name, query in VIEWS.items():
        lines += [f"### `{name}`", f"```sql\n{query}\n```"]
    return _join_blocks(lines)


def _table_section(spec: TableSpec) -> list[str]:
    about = [_SHAPES[spec.shape]]
    if spec.keys:
        about.append("key " + ", ".join(f"`{key}`" for key in spec.keys))
    rows = [
        (f"`{f.name}`", f"`{ddl_type(f.type)}`", "yes" if f.nullable else "", f.metadata[b"comment"].decode())
        for f in spec.schema
    ]
    return [
        f"## {spec.name}",
        spec.comment,
        "; ".join(about) + ".",
        _table(("column", "type", "null", "meaning"), rows),
    ]


def settings_page() -> str:
    """Return the page of all settings with defaults and ranges, and of the options of producers and consumers."""
    return _join_blocks(
        [
            "# Settings",
            _GENERATED.format(
                source="engine/namespace/config.py, engine/protocol/parameters.py, engine/client/producer/options.py "
                "and engine/client/consume/options.py"
            ),
            "A setting that is unknown, of the wrong type or out of range is refused with `INVALID_CONFIG`, which "
            "names it. A key that occurs twice in a file is refused, too.",
            "## Engine",
            "From the YAML file named by `lakemq --conf FILE`, `lakemq.connect(path, conf=FILE)` or `$LAKEMQ_CONF`; "
            "`lakemq.connect(path, config={...})` wins over it. `conf/lakemq.yaml` lists the defaults. Each process "
            "uses its own settings; for settings of the sequencer, those of the process that leads count.",
            _settings(ENGINE.declared),
            "## Defaults of a namespace",
            "The same file may set every setting of [topics](#topics) and [groups](#groups), and these options of "
            "[consumers](#consumers). They are the defaults of your namespace.",
            _settings(MEMBER.declared),
            "The sequencer that leads stores these defaults with a topic or group when it is created. A later change "
            "of the defaults does not affect existing topics and groups. A setting that you reset takes the default of "
            "the sequencer that leads at that time. `describe` shows a stored default as set. Dead-letter topics that "
            "LakeMQ creates have the built-in defaults. Defaults of consumers come from the settings of the process "
            "that creates the consumer; so does `group.protocol` if the first member creates the group. "
            "[Decision 36](adr/0036-defaults-are-stored.md).",
            "## Topics",
            "Per topic: `mq.topics.create(topic, config={...})`, `mq.topics.alter(topic, config={...})`, where `None` "
            "resets one.",
            _settings(TOPIC.declared),
            "## Groups",
            "Per group: `mq.groups.create(group, config={...})`, `mq.groups.alter(group, config={...})`, where `None` "
            "resets one. The first [consumer](groups.md) of a group sets those that are its keywords.",
            _settings(GROUP.declared),
            "## Kafka's settings that are refused",
            "These have no meaning here. Setting one for the engine or a topic is refused, with the reason. `ssl.*` "
            "stands for all names that begin with `ssl.`.",
            _table(("settings", "why"), _not_ours()),
            "## Settings of Kafka and Solace under other names",
            "These are refused where they do not belong. The error names what LakeMQ has instead. Options of "
            "`mq.producer` and `mq.consumer` may be spelled as in Kafka: `linger.ms` is `linger_ms`.",
            _table(("setting", "here"), [(f"`{name}`", replacement) for name, replacement in REPLACEMENTS.items()]),
            "## Producers",
            inspect.cleandoc(Producer.__doc__ or "").partition("\n\nExample:")[0],
            "Options of `mq.producer(...)`, in Kafka's words:",
            _settings(PRODUCER.declared),
            "`idempotent`, or `enable_idempotence`, is `True` by default: a producer repeats a request whose answer "
            "was lost, and nothing is published twice. `False` is refused for a producer with a transactional id.",
            "## Consumers",
            "Keywords of `mq.consumer(group, ...)`. Give one of `topics`, `pattern` and `assign`. *For* lists the "
            "[protocols](groups.md) that take an option; `assign` stands for a consumer whose partitions you assign. "
            "How long the partitions of a killed consumer stand still is [explained here]"
            "(groups-reference.md#when-a-consumer-is-killed).",
            _table(("option", "default", "values", "for", "meaning"), _consumer_options()),
        ]
    )


def _consumer_options() -> list[tuple[str, ...]]:
    return [
        (
            f"`{option.name}`",
            "" if option.default is None else f"`{option.default}`",
            option.expected,
            _applies(option),
            option.meaning,
        )
        for option in CONSUMER.values()
    ]


def _applies(option: ConsumerOption) -> str:
    if set(option.applies) == {*PROTOCOLS, "assign"}:
        return "all"
    return "members" if option.applies == PROTOCOLS else ", ".join(option.applies)


def _not_ours() -> list[tuple[str, str]]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in UNSUPPORTED.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    return [(", ".join(names), reason) for reason, names in by_reason.items()]


def _settings(declared: Mapping[str, Parameter]) -> str:
    rows = [(f"`{p.name}`", _code(_default(p)), _range(p), p.meaning) for p in declared.values()]
    return _table(("setting", "default", "range", "what"), rows)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _default(parameter: Parameter) -> str:
    """Return the range or the kind of values that a parameter takes."""
    return format_setting(parameter.default)


def _range(parameter: Parameter) -> str:
    if parameter.choices:
        return ", ".join(f"`{choice}`" for choice in parameter.choices)
    if isinstance(parameter.default, bool | str):
        return parameter.expected
    return f"{parameter.low} to {parameter.high}"


def errors_page() -> str:
    """Return the page of all errors by name."""
    rows = [
        (f"`{e.name}`", "" if e.code is None else str(e.code), f"`{e.__name__}`", *_meaning(e)) for e in all_errors()
    ]
    return _join_blocks(
        [
            "# Errors",
            _GENERATED.format(source="engine/protocol/errors.py"),
            "Each error is a class of `lakemq.errors`, a subclass of `LakeMQError`. Names and codes are Kafka's where "
            "Kafka has the error. The text says what was found and what was expected. A refused request changes "
            "nothing. *Retry*: the same call may succeed later.",
            "On the command line an error is one line `NAME: message` on stderr, and an [exit code](command.md).",
            _table(("name", "code", "class", "meaning", "retry"), rows),
        ]
    )


def states_page() -> str:
    """Return the page of states and their transitions."""
    return _join_blocks(
        [
            "# States",
            _GENERATED.format(
                source="the tables of transitions in engine/protocol/values and engine/client/transactions"
            ),
            "Each arrow has the name of the event that changes the state. There are no other moves. If LakeMQ finds "
            "one all the same, it logs a defect and goes on.",
            *_states(
                TRANSACTION_TRANSITIONS,
                "Each transition is a row of [`transactions`](tables.md#transactions). Dead is an id that does "
                "not exist: never used, or expired.",
            ),
            *_states(
                PHASE_TRANSITIONS,
                "No table has them. A call that does not fit the phase is refused with `ILLEGAL_STATE`.",
            ),
            *_states(LOG_TRANSITIONS, "They are in [`partitions`](tables.md#partitions)."),
            *_states(
                PARTITION_TRANSITIONS,
                "They are in [`assignments`](tables.md#assignments). In the state `paused`, the owner must give the "
                "partition up: in Kafka, it is being revoked. `consumer.pause` is something else, and changes no "
                "state.",
            ),
            *_states(
                DELIVERY_TRANSITIONS,
                "They are in [`consumer_offsets`](tables.md#consumer_offsets). Messages that are deleted leave from "
                "any state.",
            ),
            *_states(
                REDRIVE_TRANSITIONS,
                "A dead letter has three of them, as a message of the dead-letter topic. Here `dying` means that it "
                "goes back to the topic it came from. They are in [`partitions`](tables.md#partitions).",
            ),
            *_states(
                DELAY_TRANSITIONS,
                "They are in [`delayed`](tables.md#delayed). A range is some rows of one data file that wait for the "
                "same partition.",
            ),
            *_states(SCHEDULE_TRANSITIONS, "They are in [`schedules`](tables.md#schedules)."),
        ]
    )


def _states(transitions: Transitions[Any, Any], more: str) -> list[str]:
    states = type(transitions.starts[0])
    arrows = [("[*]", state.value, "") for state in transitions.starts]
    arrows += [
        (before.value, after.value, f" : {event.value}")
        for before in states
        for event, (allowed, after) in transitions.table.items()
        if before in allowed
    ]
    states_with_exit = {before for before, _, _ in arrows}
    arrows += [
        (after, "[*]", "") for after in dict.fromkeys(after for _, after, _ in arrows) if after not in states_with_exit
    ]
    lines = [f"    {before} --> {after}{label}" for before, after, label in arrows]
    return [
        f"## {transitions.subject}",
        f"{inspect.getdoc(states)} {more}",
        "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"]),
    ]


def _meaning(error: type[LakeMQError]) -> tuple[str, str]:
    return inspect.cleandoc(error.__doc__ or "").splitlines()[0], "yes" if error.retriable else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _join_blocks(blocks: Iterable[str]) -> str:
    return "\n\n".join(blocks) + "\n"


# -- the command --------------------------------------------------------------------------------------

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
| 129, 130, 143 | interrupted by SIGHUP, SIGINT or SIGTERM, in 2 s; `serve`, and SIGINT with `--follow`, end with 0 |
| 141 | the reader closed the pipe, as `head` does. Commands that wait for messages end at once |

A command that waits more than two seconds for an answer says on stderr which sequencer is silent. If you interrupt it,
it says that the outcome is unknown: the request may still take effect.

Commands that delete something permanently ask for confirmation on stderr: `topics delete` and `delete-records`,
`groups delete` and `delete-offsets`, `delayed purge` and `cancel` by a condition, `dead-letters purge`.
`--yes` answers for you. Without it, a script (stdin is not a terminal) is refused with `CONFIRMATION_REQUIRED`, exit
code 2, and nothing changes.

`publish` and `fetch` show a progress bar with rate and time left on stderr if that is a terminal. `fetch` shows none
while its messages go to the same terminal. `doctor`, `fsck`, `report` and `topics describe --keys` show there what
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
    """Return the page of the command, from the command itself."""
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
    return f"| {shown} | {_option_default(parameter)} | {meaning}{variable} |"


def _is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def _metavar(parameter: Any) -> str:
    if isinstance(parameter.default, Enum):
        return "|".join(str(choice.value) for choice in type(parameter.default))
    return str(parameter.metavar or parameter.name.upper())


def _option_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or callable(default) or isinstance(default, list | tuple):
        return ""
    if default is True:
        return f"`{parameter.opts[0]}`"
    return f"`{default.value if isinstance(default, Enum) else default}`"


PAGES: dict[str, Callable[[], str]] = {
    "command.md": command_page,
    "tables.md": tables_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "states.md": states_page,
}


if __name__ == "__main__":
    sys.exit(main())
