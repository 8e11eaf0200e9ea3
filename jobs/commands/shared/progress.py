"""Show on a terminal how far a command is: a bar with rate and time left, or what it is doing and for how long."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_RATE_WINDOW_S = 5.0
"""The rate is that of the last seconds: with an average over all, a stall would look like a slow command."""

_PATIENCE_S = 2.0
"""A command that ends before shows nothing, so that quick ones do not flicker."""


class RateMeter:
    """Measures how fast a count grows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])

    def add(self, count: int) -> None:
        """Add the count as of now."""
        now_s = self._clock()
        self._samples.append((now_s, count))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= _RATE_WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> float:
        """Return the growth per second over the last seconds."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


@contextmanager
def show_progress(verb: str, fraction: Callable[[], float | None]) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal, with rate and time left.

    Call the yielded function with the number of messages so far. fraction: returns the fraction that is done, or None
    if it is unknown; then no time left is shown.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    columns = (*parts, TimeRemainingColumn())
    meter = RateMeter()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=None)

        def show(count: int) -> None:
            meter.add(count)
            done = fraction()
            bar.update(
                task,
                description=f"{count:,} messages {verb}, {meter.per_second():,.0f}/s",
                total=None if done is None else 1.0,
                completed=done or 0.0,
            )

        yield show


@contextmanager
def show_activity(text: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if that is a terminal, what the command does and for how long, once two seconds have passed.

    Call the yielded function with a new text.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class _AfterPatience(ProgressColumn):
        """Shows the columns once the patience is over."""

        def __init__(self) -> None:
            super().__init__()
            self._columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())

        def render(self, task: Task) -> Text:
            if (task.elapsed or 0.0) < _PATIENCE_S:
                return Text("")
            parts = (column.render(task) for column in self._columns)
            return Text(" ").join(part for part in parts if isinstance(part, Text))

    with Progress(_AfterPatience(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda new_text: bar.update(task, description=new_text)
