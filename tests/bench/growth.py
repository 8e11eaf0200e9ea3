"""How the files and bytes of a namespace grow and shrink during use, as a chart."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

OUT = Path("bench-out")


def files_and_bytes(path: str) -> tuple[int, int]:
    """Return the number of files, and their bytes."""
    sizes = []
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            sizes.append(file.stat().st_size if file.exists() else 0)
    return len(sizes), sum(sizes)


@dataclass
class Growth:
    """Seconds since the start -> number of files, and their bytes."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)

    def most_files(self) -> int:
        return max(files for _, files, _ in self.samples)

    def draw(self, name: str) -> Path:
        """Write the chart as a page that needs no network."""
        figure = make_subplots(specs=[[{"secondary_y": True}]])
        at_s, files, sizes = zip(*self.samples, strict=True)
        figure.add_trace(go.Scatter(x=at_s, y=files, name="files"))
        figure.add_trace(go.Scatter(x=at_s, y=[size / 1e6 for size in sizes], name="MB"), secondary_y=True)
        figure.update_layout(title=name, xaxis_title="seconds", template="plotly_white")
        figure.update_yaxes(title_text="files", secondary_y=False)
        figure.update_yaxes(title_text="MB", secondary_y=True)
        OUT.mkdir(exist_ok=True)
        figure.write_html(page := OUT / f"{name}.html")
        return page


@contextmanager
def watch_growth(path: str, every_s: float = 1) -> Iterator[Growth]:
    """Sample the growth now and then while the block runs."""
    growth, start_s, stop = Growth(), time.monotonic(), threading.Event()

    def look() -> None:
        while True:
            growth.samples.append((time.monotonic() - start_s, *files_and_bytes(path)))
            if stop.wait(every_s):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield growth
    finally:
        stop.set()
        thread.join()
