"""The doctor's checks of a namespace.

Nothing is changed, but for one small object that is put beside the tables and taken away again, to see whether that can
be done and what time the store gives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import pyarrow.compute as pc

from lakemq.engine.clock import SystemClock
from lakemq.engine.connection import Connection
from lakemq.engine.fetch.plan import beginning_offsets
from lakemq.engine.fetch.reader import OffsetRange, Reader
from lakemq.jobs.doctor import Finding
from lakemq.jobs.output import iso, one_line
from lakemq.jobs.probe import probe
from lakemq.tables.inbox import INBOX
from lakemq.tables.journal import JOURNAL
from lakemq.tables.registry import TABLES
from lakemq.tables.spec import SCHEMA_VERSION
from lakemq.tables.store import NewerTable, NotATable

SKEW_MS = 2_000
"""How far this clock may be from the store's, and the journal's time ahead of it."""

WAITING_MS = 10_000
"""How long a letter may wait before somebody should look."""

_SOME = 5
_MOST_LETTERS = 10_000

# The tables' own words for what LakeMQ does to them; anything else was somebody else.
_OUR_ENGINE = "delta-rs"
_OUR_OPERATIONS = ("CREATE TABLE", "WRITE")


def check_tables(mq: Connection) -> Finding:
    """All tables are there, ours, and of a version we know."""
    wrong: list[str] = []
    for spec in TABLES:
        try:
            mq.namespace.store.open(spec)
        except (NotATable, NewerTable) as error:
            wrong.append(one_line(str(error)))
    if wrong:
        mend = (
            f"Restore the table from a backup; one that is missing is made by: lakemq --path {mq.namespace.path} init"
        )
        return Finding("namespace", False, "; ".join(wrong), mend)
    return Finding("namespace", True, f"{mq.namespace.path}: {len(TABLES)} tables, schema version {SCHEMA_VERSION}")


def check_writable(mq: Connection) -> Finding:
    """Requests can be put."""
    try:
        probe(mq.namespace.files)
    except OSError as error:
        found = f"cannot be written: {error.strerror or error}"
        return Finding(
            "writable", False, found, "Fetching works; to publish or serve, give this user the right to write."
        )
    return Finding("writable", True, "objects can be put and deleted")


def check_clock(mq: Connection) -> Finding:
    """This machine's clock agrees with the store's, and the journal's time is not ahead of both."""
    before_ms = _now_ms()
    store_ms = probe(mq.namespace.files)
    skew_ms = 0 if store_ms is None else _outside(store_ms, before_ms, _now_ms())
    if abs(skew_ms) > SKEW_MS:
        found = f"the store's time is {skew_ms / 1000:+.1f} s from this clock"
        return Finding("clock", False, found, "Let both follow a time server (chrony, systemd-timesyncd).")
    ahead_ms = mq.state().now_ms - _now_ms()
    if ahead_ms > SKEW_MS:
        found = f"the journal's time is {ahead_ms / 1000:.1f} s ahead of this clock"
        mend = "A sequencer's clock was ahead: set the clocks right. LakeMQ's time waits for them and never goes back."
        return Finding("clock", False, found, mend)
    return Finding("clock", True, f"within {max(abs(skew_ms), 1)} ms of the store's")


def _outside(at_ms: int, first_ms: int, last_ms: int) -> int:
    return min(0, at_ms - first_ms) or max(0, at_ms - last_ms)


def check_sequencer(mq: Connection) -> Finding:
    """A sequencer leads and its journal moves; or none leads and nothing waits for one."""
    state = mq.state()
    version = mq.namespace.store.open(JOURNAL).version
    moved_ms = mq.namespace.files.modified_ms(f"journal/_delta_log/{version:020d}.json") or state.now_ms
    silent_ms = max(0, _now_ms() - moved_ms)
    last = f"the journal last moved at {_at(moved_ms)} (step {state.step}), {silent_ms / 1000:.1f} s ago"
    serve = f"lakemq --path {mq.namespace.path} serve"
    if not state.leader:
        waits = bool(mq.namespace.mailbox.waiting(1))
        return Finding("sequencer", not waits, f"nobody leads; {last}", f"Letters wait. Run: {serve}" if waits else "")
    leads = f"{state.leader} leads with epoch {state.leader_epoch}; {last}"
    if silent_ms > state.lease_ms + SKEW_MS:
        mend = f"It seems to be dead or stopped; another one takes over: {serve}"
        return Finding("sequencer", False, leads, mend)
    return Finding("sequencer", True, leads)


