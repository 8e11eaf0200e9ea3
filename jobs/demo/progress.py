"""What the demo prints: a sentence per stage with its time, a line per check that holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from lakemq.jobs.demo.checks import Check


@dataclass
class Stage:
    """A stage that runs. result: what it ends with, in a few words."""

    show: Callable[[str], None]
    result: str = ""


@dataclass
class Progress:
    """The console, with the checks and figures so far. tiles: figures, each with what it measures."""

    console: Console
    checks: list[Check] = field(default_factory=list)
    tiles: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def stage(self, sentence: str) -> Iterator[Stage]:
        """Print a sentence that says what is being done, and how long it took.

        On a terminal `show` of the stage replaces the text beside the spinner.
        """
        began_s = time.monotonic()
        self._print(f"[bold]{escape(sentence)}[/]")
        with self.console.status("") as status:
            stage = Stage(lambda text: status.update(escape(text)))
            yield stage
        self._print(f"  {escape(stage.result)}  [dim]{time.monotonic() - began_s:.1f} s[/]")

    def add_checks(self, *checks: Check) -> None:
        """Print checks that passed, and keep them for the report."""
        for check in checks:
            self.checks.append(check)
            self._print(f"  [green]✓[/] {escape(check.claim)}  [dim]{escape(check.evidence)}[/]")

    def _print(self, markup: str) -> None:
        self.console.print(markup, soft_wrap=True, highlight=False)
