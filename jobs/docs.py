"""The pages of docs/ that follow from the code: the command, tables, settings, errors, states.

    python -m lakemq.jobs.docs            write them
    python -m lakemq.jobs.docs --check    exit with 1 when one is stale

A page is a function without arguments to its text; tests/unit/test_docs.py fails when a stored page is another text.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lakemq.engine.client.consume.groups import DELIVERY_TRANSITIONS, GROUP, PARTITION_TRANSITIONS
from lakemq.engine.client.publish.options import PRODUCER
from lakemq.engine.client.publish.producer import Producer
from lakemq.engine.client.topics import LOG_TRANSITIONS, TOPIC
from lakemq.engine.client.transactions.operations import TRANSITIONS, Transitions
from lakemq.engine.namespace.config import ENGINE, NOT_OURS, Parameter
from lakemq.errors import LakeMQError, all_errors
from lakemq.jobs.commands.page import command_page
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.catalog import ddl_type
from lakemq.tables.views import VIEWS

FOLDER = Path(__file__).parents[1] / "docs"

_GENERATED = "<!-- Written by `make docs` from {source}; changes belong there. -->"

_SHAPES = {
    "log": "log: each row is a fact, written once",
    "changelog": "changelog: the newest row of a key is its state",
    "data": "data",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lakemq.jobs.docs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 when a page is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pages are (%(default)s)")
    asked = parser.parse_args(arguments)
    if not asked.folder.is_dir():
        parser.error(f"{asked.folder} is no folder: run this in a checkout, or name one with --folder")
    stale = stale_pages(asked.folder)
    for name in stale:
        if not asked.check:
            (asked.folder / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"{asked.folder / name}: {'stale, run: make docs' if asked.check else 'written'}")
    return 1 if asked.check and stale else 0


def stale_pages(folder: Path) -> list[str]:
    """Names of the pages in `folder` that are not what the code says, or are not there."""
    stored = {name: folder / name for name in PAGES}
    return [
        name for name, path in stored.items() if not path.exists() or path.read_text(encoding="utf-8") != PAGES[name]()
    ]


def tables_page() -> str:
    """All tables with their columns, and the views."""
    lines = [
        "# Tables",
        _GENERATED.format(source="tables/"),
        "Every table is a Delta table in a folder of its name under the namespace. Times are UTC; a column that ends "
        "in `_ms` holds milliseconds since 1970. `step` is the sequencer's step that decided the row.",
        "In a *changelog* the row of a key with the highest `step` is its state. Things are decided in `journal`; the "
        "other tables follow from it about a second later. Only the sequencer writes them; `inbox` is yours.",
        "\n".join(f"- [`{spec.name}`](#{spec.name}): {spec.comment}" for spec in TABLES),
    ]
    for spec in TABLES:
        lines += _table_section(spec)
    lines += ["## Views", "In Spark's catalog and in `lakemq sql`. `{database}` is the namespace's database."]
    for name, query in VIEWS.items():
        lines += [f"### `{name}`", f"```sql\n{query}\n```"]
    return _joined(lines)


def _table_section(spec: TableSpec) -> list[str]:
    about = [_SHAPES[spec.shape]]
    if spec.keys:
        about.append("key " + ", ".join(f"`{key}`" for key in spec.keys))
    rows = [
        (f"`{f.name}`", f"`{ddl_type(f.type)}`", "yes" if f.nullable else "", f.metadata[b"comment"].decode())
        for f in spec.schema
    ]
    return [f"## {spec.name}", spec.comment, "; ".join(about) + ".", _table(("column", "type", "null", "what"), rows)]


def settings_page() -> str:
    """All settings with defaults and ranges, and a producer's options."""
    return _joined(
        [
            "# Settings",
            _GENERATED.format(
                source="engine/namespace/config.py, engine/protocol/parameters.py and engine/client/publish/options.py"
            ),
            "A setting that is unknown, of the wrong type or out of range is refused with `INVALID_CONFIG`, and named. "
            "So is a key that stands twice in a file.",
            "## Engine",
            "From the YAML file named by `lakemq --conf FILE`, `lakemq.connect(path, conf=FILE)` or `$LAKEMQ_CONF`; "
            "`lakemq.connect(path, config={...})` wins over it. `conf/lakemq.yaml` lists the defaults. Each process "
            "goes by its own settings: those of the sequencer are what the process that leads was given.",
            _settings(ENGINE.declared),
            "## Topics",
            "Per topic: `mq.topics.create(topic, config={...})`, `mq.topics.alter(topic, config={...})`, where `None` "
            "resets one.",
            _settings(TOPIC.declared),
            "## Groups",
            "Per group: `mq.groups.create(group, config={...})`, `mq.groups.alter(group, config={...})`, where `None` "
            "resets one; a [consumer](groups.md) sets those that are its keywords when it is the group's first.",
            _settings(GROUP.declared),
            "## Kafka's that are refused",
            "These have no meaning here; whoever sets one for the engine or a topic is told why.",
            _table(("settings", "why"), _not_ours()),
            "## Producers",
            inspect.cleandoc(Producer.__doc__ or ""),
            "Options of `mq.producer(...)`, in Kafka's words:",
            _settings(PRODUCER.declared),
            "`idempotent`, or `enable_idempotence`, is `True`: a lost answer is asked for again, and nothing is "
            "published twice. `False` is refused for a producer with a transactional id.",
        ]
    )


