"""The overview: is the sequencer alive, what waits, what lags, and charts. And the doctor's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from lakemq.engine.client.sequencers import find_store_now_ms
from lakemq.engine.namespace.progress import MINUTE_MS
from lakemq.jobs.console import parts as ui
from lakemq.jobs.console.changes import offer_cures
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.pages.charts import offer_ranges, read_last, read_minutes
from lakemq.jobs.doctor.examination import run_check
from lakemq.jobs.doctor.namespace import (
    WAITING_MS,
    Finding,
    FreeSpace,
    describe_free_space,
    make_checks,
    read_free_space,
)
from lakemq.jobs.reports.history_report import draw_groups, draw_sequencer, draw_topics
from lakemq.jobs.status import MINUTES
from lakemq.tables.specs.journal import SAMPLES

_CHECKS = ("sequencer", "space", "letters", "groups", "losses", "delays")
"""Checks of the doctor that read little, and write nothing."""
_MOST_GROUPS = 10
_MOST_WAITS = 2
"""How many sentences about a group the overview shows: its own page has all."""


def read_overview(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the first page."""
    figures, space = read_figures(console), read_free_space(console.mq.namespace.files)
    samples = read_last(console, read_minutes(inputs))
    return ui.Page(
        "Overview",
        [
            *_report(console, figures),
            _describe_sequencer(figures, space),
            _describe_work(figures),
            _list_lags(console),
            offer_ranges("/"),
            *draw_topics(samples),
            *draw_groups(samples),
            *draw_sequencer(samples),
        ],
    )


def read_figures(console: Console) -> dict[str, float]:
    """Return the metrics by name; those with labels as sums. A metric that is not read yet is missing."""
    figures: dict[str, float] = {}
    for family in console.collector.collect():
        figures.setdefault(family.name, 0.0)
        for sample in family.samples:
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
            for label in ("within_seconds", "sequencer"):
                if label in sample.labels:
                    figures[f"{sample.name} {sample.labels[label]}"] = sample.value
    return figures


def _report(console: Console, figures: Mapping[str, float]) -> list[ui.Part]:
    """Say that all is well and since when, or name each trouble and its cure, as `lakemq status` does."""
    checks = make_checks(console.mq, console.observer)
    findings = [run_check(name, checks[name]) for name in _CHECKS]
    if figures.get("lakemq_scrape_failed", 0) > 0:
        findings.append(Finding("figures", False, "a part of them cannot be read", "The log says why."))
    wrong = [finding for finding in findings if not finding.ok]
    path = console.mq.namespace.path
    if not (wrong or figures.get("lakemq_sequencer_present")):
        return [ui.Notice("No sequencer leads. Requests wait until you start one: lakemq serve.", "bad")]
    if not wrong:
        return [ui.Notice(f"All is well{describe_since(console)}.", "good")]
    return [
        part
        for finding in wrong
        for part in (
            ui.Notice("{check}: {found}. {advice}".format(**finding.to_record(path)), "bad"),
            *offer_cures(console, finding.commands),
        )
    ]


def describe_since(console: Console) -> str:
    """Return since when all is well, by the rows of the sequencer and of overdue members in `samples`."""
    namespace = console.mq.namespace
    columns = ("minute_ms", "group", "steps", "step_p99_ms", "late_ms")
    rows = namespace.store.open(SAMPLES).read(columns, pc.field("topic") == "").sort_by("minute_ms")
    has_paused, was_late = pc.field("steps") == 0, pc.field("late_ms") > WAITING_MS
    troubles = rows.filter((pc.field("group") != "") | has_paused | was_late)
    if not troubles.num_rows:
        return f" since at least {ui.format_time(rows['minute_ms'][0].as_py())}" if rows.num_rows else ""
    last = troubles.slice(troubles.num_rows - 1).to_pylist()[0]
    if last["group"]:
        trouble = f"members of {last['group']} were overdue"
    elif (last["late_ms"] or 0) > WAITING_MS:
        trouble = f"a delayed message was {ui.format_length(last['late_ms'])} late"
    else:
        trouble = f"no step came for {ui.format_length(last['step_p99_ms'])}"
    ended_ms = min(last["minute_ms"] + MINUTE_MS, find_store_now_ms(namespace.files))
    return f" since {ui.format_time(ended_ms)}: before, {trouble}"


