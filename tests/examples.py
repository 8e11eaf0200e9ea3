"""On how many examples a property is tried: many, or few where all must be over in seconds.

$LAKEMQ_FEW_EXAMPLES says so; `make test-fast` sets it.
"""

from __future__ import annotations

import os

from hypothesis import settings

_FEW = "LAKEMQ_FEW_EXAMPLES" in os.environ


def number_of(many: int) -> int:
    return max(5, many // 10) if _FEW else many


def examples(many: int = 100) -> settings:
    """many: where time is no matter; no single one has a deadline."""
    return settings(max_examples=number_of(many), deadline=None)
