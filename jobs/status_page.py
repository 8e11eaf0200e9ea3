"""Draw the status of a namespace with rich, for a terminal or a pipe."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lakemq.engine.client.sequencers import Leadership, describe_silence
from lakemq.jobs.doctor.namespace import describe_free_space
from lakemq.jobs.output import escape_control_characters
from lakemq.jobs.status import Outlook, Status, dead_letter_rows, group_rows, topic_rows, transaction_rows

_MOST_ROWS = 10

Row = Mapping[str, object]


def draw_status(status: Status, outlook: Outlook | None) -> RenderableType:
    """Return the page. outlook: None while it is not read yet. What is not known is not shown as 0."""
    silence = describe_silence(status.leadership)
    parts: list[RenderableType] = (
        [Text(escape_control_characters(silence), style="bold red"), Text()] if silence else []
    )
    parts.append(_draw_figures(status, outlook))
    findings = [finding.to_record(status.path) for finding in outlook.findings] if outlook else None
    sections: list[tuple[str, Sequence[Row] | None]] = [
        ("Topics", topic_rows(status)),
        ("Groups", [{**row, "waits_for": _describe_waits(_items(row["waits_for"]))} for row in group_rows(status)]),
        (
            "Open transactions",
            [{**row, "partitions": ", ".join(map(str, _items(row["partitions"])))} for row in transaction_rows(status)],
        ),
        ("Dead letters", dead_letter_rows(outlook) if outlook else None),
        ("Findings", findings and [{name: row[name] for name in ("check", "found", "advice")} for row in findings]),
    ]
    for title, rows in sections:
        count = len(rows) if rows is not None else "unknown" if outlook else "counting"
        parts += [Text(), Text(f"{title}: {count}", style="bold")]
        if rows:
            parts.append(_draw_table(rows))
    return Group(*parts)


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _describe_waits(waits: Sequence[object]) -> str:
    """Return the first wait and the number of more: each is a paragraph, and a member may hang in many partitions."""
    more = f"; and {len(waits) - 1:,} more: lakemq groups describe GROUP --state" if len(waits) > 1 else ""
    return f"{waits[0]}{more}" if waits else ""


def _draw_figures(status: Status, outlook: Outlook | None) -> RenderableType:
    grid, due = Table.grid(padding=(0, 2)), outlook.due_by_minutes.items() if outlook else ()
    lines = {
        "namespace": status.path,
        "leader": _describe_leader(status),
        "standby": ", ".join(status.leadership.standbys) or "none",
        "direct lines": _describe_lines(status.leadership),
        "last step": f"{status.leadership.step:,}, {status.leadership.silent_ms / 1000:.1f} s ago",
        "steps/s": f"{status.steps_per_s:,.1f}",
        "messages in/s": f"{sum(status.in_per_s.values()):,.1f}",
        "messages out/s": "unknown" if status.out_per_s is None else f"{status.out_per_s:,.1f} (last minute)",
        "disk": "an object store" if status.space is None else describe_free_space(status.space),
        "delayed, due in": "; ".join(f"{minutes} min: {count:,}" for minutes, count in due) or "counting",
    }
    for name, value in lines.items():
        grid.add_row(Text(name, style="bold"), Text(escape_control_characters(value)))
    return grid


def _describe_leader(status: Status) -> str:
    leadership = status.leadership
    if not leadership.leader:
        return "none (lakemq serve)"
    ended = ", which has died without handing over its lease" if leadership.has_died else ""
    return f"{leadership.leader}, epoch {leadership.epoch}{ended}"


def _describe_lines(leadership: Leadership) -> str:
    missing = [f"{reason}, tried again every few seconds" for reason in leadership.missing_lines]
    return "; ".join([*leadership.lines, *missing]) or "none: clients use the mailbox"


def _draw_table(rows: Sequence[Row]) -> RenderableType:
    """Return the first rows as a table, and how many are left out."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int | float) else "left", overflow="fold")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    hidden = len(rows) - _MOST_ROWS
    return Group(table, Text(f"and {hidden:,} more", style="dim")) if hidden > 0 else table


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int | float) else escape_control_characters(str(value))
