"""`lakemq schedules`: create, list, pause, resume and delete schedules of recurring messages."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from lakemq.jobs.commands.shared.context import ASKS, NEEDS_SEQUENCER, Yes, confirm, connect, ensure_sequencer, show

schedules = typer.Typer(no_args_is_help=True, help="Create, list, pause, resume and delete schedules.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]

_COLUMNS = "name, topic, cron, time_zone, missed, state, next_at, last_at, reason"


@schedules.command(
    help="Create a schedule: a message is published to a topic at each time of a cron expression. Shows when it is due"
    f" first. {NEEDS_SEQUENCER}"
)
def create(
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    cron: Annotated[
        str, typer.Option(metavar="CRON", help="Minute, hour, day of month, month and day of week: '0 8 * * MON-FRI'.")
    ],
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="IANA time zone of these.")] = "UTC",
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Key of each message.")] = None,
    value: Annotated[str | None, typer.Option(metavar="VALUE", help="Value of each message.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of each message; repeatable.")
    ] = None,
    missed: Annotated[
        Literal["once", "skip"],
        typer.Option(metavar="once|skip", help="Publish one message for all missed occurrences, or none."),
    ] = "once",
) -> None:
    headers = [_parse_header(pair) for pair in header or []]
    with connect() as mq, ensure_sequencer(mq):
        created = mq.schedules.create(
            name,
            topic,
            cron=cron,
            time_zone=time_zone,
            key=key,
            value=value,
            headers=headers,
            missed=missed,
        )
    show([asdict(created)], _COLUMNS)


def _parse_header(pair: str) -> tuple[str, bytes]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode()


@schedules.command("list")
def list_schedules() -> None:
    """List the schedules by name, with their next and last occurrence."""
    with connect() as mq:
        show(map(asdict, mq.schedules.list()), _COLUMNS)


@schedules.command(help=f"Publish no occurrences until `resume`. {NEEDS_SEQUENCER}")
def pause(name: Name) -> None:
    _change(name, "pause")


@schedules.command(
    help="Go on. Occurrences that were missed are published once, or skipped, as --missed of `create` says."
    f" {NEEDS_SEQUENCER}"
)
def resume(name: Name) -> None:
    _change(name, "resume")


def _change(name: str, change: str) -> None:
    with connect() as mq, ensure_sequencer(mq):
        getattr(mq.schedules, change)(name)
        changed: dict[str, Any] = asdict(mq.schedules.describe(name))
    show([changed], _COLUMNS)


@schedules.command(help=f"Delete a schedule. {ASKS} {NEEDS_SEQUENCER}")
def delete(name: Name, yes: Yes = False) -> None:
    with connect() as mq:
        mq.schedules.describe(name)  # refuse a name that does not exist before asking for confirmation
        confirm(f"Delete the schedule {name!r}?", yes)
        with ensure_sequencer(mq):
            mq.schedules.delete(name)
    show([{"schedule": name, "deleted": True}], ("schedule", "deleted"))
