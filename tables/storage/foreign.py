"""Commits that somebody else has made to tables that only LakeMQ writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..specs.inbox import INBOX
from ..specs.registry import TABLES
from .log_entry import ENGINE
from .store import NewerTable, NotATable, Store

# The tables' own words for what LakeMQ does to them; anything else was somebody else.
_OUR_ENGINES = ("delta-rs", ENGINE)
_OUR_OPERATIONS = ("CREATE TABLE", "WRITE")


_MAINTENANCE = ("OPTIMIZE", "VACUUM", "SET TBLPROPERTIES")


@dataclass(frozen=True)
class ForeignCommit:
    """What was done to a table and by whom. keeps_rows: it was maintenance, after which the table says the same."""

    table: str
    version: int
    what: str
    keeps_rows: bool

    def __str__(self) -> str:
        return f"{self.table} version {self.version}: {self.what}"


def foreign_commits(store: Store) -> Iterator[ForeignCommit]:
    """As far back as the tables' logs go; tables that cannot be opened are passed over, and `inbox` is for others."""
    for spec in TABLES:
        if spec.name == INBOX.name:
            continue
        try:
            commits = store.open(spec).commits_after(-1)
        except (NotATable, NewerTable):
            continue
        for commit in commits:
            what = _foreign(commit)
            if what:
                yield ForeignCommit(spec.name, int(commit["version"]), what, what.startswith(_MAINTENANCE))


def _foreign(commit: Mapping[str, Any]) -> str:
    """What a commit was and who made it; empty if it may be LakeMQ's own, which only ever adds."""
    engine, operation = str(commit.get("engineInfo")), str(commit.get("operation"))
    mode = str((commit.get("operationParameters") or {}).get("mode", ""))
    if engine.startswith(_OUR_ENGINES) and operation in _OUR_OPERATIONS and mode != "Overwrite":
        return ""
    at = datetime.fromtimestamp(int(commit.get("timestamp", 0)) / 1000, timezone.utc)
    when = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{operation}{f' ({mode})' if mode else ''} by {engine} at {when}Z"
