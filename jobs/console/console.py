"""The objects that all pages of a console read from: one connection, one observer, one collector; and its settings."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakemq.engine.client.live_tables import make_live_readers
from lakemq.engine.client.sequencers import describe_silence, read_leadership
from lakemq.engine.client.sql.query import BoundedResult, QueryLimits, run_bounded_query
from lakemq.engine.client.sql.query_process import run_query_in_process
from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import InvalidConfig, LakeMQError
from lakemq.tables.storage.coordination.leader_locks import LeaderLocks

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.operator_tools import Observer
    from lakemq.jobs.doctor.namespace import Finding
    from lakemq.jobs.metrics.server import NamespaceCollector


# The settings of a console, checked before it listens.


TOKEN_VARIABLE = "LAKEMQ_CONSOLE_TOKEN"
SHORTEST_TOKEN = 16
"""Characters. A shorter token could be guessed, as nothing limits the number of attempts over days."""
_VISITOR = re.compile(r"(?=.{1,40}$)[A-Za-z0-9]+(?:[._][A-Za-z0-9]+)*")
"""Names of tokens that stay unchanged in the id of a client."""


@dataclass(frozen=True)
class ConsoleSettings:
    """Where a console listens, and what it allows.

    Attributes:
        host, port: the address. Port 0 takes a free one.
        token: bearer token that every request must show; None: no request needs one. Several lines have a token each,
            after a name and one space.
        allow_changes: whether the console may change the namespace.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = field(default=None, repr=False)
    allow_changes: bool = False

    @property
    def tokens(self) -> list[tuple[str, str]]:
        """Names and tokens. The name of a visitor is empty if the token has none."""
        lines = (line.split(" ", 1) for line in (self.token or "").splitlines() if line.strip())
        return [(words[0] if words[1:] else "", words[-1]) for words in lines]


def make_settings(host: str, port: int, token_file: Path | None, allow_changes: bool) -> ConsoleSettings:
    """Return the settings.

    Args:
        host: the address to listen on.
        port: the port to listen on.
        token_file: a file that holds the token; without it, the environment's LAKEMQ_CONSOLE_TOKEN counts.
        allow_changes: whether the console may change the namespace.

    Raises:
        InvalidConfig: the token is missing, too short, or cannot be read.
    """
    token = _read_token(token_file)
    settings = ConsoleSettings(host, port, token, allow_changes)
    if token is not None and (flaw := _find_flaw(settings.tokens)):
        raise InvalidConfig(
            "The console's tokens cannot be used.",
            found=flaw,
            expected="in each line a token, or a name, one space and a token; each name and token once. A name has up"
            " to 40 of [A-Za-z0-9], with single '.' or '_' between them. A token has at least"
            f" {SHORTEST_TOKEN} printable ASCII characters and no space, such as those of `openssl rand -hex 32`",
        )
    if token is None and (allow_changes or not is_loopback(host)):
        raise InvalidConfig(
            "The console needs a token as soon as other machines can reach it, or if it may change something.",
            found="--allow-changes without a token" if allow_changes else host,
            expected=f"--token-file FILE or ${TOKEN_VARIABLE}; or an address of this machine alone, such as 127.0.0.1,"
            " without --allow-changes",
        )
    return settings


def _find_flaw(tokens: list[tuple[str, str]]) -> str:
    """Return why tokens cannot be used, or "". It shows none of them: what looks like a name may be half a token."""
    for number, (name, token) in enumerate(tokens, 1):
        if name and not _VISITOR.fullmatch(name):
            return f"a text before the first space of token {number}, which cannot be a name"
        if " " in token or not (token.isascii() and token.isprintable()):
            return f"a space or another character in token {number}"
        if len(token) < SHORTEST_TOKEN:
            return f"{len(token)} characters in token {number}"
    is_repeated = any(len({*column}) < len(tokens) for column in zip(*tokens, strict=True))
    return "the same name or token twice" if is_repeated else "" if tokens else "no token"


def _read_token(token_file: Path | None) -> str | None:
    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            "The file with the console's token cannot be read.",
            found=f"{token_file}: {error}",
            expected="a text file with a token in each line",
        ) from None


def is_loopback(host: str) -> bool:
    """Return whether an address, or the name of a host, is this machine's alone."""
    if host.strip("[]").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# The objects that all pages read from.


QUERY_LIMITS = QueryLimits(timeout_s=20.0, max_rows=1_000, memory_mb=1_024)
"""Bounds of a query, unless its console has others. It must not take the memory of a sequencer in the same process."""


_query_lock = threading.Lock()
"""One query runs at a time, of all namespaces: the machine is one."""


class NotPossible(Exception):
    """The namespace does not allow this now. The message says why, and what to do."""


class Busy(NotPossible):
    """The console does as much as it can at a time."""


@dataclass(frozen=True)
class Console:
    """The namespace as pages see it.

    Attributes:
        mq: the connection.
        observer: groups, transactions and delayed messages as of one step.
        collector: the metrics.
        settings: what the console allows.
        examine: runs the doctor's checks.
        query_limits: bounds of a query.
    """

    mq: Connection
    observer: Observer
    collector: NamespaceCollector
    settings: ConsoleSettings
    examine: Callable[[], Sequence[Finding]]
    query_limits: QueryLimits = QUERY_LIMITS

    @property
    def place(self) -> str:
        """Where the namespace is: its URI, or the path of its folder without links."""
        root = self.mq.namespace.files.root
        return root if "://" in root else os.path.realpath(root)

    @property
    def identity(self) -> str:
        """A text that no other namespace has: neither a copy elsewhere, nor one that is created again here."""
        text = f"{self.mq.namespace.namespace_id} {self.place}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def check_identity(self, identity: str) -> None:
        """Raise NotPossible if a form was drawn for another namespace, which had this address before."""
        if identity != self.identity:
            raise NotPossible(
                f"Nothing was changed, because this form is not of {self.place}, which is at this address now. Another"
                " namespace was here before. Open the page again."
            )

    def run_sql(self, text: str) -> BoundedResult:
        """Run a visitor's query over the tables as of the last projection, in a process within `query_limits`.

        Raises:
            NotPossible: another query runs.
            InvalidRequest: the query fails, or takes too long.
            MissingExtra: the extra `sql` is not installed.
        """
        with self._lock_queries():
            live = make_live_readers(self.mq.namespace, lambda: self.observer)
            return run_query_in_process(self.mq.namespace, text, self.query_limits, live)

    def read_rows(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of a page. Raises as `run_sql`."""
        with self._lock_queries():
            namespace = self.mq.namespace
            return run_bounded_query(namespace, text, self.query_limits, take_snapshot(namespace.store)).rows

    @contextmanager
    def _lock_queries(self) -> Iterator[None]:
        if not _query_lock.acquire(timeout=self.query_limits.timeout_s):
            raise NotPossible("Another query runs, and only one runs at a time. Try again when it has ended.")
        try:
            yield
        finally:
            _query_lock.release()

    def describe_silence(self) -> str:
        """Return a sentence if the leader does not work, so that pages show the past; "" too if that cannot be read."""
        try:
            with self.observer.look() as observation:
                return describe_silence(read_leadership(self.mq.namespace.files, observation.state))
        except (LakeMQError, OSError):  # the page itself says what cannot be read
            return ""

    def check_leader(self) -> None:
        """Raise NotPossible if no sequencer would decide a request now."""
        leader = self.mq.state().leader
        if not leader or LeaderLocks(self.mq.namespace.files).is_dead(leader):
            raise NotPossible(
                "No sequencer leads, so nothing can be changed. Start one with `lakemq serve`, then try again."
            )


def quote_sql(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
