"""The unions of all requests and all results, built from the lists of the subjects. Decoders take these unions.

A kind that is added to a subject's list is known everywhere.
"""

from typing import TYPE_CHECKING, Union

from ..errors import Refusal
from . import dead_letters, delays, deliveries, groups, log, offsets, producers, schedules, topics, transactions
from .base import Done, Request, Result

SUBJECTS = (topics, producers, log, delays, schedules, offsets, groups, deliveries, dead_letters, transactions)

_RESULTS: tuple[type[Result | Refusal], ...] = (
    Done,
    *(kind for subject in SUBJECTS for kind in subject.RESULTS),
    Refusal,
)
OUTCOMES = frozenset(str(kind.__struct_config__.tag) for kind in _RESULTS)
"""The tags that tell results apart."""

if TYPE_CHECKING:
    AnyRequest = Request
    AnyResult = Result | Refusal
else:
    AnyRequest = Union[tuple(kind for subject in SUBJECTS for kind in subject.REQUESTS)]  # noqa: UP007
    AnyResult = Union[_RESULTS]  # noqa: UP007
