"""The objects of the step log, `steps/<20 digits>`: one per step, put only if the name is free.

Step 0 marks a new namespace and decides nothing; decisions begin at step 1. Old steps may be removed, by one rule: one
after the other in ascending order, each only when the one before is gone, and never the newest. So if a reader finds
the object on which it stood unchanged after it has read the next ones, none of these was removed and put again.
"""

from __future__ import annotations

from collections.abc import Callable

from ..object_stores.files import Files

STEPS_FOLDER = "steps"
_DIGITS = 20

KEPT_MS = 60_000
"""Least time that a step object stays after all tables hold a later step."""

LOOK_MS = 15_000
"""Time after which a follower without news looks whether the step that it stands on is still there.

It must be well below KEPT_MS: a step that is put after one look cannot be removed before the next.
"""


class StepsGone(Exception):
    """Steps were removed that a follower had not read yet, or the namespace was replaced. Load it again."""


def step_name(step: int) -> str:
    """Return the name of a step's object."""
    return f"{STEPS_FOLDER}/{step:0{_DIGITS}d}"


def list_steps(files: Files) -> list[int]:
    """Return the numbers of all step objects, in order."""
    names = (path.rpartition("/")[2] for path in files.list(STEPS_FOLDER))
    return [int(name) for name in names if len(name) == _DIGITS and name.isdecimal()]


class StepFollower:
    """Reads step objects in order, from the one after the step that it stands on. Not thread-safe.

    Attributes:
        step: the last step read.
        identity: of its object.
    """

    def __init__(self, files: Files, step: int, steady_ms: Callable[[], int]) -> None:
        """steady_ms: returns a time that only goes forward, and on while the machine sleeps. Raises StepsGone."""
        self._files, self._steady_ms = files, steady_ms
        self._looked_at_ms: int | None = None
        identity = files.identity(step_name(step))
        if identity is None:
            raise StepsGone(f"step {step} is gone")
        self.step, self.identity = step, identity

    def read(self) -> list[bytes]:
        """Return the objects of all newer steps, in order; none if there is no newer one yet.

        This costs a request per step, one that finds nothing, and one look at the object that the follower stood on.
        Without news there is no such look for up to LOOK_MS.

        Raises StepsGone.
        """
        begun_at_ms, identity = self._steady_ms(), self.identity
        bodies: list[bytes] = []
        try:
            while True:
                body, identity = self._files.get_identified(step_name(self.step + len(bodies) + 1))
                bodies.append(body)
        except FileNotFoundError:
            pass
        looked_at_ms = self._looked_at_ms
        if bodies or looked_at_ms is None or self._steady_ms() - looked_at_ms >= LOOK_MS:
            if self._files.identity(step_name(self.step)) != self.identity:
                raise StepsGone(f"step {self.step} is gone")
            self._looked_at_ms = begun_at_ms
        self.step, self.identity = self.step + len(bodies), identity
        return bodies
