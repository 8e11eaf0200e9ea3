"""A report: text, tables and plotly figures in one HTML file that needs no network."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lakemq.engine.namespace.extras import needs

with needs("report"):
    import plotly.graph_objects as go
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from lakemq.jobs.console.parts import Table, make_templates

INK, ACCENT, MUTED = "#1f2933", "#2563a8", "#c2ccd6"

_BUTTONS = {"displaylogo": False, "displayModeBar": False, "responsive": True}


class Section(NamedTuple):
    """A section of a report. source: the query behind it, shown on request."""

    title: str
    text: str
    figure: Markup | None
    table: Table | None
    source: str


@dataclass
class Report:
    """A report. Add its sections in reading order. tiles: figures with their captions."""

    title: str
    summary: str
    tiles: Iterable[tuple[str, str]] = ()
    sections: list[Section] = field(default_factory=list)

    def add_section(
        self, title: str, text: str, figure: go.Figure | None = None, table: Table | None = None, source: str = ""
    ) -> None:
        """Add a section. `source`: the query behind it, shown on request."""
        drawn = None
        if figure is not None:
            drawn = Markup(_apply_style(figure).to_html(full_html=False, include_plotlyjs=False, config=_BUTTONS))
        self.sections.append(Section(title, text, drawn, table, source))

    def write(self, path: Path) -> None:
        """Write the report as one file."""
        template = make_templates().get_template("report.html")
        path.write_text(template.render(report=self, plotly=Markup(get_plotlyjs())), encoding="utf-8")


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
