"""Small steps leave nothing in the leader's state: it holds as much after eight thousand as after four.

`tests/bench/core_memory.py` takes a million steps.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.extended]

WARM_STEPS = 4_000
"""Each topic, partition and group is used, and each partition remembers as many batches as it may."""

STEPS = 4_000
KEPT_BLOCKS_PER_STEP = 0.05
"""An object that stays is at least one block. One that stays per step is 20 times this bound."""


def test_small_steps_leave_nothing_in_the_state() -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
        core_memory: Any = importlib.import_module("core_memory")
    core = core_memory.BareCore()
    before = core.take_steps(WARM_STEPS)
    after = core.take_steps(STEPS)
    assert after - before < STEPS * KEPT_BLOCKS_PER_STEP
