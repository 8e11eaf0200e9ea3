"""The outcome of deciding one request: records to journal, and the result to reply."""

from __future__ import annotations

from dataclasses import dataclass

from .records import Decided
from .requests import AnyResult


@dataclass(frozen=True)
class Decision:
    """No record means that nothing changes."""

    result: AnyResult
    decided: tuple[Decided, ...] = ()
