"""The exit codes of the command, and which error ends in which."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended, for whoever started it."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    NOT_LEADER = 4
    DATA_REFUSED = 5


MEANINGS = {
    Exit.OK: "success",
    Exit.FAILED: "refused or failed",
    Exit.USAGE: "wrong usage",
    Exit.CONFIGURATION: "bad configuration (a setting, a settings file, or a path that holds no usable namespace)",
    Exit.NOT_LEADER: "another sequencer leads",
    Exit.DATA_REFUSED: "data was refused (all of it, or rows that went to `dead_letters`)",
}

_BY_NAME = {
    "INVALID_CONFIG": Exit.CONFIGURATION,
    "NOT_A_NAMESPACE": Exit.CONFIGURATION,
    "NEWER_FORMAT": Exit.CONFIGURATION,
    "NOT_LEADER": Exit.NOT_LEADER,
    "INVALID_RECORD": Exit.DATA_REFUSED,
    "INVALID_TIMESTAMP": Exit.DATA_REFUSED,
    "MESSAGE_TOO_LARGE": Exit.DATA_REFUSED,
}


def exit_of(told: str) -> Exit:
    """For an error as it is told: `NAME: message`."""
    return _BY_NAME.get(told.partition(":")[0], Exit.FAILED)


def all_codes() -> str:
    """All of them in a sentence."""
    return "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items())
