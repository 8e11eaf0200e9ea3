"""`lakemq groups delete`, `delete-offsets` and `reset-offsets`, as in kafka-consumer-groups."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from lakemq.jobs.commands.shared.context import (
    ASKS,
    NEEDS_SEQUENCER,
    Yes,
    confirm,
    connect,
    ensure_sequencer,
    get_session,
    show,
)
from lakemq.jobs.commands.shared.times import parse_duration, parse_time
from lakemq.jobs.output import Output, note, to_json

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.groups.groups import GroupOffsetChange
    from lakemq.errors import LakeMQError

Groups = Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="Names of groups.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(metavar="TOPIC[:N,N]", help="A topic, or some of its partitions, such as orders:0,2; repeatable."),
]

_PARTITION = re.compile("[0-9]{1,10}")
_CHANGES = ("group", "topic", "partition", "before", "after")

Offsets = Mapping[tuple[str, int], int]


def add_to(groups: typer.Typer) -> None:
    groups.command(help=f"Delete groups without members, and their committed offsets. {ASKS} {NEEDS_SEQUENCER}")(delete)
    groups.command(
        "delete-offsets",
        help="Delete the committed offsets of a group in topics that none of its members reads."
        f" {ASKS} {NEEDS_SEQUENCER}",
    )(delete_offsets)
    groups.command(
        "reset-offsets",
        help="Move groups without members to other offsets within the log. Without --execute it only shows the changes."
        f" {NEEDS_SEQUENCER}",
    )(reset_offsets)


def delete(group: Groups = None, all_groups: AllGroups = False, yes: Yes = False) -> None:
    refused, deleted = _RefusedGroups(), []
    with connect() as mq:
        names = select_groups(mq, group, all_groups)
        confirm(f"Delete the committed offsets of these groups: {', '.join(names) or 'none'}?", yes)
        with ensure_sequencer(mq):
            for name in names:
                with refused.collect(name):
                    mq.groups.delete(name)
                    deleted.append({"group": name, "deleted": True})
    if deleted:
        show(deleted, ("group", "deleted"))
    refused.tell()


def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")],
    topic: Topics = None,
    yes: Yes = False,
) -> None:
    topics = _parse_topics(topic)
    if topics is None:
        raise typer.BadParameter("name at least one topic", param_hint="--topic")
    with connect() as mq:
        confirm(f"Delete the committed offsets of group {group!r} for {', '.join(topic or ())}?", yes)
        with ensure_sequencer(mq):
            show(map(asdict, mq.groups.delete_offsets(group, topics)), _CHANGES)


def reset_offsets(
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    all_topics: Annotated[
        bool,
        typer.Option("--all-topics", help="All topics in which the group has committed offsets or owned partitions."),
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The start of the log.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end of the committed messages.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="This offset in all partitions.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The first message at or after this time; ISO 8601, by default UTC."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="This long ago; ISO 8601, such as P1DT12H or PT30M.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(metavar="N", help="N offsets forward; -N: back.")] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lines of [group,]topic,partition,offset, as --export prints them."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change; the default.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Make the change.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as lines for --from-file.")] = False,
) -> None:
    how: dict[str, Any] = {
        "--to-earliest": {"to": "earliest"} if to_earliest else None,
        "--to-latest": {"to": "latest"} if to_latest else None,
        "--to-offset": None if to_offset is None else {"to": to_offset},
        "--to-datetime": None
        if to_datetime is None
        else {"to": _parse_option(parse_time, to_datetime, "--to-datetime")},
        "--by-duration": None
        if by_duration is None
        else {"to": _parse_option(parse_duration, by_duration, "--by-duration")},
        "--shift-by": None if shift_by is None else {"shift_by": shift_by},
        "--from-file": None if from_file is None else {},
    }
    targets = [target for target in how.values() if target is not None]
    if len(targets) != 1:
        raise typer.BadParameter("give exactly one of them", param_hint=", ".join(how))
    if dry_run and execute:
        raise typer.BadParameter("it contradicts --execute", param_hint="--dry-run")
    topics = _parse_topics(topic)
    if from_file is None and (topics is None) == (not all_topics):
        raise typer.BadParameter("give one of them", param_hint="--topic, --all-topics")
    if from_file is not None and (topics is not None or all_topics):
        raise typer.BadParameter(
            "they do not go with --from-file, which names the partitions", param_hint="--topic, --all-topics"
        )
    changes: list[GroupOffsetChange] = []
    refused = _RefusedGroups()
    with connect() as mq, ensure_sequencer(mq):
        names = select_groups(mq, group, all_groups)
        by_group = None if from_file is None else _read(from_file, names)
        for name in names:
            target: dict[str, Any] = {"topics": topics, **targets[0]} if by_group is None else {"to": by_group[name]}
            with refused.collect(name):
                changes += mq.groups.reset_offsets(name, **target, dry_run=not execute)
    if export:
        _export(changes, with_group=len(names) > 1)
    else:
        show(map(asdict, changes), _CHANGES)
    if not execute:
        note("Nothing was changed. Give --execute to make the change.")
    refused.tell()


class _RefusedGroups:
    """Collects the errors of several groups, so that all groups are tried before the errors are reported."""

    def __init__(self) -> None:
        self._errors: list[tuple[str, LakeMQError]] = []

    @contextmanager
    def collect(self, group: str) -> Iterator[None]:
        from lakemq.errors import LakeMQError, RequestTimedOut

        try:
            yield
        except RequestTimedOut:  # the next request would not be answered either
            raise
        except LakeMQError as error:
            self._errors.append((group, error))

    def tell(self) -> None:
        """Print all errors but the last on stderr, and raise the last."""
        for group, error in self._errors[:-1]:
            note(f"{group}: {error}")
        for _, error in self._errors[-1:]:
            raise error


def select_groups(mq: Connection, group: Sequence[str] | None, all_groups: bool) -> list[str]:
    """Return the named groups without duplicates, or all groups."""
    if bool(group) == all_groups:
        raise typer.BadParameter("name groups, or give --all-groups", param_hint="GROUP, --all-groups")
    return mq.groups.list() if all_groups else list(dict.fromkeys(group or ()))


def _parse_topics(names: Iterable[str] | None) -> list[str | tuple[str, int]] | None:
    """Parse the values of --topic into topics and (topic, partition) pairs; None if there are none."""
    topics: list[str | tuple[str, int]] = []
    for name in names or ():
        topic, colon, numbers = name.partition(":")
        if not colon:
            topics.append(topic)
            continue
        for number in numbers.split(","):
            if not _PARTITION.fullmatch(number):
                raise typer.BadParameter(f"{name!r} is not TOPIC:N,N", param_hint="--topic")
            topics.append((topic, int(number)))
    return topics or None


def _parse_option(parse: Any, text: str, option: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _read(path: Path, names: Sequence[str]) -> dict[str, Offsets]:
    """Read the new offsets per group from a file. A line without a group belongs to the only group named."""
    offsets: dict[str, dict[tuple[str, int], int]] = {name: {} for name in names}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(_offset_lines(file), 1) if line]
    except (OSError, ValueError, csv.Error) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint="--from-file") from None
    for number, line in lines:
        fields = line if len(line) == 4 or len(names) != 1 else [names[0], *line]
        try:
            name, topic, partition, offset = fields
            tp, at = (topic, int(partition)), int(offset)
        except ValueError:
            raise typer.BadParameter(
                f"line {number} of {path} is not [group,]topic,partition,offset", param_hint="--from-file"
            ) from None
        if name not in offsets:
            raise typer.BadParameter(
                f"line {number} of {path} names group {name!r}, which was not asked for", param_hint="--from-file"
            )
        if tp in offsets[name]:
            raise typer.BadParameter(f"line {number} of {path} names a partition twice", param_hint="--from-file")
        offsets[name][tp] = at
    return dict(offsets)


def _offset_lines(file: TextIO) -> Iterator[list[str]]:
    """Yield the fields of each line of a file that --export wrote, as CSV or as JSON objects."""
    text = file.read()
    if not text.lstrip().startswith("{"):
        yield from csv.reader(text.splitlines())
        return
    for line in text.splitlines():
        entry = json.loads(line) if line.strip() else {}
        if not isinstance(entry, dict):
            raise ValueError(f"{line[:60]!r} is not an object")
        yield [str(entry[name]) for name in ("group", "topic", "partition", "offset") if name in entry]


def _export(changes: Iterable[GroupOffsetChange], with_group: bool) -> None:
    """Print lines for --from-file: CSV, or with --output json an object a line."""
    for change in changes:
        fields = {"group": change.group, "topic": change.topic, "partition": change.partition, "offset": change.after}
        if get_session().output is Output.json:
            print(to_json(fields))
        else:
            print(",".join(map(str, list(fields.values())[0 if with_group else 1 :])))
