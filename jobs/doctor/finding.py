"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of a check. `mend` says how to fix the problem. If the check is ok, it is advice, or empty."""

    check: str
    ok: bool
    found: str
    mend: str = ""

    @property
    def state(self) -> str:
        """`FINDING`: something must be mended. `advice`: it works, and something could be better. Else `ok`."""
        return "FINDING" if not self.ok else "advice" if self.mend else "ok"
