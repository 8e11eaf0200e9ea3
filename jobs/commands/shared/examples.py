"""Examples of each command, which its `--help` and docs/command.md show."""

import typer
from typer.main import get_command_name

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": (
        "lakemq --path data/mq init",
        "lakemq init --path s3://bucket/mq --storage-option AWS_REGION=eu-central-1",
    ),
    "serve": ("lakemq serve", "lakemq --conf lakemq.yaml serve"),
    "step": ("lakemq step --until-idle",),
    "status": ("lakemq status", "lakemq status --once --output json"),
    "console": ("lakemq console", "lakemq console --host 0.0.0.0 --token-file token --allow-changes"),
    "report": (
        "lakemq report --since PT30M --until 02:10",
        "lakemq report -o report.html",
        "lakemq report --since 2026-01-31T02:00:00 --until 2026-01-31T02:30:00 -o report.html",
    ),
    "catalog": ("lakemq catalog", "lakemq catalog --as-of 2026-01-31T12:00:00"),
    "doctor": ("lakemq doctor", "lakemq doctor --no-spark --output json"),
    "fsck": ("lakemq fsck", "lakemq fsck --repair"),
    "backup": ("lakemq backup s3://copies/mq --verify",),
    "restore": (
        "lakemq --path data/restored restore backups",
        "lakemq --path data/restored restore backups --as-of 2026-01-31T12:00:00",
    ),
    "publish": (
        "lakemq publish flights.csv --topic flights --key-column tailnum",
        "lakemq publish --topic flights --key-separator :",
    ),
    "fetch": (
        "lakemq fetch flights --from 2026-01-31T12:00:00 --limit 5",
        "lakemq fetch flights --print '%p/%o %k: %s\\n'",
    ),
    "tail": ("lakemq tail flights --follow", "lakemq tail flights -n 1 --output json"),
    "offsets": ("lakemq offsets flights --time 2026-01-31T12:00:00", "lakemq offsets flights weather --time earliest"),
    "consume": ("lakemq consume flights --group alerts --follow", "lakemq consume flights --group alerts --until-end"),
    "worker": (
        "lakemq worker shop:ship --group ship --topics orders",
        "lakemq worker shop:ship --group ship --topics orders --time-limit-ms 30000 --reject-for ValueError",
    ),
    "mirror": (
        "lakemq mirror --bootstrap-servers broker:9092 --topics 'orders|invoices'",
        "lakemq mirror --bootstrap-servers broker:9092 --topics 'shop[.].*' --until-caught-up",
    ),
    "sql": (
        'lakemq sql "SELECT topic, count(*) AS messages FROM log_committed GROUP BY topic"',
        'lakemq sql "SELECT * FROM open_transactions" --wait 10',
    ),
    "spark-sql": ('lakemq spark-sql -- -e "SELECT count(*) FROM log_committed"',),
    "describe-producers": ("lakemq describe-producers flights 0",),
    "topics create": (
        "lakemq topics create orders --partitions 8 --config retention.ms=86400000",
        "lakemq topics create all-flights --subscription 'flights/>'",
    ),
    "topics list": ("lakemq topics list",),
    "topics describe": ("lakemq topics describe flights", "lakemq topics describe flights --keys --newest 10000"),
    "topics alter": (
        "lakemq topics alter flights --config ttl.ms=60000 --reset retention.ms",
        "lakemq topics alter flights --partitions 16",
    ),
    "topics delete": ("lakemq topics delete old-flights --yes",),
    "topics delete-records": ("lakemq topics delete-records flights --before 0=10 --before 1=latest --yes",),
    "transactions list": ("lakemq transactions list --state Ongoing",),
    "transactions describe": ("lakemq transactions describe loader-1",),
    "transactions find-hanging": ("lakemq transactions find-hanging --max-open-ms 60000",),
    "transactions abort": ("lakemq transactions abort loader-1",),
    "delayed list": ("lakemq delayed list",),
    "delayed describe": ("lakemq delayed describe reminders",),
    "delayed cancel": (
        "lakemq delayed cancel --topic reminders --key N12345 --dry-run",
        "lakemq delayed cancel --topic reminders --where \"deliver_at > '2026-01-31'\" --yes",
    ),
    "delayed purge": ("lakemq delayed purge reminders --dry-run",),
    "delayed reschedule": ("lakemq delayed reschedule RECEIPT --delay-ms 60000",),
    "delayed release": ("lakemq delayed release", "lakemq delayed release --watch"),
    "schedules create": (
        "lakemq schedules create daily reports --cron '0 8 * * MON-FRI' --time-zone Europe/Berlin --value go",
    ),
    "schedules list": ("lakemq schedules list",),
    "schedules pause": ("lakemq schedules pause daily",),
    "schedules resume": ("lakemq schedules resume daily",),
    "schedules delete": ("lakemq schedules delete daily --yes",),
    "dead-letters list": ("lakemq dead-letters list",),
    "dead-letters show": ("lakemq dead-letters show flights.dead --limit 10",),
    "dead-letters redrive": ("lakemq dead-letters redrive flights.dead --where \"reason = 'rejected'\" --rate 100",),
    "dead-letters purge": ("lakemq dead-letters purge flights.dead --dry-run",),
    "groups list": ("lakemq groups list --state Stable",),
    "groups describe": ("lakemq groups describe alerts", "lakemq groups describe alerts --settings"),
    "groups members": ("lakemq groups members alerts",),
    "groups assignments": ("lakemq groups assignments alerts --at 2026-01-31T02:10:00",),
    "groups handoffs": ("lakemq groups handoffs alerts --keys",),
    "groups create": ("lakemq groups create new-alerts --config max.redelivery.count=3",),
    "groups alter": (
        "lakemq groups alter alerts --config max.redelivery.count=9",
        "lakemq groups alter alerts --reset max.redelivery.count",
    ),
    "groups remove-members": ("lakemq groups remove-members loaders --instance worker-3",),
    "groups lag": ("lakemq groups lag alerts",),
    "groups delete": ("lakemq groups delete old-alerts --yes",),
    "groups delete-offsets": ("lakemq groups delete-offsets alerts --topic flights:0,2 --yes",),
    "groups reset-offsets": (
        "lakemq groups reset-offsets alerts --topic flights --to-datetime 2026-01-31T12:00:00 --execute",
        "lakemq groups reset-offsets alerts --all-topics --to-earliest --export",
    ),
    "bench produce": ("lakemq bench produce flights --messages 100000 --size 200 --rate 5000",),
    "bench consume": ("lakemq bench consume flights --messages 100000",),
}
"""Words of a command -> command lines that use it. They take the namespace from $LAKEMQ_PATH."""


def add_examples(app: typer.Typer, prefix: str = "") -> None:
    """Append the examples to the help of all commands. A command without an example stays as it is."""
    for command in app.registered_commands:
        name = command.name or get_command_name(getattr(command.callback, "__name__", ""))
        lines = EXAMPLES.get(f"{prefix}{name}", ())
        # The help joins lines of one paragraph, so each example is a paragraph.
        command.epilog = "\n\n".join(("Examples:" if len(lines) > 1 else "Example:", *lines)) if lines else None
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, f"{prefix}{group.name} ")
