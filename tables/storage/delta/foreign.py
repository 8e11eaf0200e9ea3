"""Find commits of other writers to tables that only LakeMQ should write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ...specs.inbox import INBOX
from ...specs.registry import TABLES
from .log_entry import CREATION, ENGINE, OPERATION
from .store import NewerTable, NotATable, Store

_OUR_OPERATIONS = (OPERATION, CREATION)
"""LakeMQ's own operations in the tables' history. Anything else is foreign."""

_MAINTENANCE = ("OPTIMIZE", "VACUUM", "SET TBLPROPERTIES")


@dataclass(frozen=True)
class ForeignCommit:
    """A commit of another writer.

    description: operation, writer and time. keeps_rows: it was maintenance.
    """

    table: str
    version: int
    description: str
    keeps_rows: bool

    def __str__(self) -> str:
        return f"{self.table} version {self.version}: {self.description}"


def find_foreign_commits(store: Store) -> Iterator[ForeignCommit]:
    """Yield foreign commits as far back as the logs go, without `inbox` and tables that cannot be opened."""
    for spec in TABLES:
        if spec.name == INBOX.name:
            continue
        try:
            commits = store.open(spec).commits_after(-1)
        except (NotATable, NewerTable):
            continue
        for commit in commits:
            if text := _describe_foreign(commit):
                yield ForeignCommit(spec.name, int(commit["version"]), text, text.startswith(_MAINTENANCE))


def _describe_foreign(commit: Mapping[str, Any]) -> str:
    """Describe a commit, its writer and time; empty if it is LakeMQ's own."""
    engine, operation = str(commit.get("engineInfo")), str(commit.get("operation"))
    mode = str((commit.get("operationParameters") or {}).get("mode", ""))
    if engine.startswith(ENGINE) and operation in _OUR_OPERATIONS:
        return ""
    at = datetime.fromtimestamp(int(commit.get("timestamp", 0)) / 1000, timezone.utc)
    when = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{operation}{f' ({mode})' if mode else ''} by {engine} at {when}Z"
