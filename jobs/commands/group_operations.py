"""`lakemq groups delete`, `delete-offsets` and `reset-offsets`: what kafka-consumer-groups does to groups."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.commands.times import parse_duration, parse_time
from lakemq.jobs.output import note, show

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.consume.groups import OffsetChange
    from lakemq.errors import LakeMQError

Groups = Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="Names of groups.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups that there are.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(metavar="TOPIC[:N,N]", help="A topic, or some partitions of it, as orders:0,2; repeatable."),
]

_PARTITION = re.compile("[0-9]{1,10}")
_CHANGES = ("group", "topic", "partition", "before", "after")

Offsets = Mapping[tuple[str, int], int]


def add_to(groups: typer.Typer) -> None:
    groups.command(help=f"Forget groups that have no members, with all they have committed. {NEEDS_ANSWER}")(delete)
    groups.command(
        "delete-offsets", help=f"Forget what a group has committed in topics that no member of it reads. {NEEDS_ANSWER}"
    )(delete_offsets)
    groups.command(
        "reset-offsets",
        help="Let groups without members go on elsewhere, within what the log has. Without --execute it is only said"
        f" what would change. {NEEDS_ANSWER}",
    )(reset_offsets)


def delete(ctx: typer.Context, group: Groups = None, all_groups: AllGroups = False) -> None:
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        refused = _Refused()
        for name in chosen(mq, group, all_groups):
            with refused.kept(name):
                mq.groups.delete(name)
                note(f"{name} is deleted")
        refused.tell()


def delete_offsets(
    ctx: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")],
    topic: Topics = None,
) -> None:
    places = _places(topic)
    if places is None:
        raise typer.BadParameter("of which topics?", param_hint="--topic")
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        show(map(asdict, mq.groups.delete_offsets(group, places)), session.output, _CHANGES)


def reset_offsets(
    ctx: typer.Context,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All that the group has committed, or has had.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Where the log begins.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Where what is committed ends.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="An offset, for all partitions.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="The first message not before it; ISO 8601, else UTC.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="So long ago; ISO 8601, as P1DT12H or PT30M.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(metavar="N", help="So many offsets further; -N: back.")] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Lines of [group,]topic,partition,offset, as --export writes them."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change; the default.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print what it comes to as lines for --from-file.")] = False,
) -> None:
    how: dict[str, Any] = {
        "--to-earliest": {"to": "earliest"} if to_earliest else None,
        "--to-latest": {"to": "latest"} if to_latest else None,
        "--to-offset": None if to_offset is None else {"to": to_offset},
        "--to-datetime": None if to_datetime is None else {"to": _parsed(parse_time, to_datetime, "--to-datetime")},
        "--by-duration": None if by_duration is None else {"to": _parsed(parse_duration, by_duration, "--by-duration")},
        "--shift-by": None if shift_by is None else {"shift_by": shift_by},
        "--from-file": None if from_file is None else {},
    }
    told = [given for given in how.values() if given is not None]
    if len(told) != 1:
        raise typer.BadParameter("exactly one of them says where to", param_hint=", ".join(how))
    if dry_run and execute:
        raise typer.BadParameter("contradicts --execute", param_hint="--dry-run")
    places = _places(topic)
    if from_file is None and (places is None) == (not all_topics):
        raise typer.BadParameter("one of them says what is reset", param_hint="--topic, --all-topics")
    if from_file is not None and (places is not None or all_topics):
        raise typer.BadParameter("the file says which partitions", param_hint="--topic, --all-topics")
    session = session_of(ctx)
    changes: list[OffsetChange] = []
    refused = _Refused()
    with session.connect() as mq, answered(mq):
        names = chosen(mq, group, all_groups)
        by_group = None if from_file is None else _read(from_file, names)
        for name in names:
            given: dict[str, Any] = {"topics": places, **told[0]} if by_group is None else {"to": by_group[name]}
            with refused.kept(name):
                changes += mq.groups.reset_offsets(name, **given, dry_run=not execute)
    if export:
        _write(changes, with_group=len(names) > 1)
    else:
        show(map(asdict, changes), session.output, _CHANGES)
    if not execute:
        note("nothing was changed: --execute does it")
    refused.tell()


class _Refused:
    """Of several groups each is tried; then what was refused is told."""

    def __init__(self) -> None:
        self._errors: list[tuple[str, LakeMQError]] = []

    @contextmanager
    def kept(self, group: str) -> Iterator[None]:
        from lakemq.errors import LakeMQError, RequestTimedOut

        try:
            yield
        except RequestTimedOut:  # nor would the next one be answered
            raise
        except LakeMQError as error:
            self._errors.append((group, error))

    def tell(self) -> None:
        """Raises the last of them."""
        for group, error in self._errors[:-1]:
            note(f"{group}: {error}")
        for _, error in self._errors[-1:]:
            raise error


def chosen(mq: Connection, group: Sequence[str] | None, all_groups: bool) -> list[str]:
    """Those named, each once, or all."""
    if bool(group) == all_groups:
        raise typer.BadParameter("which groups?", param_hint="GROUP, --all-groups")
    return mq.groups.list() if all_groups else list(dict.fromkeys(group or ()))


def _places(given: Iterable[str] | None) -> list[str | tuple[str, int]] | None:
    """None: none were given."""
    places: list[str | tuple[str, int]] = []
    for one in given or ():
        topic, colon, numbers = one.partition(":")
        if not colon:
            places.append(topic)
            continue
        for number in numbers.split(","):
            if not _PARTITION.fullmatch(number):
                raise typer.BadParameter(f"{one!r} is not TOPIC:N,N", param_hint="--topic")
            places.append((topic, int(number)))
    return places or None


def _parsed(parse: Any, text: str, option: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _read(path: Path, names: Sequence[str]) -> dict[str, Offsets]:
    """Group -> where to. Lines without a group are of the only one that was named."""
    found: dict[str, dict[tuple[str, int], int]] = {name: {} for name in names}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint="--from-file") from None
    for number, line in lines:
        fields = line if len(line) == 4 or len(names) != 1 else [names[0], *line]
        try:
            name, topic, partition, offset = fields
            place, at = (topic, int(partition)), int(offset)
        except ValueError:
            raise typer.BadParameter(
                f"line {number} of {path} is not [group,]topic,partition,offset", param_hint="--from-file"
            ) from None
        if name not in found:
            raise typer.BadParameter(f"line {number} of {path} is of the group {name!r}", param_hint="--from-file")
        if place in found[name]:
            raise typer.BadParameter(f"line {number} of {path} names a partition again", param_hint="--from-file")
        found[name][place] = at
    return dict(found)


def _write(changes: Iterable[OffsetChange], with_group: bool) -> None:
    for one in changes:
        fields = (one.topic, one.partition, one.after)
        print(",".join(map(str, (one.group, *fields) if with_group else fields)))
