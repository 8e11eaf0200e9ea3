"""What deciding one request is given, beside the state and the request, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakemq.tables.specs.messages import FileFacts

from .journal import JournalEntry
from .kinds import AnyResult
from .log import DataFile, PendingFile


@dataclass(frozen=True)
class Limits:
    """How long silence lasts before something is forgotten, and the longest a transaction may ask to stay open.

    offsets_retention_ms: of groups that have no setting of their own; -1: for good.
    """

    client_expiration_ms: int = 3_600_000
    producer_id_expiration_ms: int = 86_400_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_max_timeout_ms: int = 900_000
    offsets_retention_ms: int = 604_800_000


@dataclass(frozen=True)
class InlineRows:
    """Where the sequencer puts the rows that rode in a letter: `record_count` from row `first_row` of `file` on."""

    file: DataFile | PendingFile
    first_row: int
    record_count: int


@dataclass(frozen=True)
class Given:
    """inline: for a request without files, where its rows are; facts: file id -> what the store has of it, None where
    there is nothing, for every file that the request names.
    """

    limits: Limits = field(default_factory=Limits)
    inline: InlineRows | None = None
    facts: Mapping[int, FileFacts | None] = field(default_factory=dict)


NOTHING = Given()


@dataclass(frozen=True)
class Decision:
    """The result, for who asked, and the entries, for the journal: none means that nothing changes."""

    result: AnyResult
    entries: tuple[JournalEntry, ...] = ()
