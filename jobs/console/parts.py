"""The parts of a page as values. `page.html` draws each kind, so that all pages look and behave alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lakemq.jobs.console.charts import Chart


@dataclass(frozen=True)
class Link:
    """A text that leads to another page."""

    text: str
    href: str


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    kind: ClassVar[str] = "facts"
    title: str
    pairs: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Table:
    """Rows with columns. A cell is a number, a text, a Link or a PayloadView. empty: the sentence without rows."""

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    empty: str = "There is nothing to show."
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A chart."""

    kind: ClassVar[str] = "picture"
    chart: Chart

    @property
    def title(self) -> str:
        """The title of the chart."""
        return self.chart.title


@dataclass(frozen=True)
class Field:
    """An input of a form. choices: of a list to choose from; rows: of a text with several lines."""

    name: str
    label: str
    value: str = ""
    choices: Sequence[str] = ()
    rows: int = 0
    is_hidden: bool = False
    is_secret: bool = False


@dataclass(frozen=True)
class Form:
    """A form. method: `get` for what only reads; `post` with a token against foreign sites."""

    kind: ClassVar[str] = "form"
    title: str
    action: str
    fields: Sequence[Field]
    button: str
    method: str = "get"
    is_change: bool = False


@dataclass(frozen=True)
class TextBlock:
    """A text in its own lines, such as a payload."""

    kind: ClassVar[str] = "block"
    title: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Notice:
    """A sentence that stands out. level: info, good or bad."""

    kind: ClassVar[str] = "notice"
    text: str
    level: str = "info"
    title: str = ""


@dataclass(frozen=True)
class Actions:
    """Links to what can be done with the object of the page."""

    kind: ClassVar[str] = "actions"
    links: Sequence[Link]
    title: str = ""


Part = Facts | Table | Picture | Form | TextBlock | Notice | Actions


@dataclass(frozen=True)
class Page:
    """A page: its title and its parts, from top to bottom."""

    title: str
    parts: Sequence[Part]
    trail: Sequence[Link] = field(default_factory=tuple)
