"""The objects of the step log, `steps/<20 digits>`: one per step, put if absent, removed in ascending order.

Every rule here follows from that order. An object at N is gone before the one at N + 1. So who finds the object that it
stood on unchanged, after it read the next ones, has read steps that nobody had removed and put again.
"""

from __future__ import annotations

from collections.abc import Callable

from .files import Files

STEPS_FOLDER = "steps"

KEPT_MS = 60_000
"""Least time that a step object stays after the watermark went beyond it."""

LOOK_MS = 15_000
"""Time after which a follower without news looks whether the step that it stands on is still there.

It must be well below KEPT_MS. A step that did not exist at the last look then still exists at the next one.
"""


class StepsGone(Exception):
    """Steps were removed that a follower had not read yet, or the namespace was replaced. Load it again."""


def step_name(step: int) -> str:
    """Return the name of a step's object."""
    return f"{STEPS_FOLDER}/{step:020d}"


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
