"""A report: text, tables and plotly figures in one HTML file that needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from lakemq.engine.namespace.extras import needs

with needs("report"):
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs

INK, ACCENT, MUTED = "#1f2933", "#2563a8", "#c2ccd6"

_STYLE = """
body { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1f2933; background: #f4f6f8; margin: 0 }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px }
h1 { font-size: 28px; margin: 0 0 4px }
h2 { font-size: 20px; margin: 0 0 4px }
p { margin: 4px 0 12px; color: #52606d }
section, .tile { background: #fff; border: 1px solid #e1e6eb; border-radius: 8px }
section { padding: 20px; margin-top: 20px; overflow-x: auto }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 12px; margin-top: 20px }
.tile { padding: 14px 16px }
.tile b { display: block; font-size: 24px; font-variant-numeric: tabular-nums }
.tile span { color: #52606d; font-size: 14px }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums }
th { text-align: left; color: #52606d; font-weight: 600; border-bottom: 2px solid #e1e6eb }
th, td { padding: 5px 14px 5px 0 }
td { border-bottom: 1px solid #eef1f4 }
.number { text-align: right }
details { margin-top: 12px }
summary { cursor: pointer; color: #2563a8; font-size: 14px }
pre { background: #f4f6f8; border-radius: 6px; padding: 12px; font-size: 13px; overflow-x: auto; margin: 8px 0 0 }
"""


@dataclass
class Report:
    """A report. Add its parts in reading order."""

    title: str
    summary: str
    _parts: list[str] = field(default_factory=list)

    def add_tiles(self, tiles: Iterable[tuple[str, str]]) -> None:
        """Add a row of figures with their captions."""
        cells = (f'<div class="tile"><b>{_text(n)}</b><span>{_text(caption)}</span></div>' for n, caption in tiles)
        self._parts.append(f'<div class="tiles">{"".join(cells)}</div>')

    def add_section(
        self,
        title: str,
        text: str,
        figure: go.Figure | None = None,
        columns: Sequence[str] = (),
        rows: Iterable[Sequence[object]] = (),
        source: str = "",
    ) -> None:
        """Add a section. `source`: the query behind it, shown on request."""
        body = [f"<h2>{_text(title)}</h2><p>{_text(text)}</p>"]
        if figure is not None:
            body.append(_apply_style(figure).to_html(full_html=False, include_plotlyjs=False, config=_BUTTONS))
        if columns:
            body.append(_table(columns, rows))
        if source:
            body.append(f"<details><summary>The query</summary><pre>{_text(source)}</pre></details>")
        self._parts.append(f"<section>{''.join(body)}</section>")

    def write(self, path: Path) -> None:
        """Write the report as one file."""
        path.write_text(
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>{_text(self.title)}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>"
            f"<body><main><h1>{_text(self.title)}</h1><p>{_text(self.summary)}</p>{''.join(self._parts)}</main></body></html>",
            encoding="utf-8",
        )


_BUTTONS = {"displaylogo": False, "displayModeBar": False, "responsive": True}


def _apply_style(figure: go.Figure) -> go.Figure:
    grid = {"gridcolor": "#eef1f4", "zerolinecolor": "#c2ccd6", "automargin": True}
    figure.update_layout(
        template="plotly_white",
        font={"family": 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', "size": 13, "color": INK},
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        colorway=[ACCENT, MUTED],
        legend={"orientation": "h", "y": 1.08, "x": 0},
        bargap=0.25,
    )
    return figure.update_xaxes(**grid).update_yaxes(**grid)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    listed = [list(row) for row in rows]
    kinds = [
        ' class="number"' if all(isinstance(row[i], int | float | None) for row in listed) else ""
        for i in range(len(columns))
    ]
    head = "".join(f"<th{kind}>{_text(name)}</th>" for name, kind in zip(columns, kinds, strict=True))
    lines = (
        "<tr>"
        + "".join(f"<td{kind}>{_format_cell(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in listed
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _format_cell(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return f"{cell:%Y-%m-%d %H:%M}"
    return f"{cell:,}" if isinstance(cell, int | float) else _text(str(cell))


def _text(text: str) -> str:
    return html.escape(text)