def _describe_sequencer(figures: Mapping[str, float], space: FreeSpace | None) -> ui.Facts:
    leader = ", ".join(_list_labels(figures, "lakemq_leader_info"))
    return ui.Facts(
        "Sequencer",
        [
            ("leader", leader or "none"),
            ("epoch", _whole(figures, "lakemq_leader_epoch")),
            ("standby", ", ".join(_list_labels(figures, "lakemq_standby_present")) or "none"),
            ("steps", _whole(figures, "lakemq_steps_total")),
            ("last step", f"{ui.format_length(1000 * figures.get('lakemq_last_step_age_seconds', 0))} ago"),
            ("lease", ui.format_length(1000 * figures.get("lakemq_lease_seconds", 0))),
            ("letters waiting", _whole(figures, "lakemq_letters_waiting")),
            ("tables behind, in steps", _whole(figures, "lakemq_projection_lag_steps")),
            ("disk", describe_free_space(space) if space is not None else "an object store"),
            *_describe_durations(figures),
        ],
    )


def _list_labels(figures: Mapping[str, float], name: str) -> list[str]:
    """Return the sequencers that a metric names."""
    return sorted(figure.partition(" ")[2] for figure in figures if figure.startswith(f"{name} "))


def _describe_durations(figures: Mapping[str, float]) -> list[tuple[str, Any]]:
    """Return the mean duration of a step, which only a serving process knows."""
    count = figures.get("lakemq_step_duration_seconds_count", 0)
    mean_ms = 1000 * figures.get("lakemq_step_duration_seconds_sum", 0) / count if count else None
    return [] if mean_ms is None else [("mean step of this process", ui.format_length(mean_ms))]


def _describe_work(figures: Mapping[str, float]) -> ui.Facts:
    oldest_ms = 1000 * figures.get("lakemq_oldest_open_transaction_age_seconds", 0)
    due = [
        (f"due within {minutes} min", _whole(figures, f"lakemq_delayed_due_messages {60 * minutes}"))
        for minutes in MINUTES
    ]
    return ui.Facts(
        "Work",
        [
            ("topics", _link_figure(figures, "lakemq_topics", "/topics")),
            ("messages", _whole(figures, "lakemq_topic_messages")),
            ("open transactions", _link_figure(figures, "lakemq_transactions_open", "/transactions")),
            ("oldest open transaction", ui.format_length(oldest_ms) if oldest_ms else "-"),
            ("delayed messages", _link_figure(figures, "lakemq_delayed_messages", "/delayed")),
            *due,
            ("unacknowledged in queues", _whole(figures, "lakemq_group_unacknowledged_messages")),
            ("dead letters", _link_figure(figures, "lakemq_dead_letters", "/dead-letters")),
        ],
    )


def _whole(figures: Mapping[str, float], name: str) -> int | None:
    """Return a figure; None if it is not read yet, which must not look like zero."""
    return int(figures[name]) if name in figures else None


def _link_figure(figures: Mapping[str, float], name: str, href: str) -> ui.Link:
    figure = _whole(figures, name)
    return ui.Link("-" if figure is None else f"{figure:,}", href)


def _list_lags(console: Console) -> ui.Table:
    with console.observer.look() as observation:
        groups = sorted(observation.groups.all(), key=lambda group: -group.lag)[:_MOST_GROUPS]
    return ui.list_records(
        "Groups with the most lag",
        groups,
        "group, state, members, lag, consumption_rate, waits_for",
        "There is no group yet.",
        waits_for=lambda group: "; ".join(group.waits_for[:_MOST_WAITS]),
    )


# The doctor's findings: problems of this machine and of the namespace, and how to mend them.


def read_doctor(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return a button, or what the doctor has found: it looks at all data files, which may take a while."""
    return ui.Page(
        "Doctor",
        [
            ui.Notice("The doctor checks this machine and the namespace. With many data files it takes a while."),
            _make_button(),
        ],
    )


def run_doctor(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Run all checks, and return what they found."""
    findings = sorted(console.examine(), key=lambda finding: (finding.ok, not finding.advice))
    count, path = sum(not finding.ok for finding in findings), console.mq.namespace.path
    text = "Everything is all right." if not count else f"{count} of {len(findings)} checks found a problem."
    parts: list[ui.Part] = [
        ui.Notice(text, "bad" if count else "good"),
        *offer_cures(console, [command for finding in findings for command in finding.commands]),
        ui.list_records("Checks", [finding.to_record(path) for finding in findings], "check, state, found, advice"),
        _make_button(),
    ]
    return ui.Page("Doctor", parts)


def _make_button() -> ui.Form:
    return ui.Form("Examine", "/doctor", [], "Run all checks", "post")