def check_mailbox(mq: Connection) -> Finding:
    """No letter waits for long."""
    waiting = mq.namespace.mailbox.waiting(_MOST_LETTERS)
    if not waiting:
        return Finding("mailbox", True, "no letter waits")
    count = f"letters that wait: {len(waiting)}{' or more' if len(waiting) == _MOST_LETTERS else ''}"
    oldest_ms = _now_ms() - int(waiting[0].name.partition("-")[0])
    found = f"{count}, the oldest for about {oldest_ms / 1000:.0f} s"
    if oldest_ms <= WAITING_MS:
        return Finding("mailbox", True, found)
    mend = f"Is a sequencer running (lakemq --path {mq.namespace.path} serve), and keeping up?"
    return Finding("mailbox", False, found, mend)


def check_aliens(mq: Connection) -> Finding:
    """Nothing but letters lies in the mailbox."""
    aliens = mq.namespace.mailbox.alien(_SOME + 1)
    if not aliens:
        return Finding("aliens", True, "nothing but letters in the mailbox")
    names = ", ".join(one_line(a) for a in aliens[:_SOME]) + (", ..." if len(aliens) > _SOME else "")
    return Finding("aliens", False, f"no letters: {names}", "They are ignored. Delete what somebody put into mailbox/.")


def check_foreign_commits(mq: Connection) -> Finding:
    """Nobody but LakeMQ has committed to an engine table, as far back as the tables' logs go."""
    foreign = []
    for spec in TABLES:
        if spec.name == INBOX.name:
            continue
        for commit in mq.namespace.store.open(spec).commits_after(-1):
            what = _foreign(commit)
            if what:
                foreign.append(f"{spec.name} version {commit.get('version')}: {what}")
    if not foreign:
        return Finding("foreign commits", True, "none")
    more = f"; and {len(foreign) - _SOME} more" if len(foreign) > _SOME else ""
    mend = (
        "Leave maintenance to LakeMQ: stop whatever runs OPTIMIZE, VACUUM, UPDATE, DELETE or INSERT on these tables"
        " (only inbox is for that). While no VACUUM has run, no message is lost."
    )
    return Finding("foreign commits", False, one_line("; ".join(foreign[:_SOME]) + more), mend)


def _foreign(commit: Mapping[str, Any]) -> str:
    """What a commit was and who made it; empty if it may be LakeMQ's own, which only ever adds."""
    engine, operation = str(commit.get("engineInfo")), str(commit.get("operation"))
    mode = str((commit.get("operationParameters") or {}).get("mode", ""))
    if engine.startswith(_OUR_ENGINE) and operation in _OUR_OPERATIONS and mode != "Overwrite":
        return ""
    return f"{operation}{f' ({mode})' if mode else ''} by {engine} at {_at(int(commit.get('timestamp', 0)))}"


def check_data_files(mq: Connection) -> Finding:
    """Every data file that holds messages of a topic is there."""
    reader = Reader(mq.namespace.store, SystemClock())
    needed: set[str] = set()
    for topic in list(reader.refresh().topics.values()):
        ends = topic.high_watermarks.tolist()
        ranges = [OffsetRange(p, first, ends[p]) for p, first in beginning_offsets(topic).items() if ends[p] > first]
        segments = reader.segments(topic, ranges, committed=False)
        needed |= set(pc.unique(segments.column("batch_id")).to_pylist())
    there = {name.rpartition("/")[2] for name in mq.namespace.files.list("messages")}
    gone = sorted(batch_id for batch_id in needed if f"{batch_id}.parquet" not in there)
    if not gone:
        return Finding("data files", True, f"all {len(needed)} are there")
    names = ", ".join(f"{b}.parquet" for b in gone[:_SOME]) + (", ..." if len(gone) > _SOME else "")
    mend = "Put them back into messages/ from a backup, or delete their records: lakemq topics delete-records"
    return Finding("data files", False, f"{len(gone)} of {len(needed)} are gone: {names}", mend)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _at(ms: int) -> str:
    return iso(datetime.fromtimestamp(ms / 1000, timezone.utc))


CHECKS: dict[str, Callable[[Connection], Finding]] = {
    "namespace": check_tables,
    "writable": check_writable,
    "clock": check_clock,
    "sequencer": check_sequencer,
    "mailbox": check_mailbox,
    "aliens": check_aliens,
    "foreign commits": check_foreign_commits,
    "data files": check_data_files,
}
"""In this order: what a later one says hangs on what the earlier ones say."""
