"""The objects of the step log, `steps/<20 digits>`: one per step, put only if the name is free.

Step 0 marks a new namespace and decides nothing; decisions begin at step 1. Old steps may be removed, by one rule: one
after the other in ascending order, each only when the one before is gone, and never the newest. So if a reader finds
the object on which it stood unchanged after it has read the next ones, none of these was removed and put again.
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from ..object_stores.files import Files
from ..object_stores.objects import IdentifiedObject

STEPS_FOLDER = "steps"
_DIGITS = 20
_STEP = re.compile(rf"[0-9]{{{_DIGITS}}}")

KEPT_MS = 60_000
"""Least time that a step object stays after all tables hold a later step."""

LOOK_MS = 15_000
"""Time after which a follower checks that the step that it stands on is still there.

It must be well below KEPT_MS: a step that is put after one check cannot be removed before the next.
"""

CLOSE_MS = 30_000
"""Time between two steps, by the store's clock, up to which the later one surely follows the earlier one.

It must be well below KEPT_MS. An object that a leader puts under the name of a removed step is at least KEPT_MS younger
than the step before that name.
"""


class StepsGone(Exception):
    """Steps were removed that a follower had not read yet, or the namespace was replaced. Load it again."""


class StepLost(Exception):
    """A step is not there although a later one is. Nobody removed it as an old one: the step before it is there.

    Attributes:
        step: the first step that is missing.
        newest: the newest step.
    """

    def __init__(self, step: int, newest: int) -> None:
        super().__init__(f"{step_name(step)} is missing, and {step_name(newest)} is there")
        self.step, self.newest = step, newest


def step_name(step: int) -> str:
    """Return the name of a step's object."""
    return f"{STEPS_FOLDER}/{step:0{_DIGITS}d}"


def list_steps(files: Files) -> list[int]:
    """Return the numbers of all step objects, in order."""
    names = (path.rpartition("/")[2] for path in files.list(STEPS_FOLDER))
    return [int(name) for name in names if _STEP.fullmatch(name)]


class StepFollower:
    """Reads step objects in order, from the one after the step that it stands on. Not thread-safe.

    Attributes:
        step: the last step read.
        identity: of its object.
    """

    def __init__(self, files: Files, step: int, steady_ms: Callable[[], int]) -> None:
        """steady_ms: returns a time that only goes forward, and on while the machine sleeps. Raises StepsGone."""
        self._files, self._steady_ms = files, steady_ms
        self._verified_at_ms: int | None = None
        """When this was last known to be the newest step."""
        self._modified_ms: int | None = None
        """When this step was put, by the store's clock, if it was read."""
        identity = files.identity(step_name(step))
        if identity is None:
            raise StepsGone(f"step {step} is gone")
        self.step, self.identity = step, identity

    def read(self, checks_end: bool = False) -> list[bytes]:
        """Return the objects of all newer steps, in order; none if there is no newer one yet.

        This costs a request per step, and one for the step that is not there yet. If the object that the follower stood
        on may have been removed meanwhile, one more request checks that it has not been. That is so in two cases:

        - The follower was not at the newest step within the last LOOK_MS, by its own clock. Otherwise every newer step
          was put within that time, and none can be removed yet.
        - Two steps are not close, by the store's clock. The follower's own clock may have stood still, as in a virtual
          machine that was suspended, and a late leader may have put a step under the name of a removed one.

        The step that is not there yet may be lost instead. A list of the steps tells: then a later one is there. It is
        made in the first of these cases, because a leader that lives puts a step more often than that.

        Args:
            checks_end: list the steps in any case, so that a lost step is noticed at once.

        Raises:
            StepsGone: the step on which the follower stood was removed or replaced.
            StepLost: the next step is lost.
        """
        # a step after those that are read now is put after this time
        asked_at_ms, newer_steps = self._steady_ms(), self._read_newer()
        was_newest, end = self._was_newest_lately(), self.step + len(newer_steps)
        is_certain = was_newest and self._are_close(newer_steps)
        newest = self._find_step_after_gap(end) if checks_end or not was_newest else None
        if not (is_certain and newest is None) and self._files.identity(step_name(self.step)) != self.identity:
            raise StepsGone(f"step {self.step} is gone")
        if newest is not None:
            raise StepLost(end + 1, newest)
        if newer_steps or not is_certain:
            self._verified_at_ms = asked_at_ms
        if newer_steps:
            self.step = end
            self.identity, self._modified_ms = newer_steps[-1].identity, newer_steps[-1].modified_ms
        return [step.body for step in newer_steps]

    def _read_newer(self) -> list[IdentifiedObject]:
        """Return the objects of the next steps, up to the one that is not there."""
        newer_steps: list[IdentifiedObject] = []
        while True:
            try:
                newer_steps.append(self._files.get_identified(step_name(self.step + len(newer_steps) + 1)))
            except FileNotFoundError:
                return newer_steps

    def _find_step_after_gap(self, end: int) -> int | None:
        """Return the newest step if the one after `end` is lost; None: `end` is the newest, or the next one is there.

        The list comes first: each step is put after the one before, so one that is listed has all before it.
        """
        newest = max(list_steps(self._files), default=0)
        return newest if newest > end and self._files.identity(step_name(end + 1)) is None else None

    def _was_newest_lately(self) -> bool:
        return self._verified_at_ms is not None and self._steady_ms() - self._verified_at_ms < LOOK_MS

    def _are_close(self, newer_steps: Sequence[IdentifiedObject]) -> bool:
        """Return whether each step was put soon after the one before. False if the time of one is unknown."""
        times_ms = [self._modified_ms, *(step.modified_ms for step in newer_steps)]
        return not newer_steps or all(
            before is not None and after is not None and abs(after - before) < CLOSE_MS
            for before, after in pairwise(times_ms)
        )
