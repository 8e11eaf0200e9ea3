"""A move that no table of transitions has is an error in tests, also in their child processes."""

from lakemq.engine.protocol.values.base import Transitions


def raise_for_defects() -> None:
    """Raise AssertionError for such a move in this process, where LakeMQ would log it and go on."""
    Transitions.report = staticmethod(_raise_defect)


def _raise_defect(defect: str) -> None:
    raise AssertionError(defect)
