"""Tables of HTML, which notebooks show by `_repr_html_` instead of the plain repr."""

from collections.abc import Iterable
from html import escape

SHOWN_MESSAGES = 20
"""The most messages of a result that are read to show it."""
_MAX_CHARACTERS = 200


def build_html_table(caption: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table of rows. All text is escaped, and each cell is cut after 200 characters."""
    body = "".join([_build_row("th", columns), *(_build_row("td", row) for row in rows)])
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def build_field_table(described: object, caption: str) -> str:
    """Return a table of an object's fields."""
    return build_html_table(caption, ("field", "value"), vars(described).items())


def build_message_table(columns: Iterable[str], messages: Iterable[Iterable[object]], count: int) -> str:
    """Return a table of the first messages. count: how many there are."""
    rows = list(messages)
    caption = f"{count} messages" if len(rows) == count else f"{len(rows)} of {count} messages"
    return build_html_table(caption, columns, rows)


def _build_row(tag: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(_format_cell(cell))}</{tag}>' for cell in cells)}</tr>"


def _format_cell(cell: object) -> str:
    text = cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else str(cell)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