def _not_ours() -> list[tuple[str, str]]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in NOT_OURS.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    return [(", ".join(names), reason) for reason, names in by_reason.items()]


def _settings(declared: Mapping[str, Parameter]) -> str:
    rows = [(f"`{p.name}`", f"`{_default(p)}`", _range(p), p.meaning) for p in declared.values()]
    return _table(("setting", "default", "range", "what"), rows)


def _default(parameter: Parameter) -> str:
    """As it may be given."""
    default = parameter.default
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _range(parameter: Parameter) -> str:
    if parameter.choices:
        return ", ".join(f"`{choice}`" for choice in parameter.choices)
    if isinstance(parameter.default, bool):
        return parameter.expected
    return f"{parameter.low} to {parameter.high}"


def errors_page() -> str:
    """All errors, by name."""
    rows = [
        (f"`{e.name}`", "" if e.code is None else str(e.code), f"`{e.__name__}`", *_meaning(e)) for e in all_errors()
    ]
    return _joined(
        [
            "# Errors",
            _GENERATED.format(source="engine/protocol/errors.py"),
            "Every refusal is a class of `lakemq.errors`, below `LakeMQError`. Names and codes are Kafka's "
            "where Kafka has it. The text says what was found and what was expected. A refused request changes "
            "nothing. *Retry*: the same call may succeed later.",
            "At the command line an error is one line `NAME: message` on stderr, and an [exit code](command.md) that "
            "says its kind.",
            _table(("name", "code", "class", "meaning", "retry"), rows),
        ]
    )


def states_page() -> str:
    """Which states follow which."""
    return _joined(
        [
            "# States",
            _GENERATED.format(source="engine/protocol/values"),
            *_states(
                TRANSITIONS,
                " Each transition is a row of [`transactions`](tables.md#transactions). Dead is an id that is not "
                "known: never asked for, or expired.",
            ),
            *_states(LOG_TRANSITIONS, " They are in [`partitions`](tables.md#partitions)."),
            *_states(PARTITION_TRANSITIONS, " They are in [`assignments`](tables.md#assignments)."),
            *_states(DELIVERY_TRANSITIONS, " They are in [`consumer_offsets`](tables.md#consumer_offsets)."),
        ]
    )


def _states(transitions: Transitions[Any], more: str) -> list[str]:
    states = list(transitions.table)
    arrows = [
        f"    {one.value} --> {after.value}" for one in states for after in states if after in transitions.table[one]
    ]
    return [
        f"## {transitions.what}",
        (inspect.getdoc(type(states[0])) or "") + more,
        "\n".join(["```mermaid", "stateDiagram-v2", *arrows, "```"]),
    ]


def _meaning(error: type[LakeMQError]) -> tuple[str, str]:
    return inspect.cleandoc(error.__doc__ or "").splitlines()[0], "yes" if error.retriable else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _joined(blocks: Iterable[str]) -> str:
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
