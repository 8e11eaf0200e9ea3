"""Generate the pages of docs/ that follow from the code: the command, tables, settings, errors, states.

    python -m lakemq.jobs.docs            write them
    python -m lakemq.jobs.docs --check    exit with 1 if one is stale

Each page is a function that returns its text. tests/unit/test_docs.py fails if a stored page differs.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lakemq.engine.client.consume.options import CONSUMER, PROTOCOLS, ConsumerOption
from lakemq.engine.client.groups.groups import GROUP
from lakemq.engine.client.operator_tools import (
    DELAY_TRANSITIONS,
    DELIVERY_TRANSITIONS,
    LOG_TRANSITIONS,
    PARTITION_TRANSITIONS,
    PHASE_TRANSITIONS,
    REDRIVE_TRANSITIONS,
    TRANSACTION_TRANSITIONS,
    Transitions,
)
from lakemq.engine.client.producer.options import PRODUCER
from lakemq.engine.client.producer.producer import Producer
from lakemq.engine.client.topics import TOPIC
from lakemq.engine.namespace.config import ENGINE, MEMBER, REPLACEMENTS, UNSUPPORTED, Parameter
from lakemq.errors import LakeMQError, all_errors
from lakemq.jobs.commands.shared.page import command_page
from lakemq.jobs.output import format_setting
from lakemq.tables.specs.groups import LIVE_TABLES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.catalog import ddl_type
from lakemq.tables.views import VIEWS

FOLDER = Path(__file__).resolve().parents[1] / "docs"

_GENERATED = "<!-- Written by `make docs` from {source}; change it there. -->"

_SHAPES = {
    "log": "log: each row is a fact, written once",
    "changelog": "changelog: the newest row of a key is its state",
    "data": "data",
    "live": "live: read with each query",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lakemq.jobs.docs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a page is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the pages (%(default)s)")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder: run this in a checkout, or give --folder")
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
            "These have no meaning here. Setting one for the engine or a topic is refused, with the reason.",
            _table(("settings", "why"), _not_ours()),
            "## Settings of Kafka and Solace under other names",
            "These are refused where they do not belong. The error names what LakeMQ has instead. Options of "
            "`mq.producer` and `mq.consumer` may be spelled as in Kafka: `linger.ms` is `linger_ms`.",
            _table(("setting", "here"), [(f"`{name}`", replacement) for name, replacement in REPLACEMENTS.items()]),
            "## Producers",
            inspect.cleandoc(Producer.__doc__ or ""),
            "Options of `mq.producer(...)`, in Kafka's words:",
            _settings(PRODUCER.declared),
            "`idempotent`, or `enable_idempotence`, is `True` by default: a producer repeats a request whose answer "
            "was lost, and nothing is published twice. `False` is refused for a producer with a transactional id.",
            "## Consumers",
            "Keywords of `mq.consumer(group, ...)`. Give one of `topics`, `pattern` and `assign`. *For* lists the "
            "[protocols](groups.md) that take an option; `assign` stands for a consumer whose partitions you assign. "
            "How long the partitions of a killed consumer stand still is [explained here]"
            "(groups.md#when-a-consumer-is-killed).",
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


PAGES: dict[str, Callable[[], str]] = {
    "command.md": command_page,
    "tables.md": tables_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "states.md": states_page,
}


if __name__ == "__main__":
    sys.exit(main())
