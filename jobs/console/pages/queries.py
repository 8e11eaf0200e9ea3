"""Shared by pages that show results of SQL: what to show without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakemq.errors import LakeMQError, MissingExtra
from lakemq.jobs.console.console import NotPossible
from lakemq.jobs.console.parts import Notice, Part


def draw_or_explain(title: str, draw: Callable[[], Sequence[Part]]) -> list[Part]:
    """Return parts that need SQL, or a sentence that says why they are not there."""
    try:
        return list(draw())
    except MissingExtra as error:
        return [Notice(f"{title} needs SQL: {error.expected}.", title=title)]
    except (LakeMQError, NotPossible) as error:
        return [Notice(f"{title} cannot be read now: {error}", "bad", title)]
