"""The doctor's findings: problems of this machine and of the namespace, and how to mend them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakemq.jobs.console.console import Console
from lakemq.jobs.console.parts import Form, Notice, Page, Part, Table


def read_doctor(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return a button, or what the doctor has found: it looks at all data files, which may take a while."""
    return Page(
        "Doctor",
        [
            Notice("The doctor checks this machine and the namespace. With many data files it takes a while."),
            _make_button(),
        ],
    )


def run_doctor(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Run all checks, and return what they found."""
    findings = sorted(console.examine(), key=lambda finding: (finding.ok, not finding.mend))
    count = sum(not finding.ok for finding in findings)
    text = "Everything is all right." if not count else f"{count} of {len(findings)} checks found a problem."
    rows = [[finding.check, finding.state, finding.found, finding.mend] for finding in findings]
    parts: list[Part] = [
        Notice(text, "bad" if count else "good"),
        Table("Checks", ("check", "state", "found", "how to mend it"), rows),
        _make_button(),
    ]
    return Page("Doctor", parts)


def _make_button() -> Form:
    return Form("Examine", "/doctor", [], "Run all checks", "post")
