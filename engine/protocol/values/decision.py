"""The inputs of a decision beside state and request, and its output."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from lakemq.tables.specs.messages import FileFacts

from ..parameters import Value
from .journal import JournalEntry
from .kinds import AnyResult
from .log import DataFile, PendingFile


@dataclass(frozen=True)
class Limits:
    """How long silence lasts before something is forgotten, and the longest timeout of a transaction.

    offsets_retention_ms: for groups without a setting of their own; -1: for good. topic_defaults, group_defaults:
    settings of new topics and groups that the request does not name. makes_final: whether messages become final.
    """

    client_expiration_ms: int = 3_600_000
    producer_id_expiration_ms: int = 86_400_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_max_timeout_ms: int = 900_000
    offsets_retention_ms: int = 604_800_000
    topic_defaults: Mapping[str, Value] = field(default_factory=dict)
    group_defaults: Mapping[str, Value] = field(default_factory=dict)
    makes_final: bool = False


@dataclass(frozen=True)
class InlineRows:
    """The place where the sequencer puts the rows of a letter: `record_count` rows of `file` from `first_row` on."""

    file: DataFile | PendingFile
    first_row: int
    record_count: int


@dataclass(frozen=True)
class DecisionInputs:
    """The facts that a decision needs and the state does not hold.

    inline: the place of the rows of a request without files. facts: for each file id of the request, the file as the
    store has it; None if it does not exist.
    """

    limits: Limits = field(default_factory=Limits)
    inline: InlineRows | None = None
    facts: Mapping[int, FileFacts | None] = field(default_factory=dict)


NO_INPUTS = DecisionInputs()


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The result for the client, and the entries for the journal. Without entries nothing changes."""

    result: AnyResult
    entries: tuple[JournalEntry, ...] = ()
