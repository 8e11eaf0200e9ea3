"""What the demo tells while it runs: a line per stage with its time, a line per check, the head of each answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
from rich.console import Console
from rich.markup import escape

from lakemq.jobs.demo.checks import Checked

Say = Callable[[str], None]


@dataclass
class Tour:
    """What was done so far."""

    console: Console
    stages: list[tuple[str, float]] = field(default_factory=list)
    checked: list[Checked] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[Say]:
        """A stage, timed; the function it gives takes what is to be said of it."""
        said: list[str] = []
        begun_s = time.monotonic()
        with self.console.status(name):
            yield said.append
        seconds = round(time.monotonic() - begun_s, 1)
        self.stages.append((name, seconds))
        self._line(f"[bold]{escape(name)}[/]", f"{escape(', '.join(said))}  [dim]{seconds} s[/]".strip())

    def seconds(self, name: str) -> float:
        """What a stage took; never zero, to divide by."""
        return max(dict(self.stages)[name], 0.1)

    def passed(self, checked: Iterable[Checked]) -> None:
        for one in checked:
            self.checked.append(one)
            self._line(f"  [green]✓[/] {escape(one.holds)}", f"[dim]{escape(one.found)}[/]")

    def show(self, answer: pa.Table, most: int = 5) -> None:
        """The first rows of an answer."""
        for row in answer.slice(0, most).to_pylist():
            self._line(
                "   ", "  ".join(f"[dim]{escape(name)}[/] {escape(_plain(value))}" for name, value in row.items())
            )

    def _line(self, left: str, right: str) -> None:
        self.console.print(f"{left}  {right}".rstrip(), soft_wrap=True, highlight=False)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
