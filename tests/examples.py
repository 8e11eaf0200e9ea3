"""How many examples a property tries: many, or few if $LAKEMQ_FEW_EXAMPLES is set.

`make test-fast` sets it, because its tests must end within seconds.
"""

from __future__ import annotations

import os

from hypothesis import settings

_FEW = "LAKEMQ_FEW_EXAMPLES" in os.environ


def number_of(many: int) -> int:
    return max(5, many // 10) if _FEW else many


def examples(many: int = 100) -> settings:
    """Return the settings of a property. many: the number of examples without $LAKEMQ_FEW_EXAMPLES. None has a
    deadline.
    """
    return settings(max_examples=number_of(many), deadline=None)
