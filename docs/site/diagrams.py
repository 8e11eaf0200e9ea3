"""Draw the Mermaid diagrams of the pages as SVG.

A code host draws Mermaid itself. The site must load nothing from elsewhere, and Mermaid's own program has three
megabytes. The pages need only three kinds of diagrams, so this module draws them when the site is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

CHARACTER = 7.3
"""Width of a character in pixels, at 13 pixels, and a little more: the font of the reader is not known."""
PORT = 22
"""Height of a row in which one line leaves or reaches a box: a label fits above it."""
LANE = 14
"""Distance between vertical lines."""
MARGIN = 16


class DiagramError(ValueError):
    """A diagram uses a part of Mermaid that this module does not draw."""


@dataclass(frozen=True)
class Edge:
    """An arrow between boxes, which are numbered from top to bottom."""

    source: int
    target: int
    label: str

    @property
    def is_upward(self) -> bool:
        return self.target < self.source


def draw_diagram(source: str) -> str:
    """Return the SVG of a Mermaid diagram.

    Args:
        source: the text between the fences. The first line names the kind of the diagram.

    Raises:
        DiagramError: the kind or a line is not among those that this module draws.
    """
    first, *lines = [line.strip() for line in source.strip().splitlines() if line.strip()]
    kind = first.split()[0]
    if kind not in _KINDS:
        raise DiagramError(f"Cannot draw a diagram of the kind '{kind}'. Use one of {', '.join(_KINDS)}.")
    return _KINDS[kind](lines)


# -- sequence diagrams ----------------------------------------------------------------------------------


def _draw_sequence(lines: Sequence[str]) -> str:
    names: dict[str, str] = {}
    messages: list[tuple[str, str, bool, str]] = []
    for line in lines:
        if participant := re.fullmatch(r"participant (\w+)(?: as (.+))?", line):
            names[participant[1]] = participant[2] or participant[1]
        elif message := re.fullmatch(r"(\w+)(--?)>>(\w+): (.+)", line):
            messages.append((message[1], message[3], message[2] == "--", message[4]))
        else:
            raise DiagramError(f"Cannot draw the line '{line}' of a sequence diagram.")
    numbers = {name: number for number, name in enumerate(names)}
    for source, target, *_ in messages:
        for name in {source, target} - {*names}:
            raise DiagramError(f"'{name}' is not a participant. Add a line 'participant {name}'.")
    return _lay_out_sequence(
        list(names.values()), [(numbers[s], numbers[t], dashed, text) for s, t, dashed, text in messages]
    )


def _lay_out_sequence(names: Sequence[str], messages: Sequence[tuple[int, int, bool, str]]) -> str:
    centres = _place_columns(names, messages)
    row, top = 40, 50
    bottom = top + row * len(messages) + 10
    parts = [_line(centre, top - 14, centre, bottom, "lifeline") for centre in centres]
    parts += [_box(centre, 22, name) for centre, name in zip(centres, names, strict=True)]
    right = centres[-1] + len(names[-1]) * CHARACTER / 2 + MARGIN
    for number, (source, target, dashed, text) in enumerate(messages, 1):
        y = top + row * number - 8
        style = "arrow dashed" if dashed else "arrow"
        start, end = centres[source], centres[target]
        if source == target:
            parts.append(_path(f"M{start} {y - 12} h26 v14 h-22", style))
            parts.append(_text(start + 34, y, text, "start"))
            right = max(right, start + 34 + len(text) * CHARACTER + MARGIN)
        else:
            parts.append(_path(f"M{start} {y} H{end - 4 if end > start else end + 4}", style))
            parts.append(_text((start + end) / 2, y - 7, text))
    return _svg(right, bottom + 6, parts, f"Sequence: {', '.join(names)}")


def _place_columns(names: Sequence[str], messages: Sequence[tuple[int, int, bool, str]]) -> list[float]:
    """Return the centre of each column, so that every text has room between two columns."""
    widths = [len(name) * CHARACTER + 24 for name in names]
    centres = [MARGIN + widths[0] / 2]
    for right in range(1, len(names)):
        centre = centres[-1] + (widths[right - 1] + widths[right]) / 2 + 24
        for source, target, _, text in messages:
            width = len(text) * CHARACTER
            low, high = sorted((source, target))
            if low < high == right:
                centre = max(centre, centres[low] + width + 20)
            elif source == target == right - 1:
                centre = max(centre, centres[right - 1] + width + 60)
        centres.append(centre)
    return centres


# -- states and flows -----------------------------------------------------------------------------------


def _draw_states(lines: Sequence[str]) -> str:
    boxes: dict[str, int] = {}
    edges = []
    for line in lines:
        edge = re.fullmatch(r"(\S+) --> ([^\s:]+)(?: ?: (.+))?", line)
        if not edge:
            raise DiagramError(f"Cannot draw the line '{line}' of a state diagram.")
        source = "start" if edge[1] == "[*]" else edge[1]
        target = "end" if edge[2] == "[*]" else edge[2]
        numbers = [boxes.setdefault(name, len(boxes)) for name in (source, target)]
        edges.append(Edge(*numbers, edge[3] or ""))
    return _lay_out_boxes([*boxes], edges, "States")


def _draw_flow(lines: Sequence[str]) -> str:
    node = r"(\w+)(?:\[\(?\"?([^\"\]]+?)\"?\)?\])?"
    names: dict[str, str] = {}
    numbers: dict[str, int] = {}
    edges = []
    for line in lines:
        edge = re.fullmatch(rf"{node} (?:-- \"([^\"]+)\" )?--> {node}", line)
        if not edge:
            raise DiagramError(f"Cannot draw the line '{line}' of a flowchart.")
        for identifier, name in ((edge[1], edge[2]), (edge[4], edge[5])):
            numbers.setdefault(identifier, len(numbers))
            names[identifier] = (name or names.get(identifier, identifier)).replace("<br/>", " ")
        edges.append(Edge(numbers[edge[1]], numbers[edge[4]], edge[3] or ""))
    return _lay_out_boxes([names[identifier] for identifier in numbers], edges, "Flow")


def _lay_out_boxes(names: Sequence[str], edges: Sequence[Edge], title: str) -> str:
    """Draw the boxes below each other: arrows down are at the right, arrows up at the left.

    Each arrow has a row of its own at both of its boxes, and a vertical line of its own. So no two arrows share a
    line, whatever the diagram.
    """
    sides = [[edge for edge in edges if edge.is_upward is upward] for upward in (True, False)]
    heights = [
        max(
            PORT * max(sum((edge.source == box) + (edge.target == box) for edge in side) for side in sides),
            PORT + 12,
        )
        for box in range(len(names))
    ]
    tops = [MARGIN + sum(heights[:box]) + 18 * box for box in range(len(names))]
    width = max(len(name) for name in names) * CHARACTER + 28
    left_room, right_room = (_side_width(side) for side in sides)
    left = MARGIN + left_room
    parts = [
        *_draw_side(sides[0], tops, left, -1),
        *_draw_side(sides[1], tops, left + width, 1),
        *(
            _box(left + width / 2, top + height / 2, name, width, height)
            for name, top, height in zip(names, tops, heights, strict=True)
        ),
    ]
    return _svg(
        left + width + right_room + MARGIN, tops[-1] + heights[-1] + MARGIN, parts, f"{title}: {', '.join(names)}"
    )


def _side_width(edges: Sequence[Edge]) -> float:
    labels = max((len(edge.label) for edge in edges), default=0) * CHARACTER
    return labels + 16 + LANE * len(edges) if edges else 0


def _draw_side(edges: Sequence[Edge], tops: Sequence[float], border: float, direction: int) -> list[str]:
    """Draw the arrows of one side. direction: 1 for the right side, -1 for the left."""
    labels = max((len(edge.label) for edge in edges), default=0) * CHARACTER + 16
    # Short arrows run near the boxes, so that they cross few others.
    lanes = sorted(range(len(edges)), key=lambda index: abs(edges[index].target - edges[index].source))
    used = [0] * len(tops)
    parts = []

    def take_row(box: int) -> float:
        used[box] += 1
        return tops[box] + PORT * used[box] - PORT / 2 + 6

    for lane, index in enumerate(lanes):
        edge = edges[index]
        start, end = take_row(edge.source), take_row(edge.target)
        x = border + direction * (labels + LANE * lane)
        parts.append(_path(f"M{border} {start} H{x} V{end} H{border + direction * 4}", "arrow"))
        if edge.label:
            parts.append(_text(border + direction * 8, start - 5, edge.label, "start" if direction > 0 else "end"))
    return parts


# -- SVG ------------------------------------------------------------------------------------------------


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    marker = (
        '<defs><marker id="lakemq-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    )
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px;min-width:min({width:.0f}px,32rem)">{marker}{"".join(parts)}</svg>'
    )


def _box(x: float, y: float, name: str, width: float | None = None, height: float = 28) -> str:
    width = width or len(name) * CHARACTER + 20
    corner = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}"'
    return f'<rect {corner} width="{width:.1f}" height="{height:.1f}" rx="5"/>{_text(x, y + 4, name)}'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _path(data: str, style: str) -> str:
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", data)
    return f'<path class="{style}" d="{rounded}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


_KINDS: dict[str, Callable[[Sequence[str]], str]] = {
    "sequenceDiagram": _draw_sequence,
    "stateDiagram-v2": _draw_states,
    "flowchart": _draw_flow,
}
