"""Clients and the leader: letters, answers, the last answer of each client, kept for a repeat; and the lease."""

from dataclasses import dataclass

import msgspec

from ..errors import Refusal
from .base import Record
from .kinds import AnyRequest, AnyResult


class Unreadable(msgspec.Struct, frozen=True):
    """Stands for a request that cannot be read, or is of a newer version. It is refused; its neighbours are not."""

    refusal: Refusal


class Letter(msgspec.Struct, frozen=True):
    """Requests that a client sends together. They are decided in one step, in order.

    namespace_id: the namespace that the client has opened; empty if the client does not say.
    """

    client_id: str
    number: int
    requests: list[AnyRequest | Unreadable]
    sent_at_ms: int
    namespace_id: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The answer to a letter: one result per request."""

    client_id: str
    number: int
    step: int
    results: list[AnyResult]


class Answered(Record, frozen=True, tag="answered"):
    """A letter was decided with these results. A client's last results are kept for a repeat."""

    client_id: str
    number: int
    results: list[AnyResult]

    @property
    def subject(self) -> str:
        return self.client_id


class ClientRemoved(Record, frozen=True, tag="client_removed"):
    """A client was silent for too long, or left a gap in its letters."""

    client_id: str
    reason: str

    @property
    def subject(self) -> str:
        return self.client_id


@dataclass
class Client:
    """A client process: its last letter and the results, kept for a repeat after a crash."""

    number: int
    results: list[AnyResult]
    seen_at_ms: int


# The lease of the leader.


class LeaderElected(Record, frozen=True, tag="leader_elected"):
    """A sequencer took or renewed the lease. An empty leader means that the lease was given back."""

    leader: str
    epoch: int
    lease_ms: int

    @property
    def subject(self) -> str:
        return self.leader


RECORDS = (
    Answered,
    ClientRemoved,
    LeaderElected,
)
