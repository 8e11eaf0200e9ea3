"""The doctor's checks of a namespace.

Nothing is changed, but for one small object that is put beside the tables and taken away again, to see whether that can
be done and what time the store gives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.files import verify_files
from lakemq.engine.client.fetch.lookup import OffsetRange
from lakemq.engine.client.fetch.plan import beginning_offsets
from lakemq.engine.client.fetch.reader import WHOLE, Reader
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.sequencer.aside import FOLDER as ASIDE
from lakemq.jobs.doctor.examination import Finding
from lakemq.jobs.output import iso, one_line
from lakemq.jobs.probe import probe
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import file_stem
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import SCHEMA_VERSION
from lakemq.tables.storage.foreign import foreign_commits
from lakemq.tables.storage.mailbox import LETTERS
from lakemq.tables.storage.store import NewerTable, NotATable

SKEW_MS = 2_000
"""How far this clock may be from the store's, and the journal's time ahead of it."""

WAITING_MS = 10_000
"""How long a letter may wait before somebody should look."""

_SOME = 5
_MOST_LETTERS = 10_000
_SOME_LETTERS = 1_000


def check_tables(mq: Connection) -> Finding:
    """All tables are there, ours, and of a version we know."""
    wrong: list[str] = []
    mends: list[str] = []
    for spec in TABLES:
        try:
            mq.namespace.store.open(spec)
        except NewerTable as error:
            wrong.append(one_line(str(error)))
            mends.append("upgrade LakeMQ to the version that wrote what is newer, or a later one")
        except NotATable as error:
            wrong.append(one_line(str(error)))
            mends.append("restore what is missing or damaged from a backup; nothing else brings it back")
    if wrong:
        return Finding("namespace", False, "; ".join(wrong), _sentence(mends))
    return Finding("namespace", True, f"{mq.namespace.path}: {len(TABLES)} tables, schema version {SCHEMA_VERSION}")


def _sentence(parts: list[str]) -> str:
    told = "; ".join(dict.fromkeys(parts))
    return f"{told[:1].upper()}{told[1:]}."


def check_state(mq: Connection) -> Finding:
    """What the tables say makes a state; raises TableDamaged."""
    state = Reader(mq.namespace.store, SystemClock(), WHOLE).refresh()
    return Finding("state", True, f"{len(state.topic_ids)} topics as of step {state.step}")


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
    journal = mq.namespace.store.open(JOURNAL)
    moved_ms = journal.log.modified_ms(journal.version) or state.now_ms
    silent_ms = max(0, _store_now_ms(mq) - moved_ms)
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
    put_ms = mq.namespace.files.modified_ms(f"{LETTERS}/{waiting[0].name}")
    if put_ms is None:
        return Finding("mailbox", True, f"{count}, and they are being taken")
    oldest_ms = max(0, _store_now_ms(mq) - put_ms)
    found = f"{count}, the oldest for about {oldest_ms / 1000:.0f} s"
    if oldest_ms <= WAITING_MS:
        return Finding("mailbox", True, found)
    mend = f"Is a sequencer running (lakemq --path {mq.namespace.path} serve), and keeping up?"
    return Finding("mailbox", False, found, mend)


def check_letters(mq: Connection) -> Finding:
    """Every letter that waits can be read, by this user at least."""
    unreadable = mq.namespace.mailbox.unreadable(_SOME_LETTERS)
    if not unreadable:
        return Finding("letters", True, "every letter that waits can be read")
    shown = ", ".join(f"{name} ({reason})" for name, reason in unreadable[:_SOME])
    more = f", and {len(unreadable) - _SOME} more" if len(unreadable) > _SOME else ""
    mend = (
        "They are left aside, and their clients wait. Delete what is no file of a client's. Where users must share the"
        f" namespace: lakemq --path {mq.namespace.path} init --shared-with-group"
    )
    return Finding("letters", False, one_line(f"cannot be read: {shown}{more}"), mend)


def check_aside(mq: Connection) -> Finding:
    """No request has met an error that nobody foresaw."""
    kept = mq.namespace.files.list(ASIDE)
    if not kept:
        return Finding("aside", True, "no request has met an error that nobody foresaw")
    names = ", ".join(kept[:_SOME]) + (", ..." if len(kept) > _SOME else "")
    mend = "They were refused; the sequencer's log says why. Report the error, with the letters; then delete them."
    return Finding("aside", False, one_line(f"requests that were refused for a mistake of ours: {names}"), mend)


def check_aliens(mq: Connection) -> Finding:
    """Nothing but letters lies in the mailbox."""
    aliens = mq.namespace.mailbox.alien(_SOME + 1)
    if not aliens:
        return Finding("aliens", True, "nothing but letters in the mailbox")
    names = ", ".join(one_line(a) for a in aliens[:_SOME]) + (", ..." if len(aliens) > _SOME else "")
    return Finding("aliens", False, f"no letters: {names}", "They are ignored. Delete what somebody put into mailbox/.")


def check_foreign_commits(mq: Connection) -> Finding:
    """Nobody but LakeMQ has committed to an engine table, as far back as the tables' logs go."""
    foreign = list(foreign_commits(mq.namespace.store))
    if not foreign:
        return Finding("foreign commits", True, "none")
    more = f"; and {len(foreign) - _SOME} more" if len(foreign) > _SOME else ""
    stop = (
        "Leave maintenance to LakeMQ: stop whatever runs OPTIMIZE, VACUUM, UPDATE, DELETE or INSERT on these tables"
        " (only inbox is for that)."
    )
    if all(one.keeps_rows for one in foreign):
        after = "Nothing else is to be done unless a file is gone; this is told for as long as the log has it."
    else:
        after = "Rows were changed: restore the namespace from a backup of before."
    return Finding("foreign commits", False, one_line("; ".join(map(str, foreign[:_SOME])) + more), f"{stop} {after}")


def check_data_files(mq: Connection) -> Finding:
    """Every data file that holds messages of a topic is there, and is what was written."""
    reader = Reader(mq.namespace.store, SystemClock())
    needed: dict[str, pa.Table] = {}
    for topic in list(reader.refresh().topics.values()):
        ends = topic.high_watermarks.tolist()
        ranges = [OffsetRange(p, first, ends[p]) for p, first in beginning_offsets(topic).items() if ends[p] > first]
        segments = reader.segments(topic, ranges, committed=False)
        # what still rides in the journal will be in its file with the next pass
        riding = pa.array(list(reader.held(segments)), pa.int64())
        needed[topic.topic] = segments.filter(pc.invert(pc.is_in(segments.column("file_id"), riding)))
    pairs = [zip(one["file_id"].to_pylist(), one["footer_hash"].to_pylist(), strict=True) for one in needed.values()]
    footers = {file_id: footer for of_topic in pairs for file_id, footer in of_topic}
    wrong = verify_files(mq.namespace.files, footers)
    if not wrong:
        return Finding("data files", True, f"all {len(footers)} are there, and as they were written")
    some = [f"{file_stem(file_id)}.parquet ({flaw})" for file_id, flaw in sorted(wrong.items())][:_SOME]
    names = ", ".join(some) + (", ..." if len(wrong) > _SOME else "")
    commands = [_deletion(mq.namespace.path, name, segments, list(wrong)) for name, segments in needed.items()]
    mend = "Put them back into messages/ from a backup; or give up their messages and all before them: " + " && ".join(
        filter(None, commands)
    )
    found = one_line(f"{len(wrong)} of {len(footers)} are gone or damaged: {names}")
    return Finding("data files", False, found, mend)


def check_groups(mq: Connection) -> Finding:
    """No group is about to lose what it has committed."""
    groups, now_ms = mq.groups.all(), _store_now_ms(mq)
    near = [
        one
        for one in groups
        if one.expires_at_ms is not None
        and one.idle_since_ms is not None
        and 2 * now_ms > one.idle_since_ms + one.expires_at_ms
    ]
    if not near:
        return Finding("groups", True, f"{len(groups)} groups")
    near.sort(key=lambda one: one.expires_at_ms or 0)
    told = ", ".join(f"{one.group} at {_at(one.expires_at_ms or 0)}" for one in near[:_SOME])
    more = f" and {len(near) - _SOME} more" if len(near) > _SOME else ""
    found = f"groups that nobody uses, and what they have committed is forgotten: {told}{more}"
    keep = f"lakemq --path {mq.namespace.path} groups alter {near[0].group} --config offsets.retention.ms=-1"
    return Finding("groups", False, found, f"Consume with them, or let those that are wanted keep it: {keep}")


def check_delays(mq: Connection) -> Finding:
    """Nothing that was due is left, and what waits can be read."""
    step = read_watermark(mq.namespace.store).step
    waiting = list(Reader(mq.namespace.store, SystemClock(), WHOLE).refresh().delays.ranges.values())
    # what still rides in the journal will be in its file with the next pass
    footers = {one.told.file_id: one.told.footer_hash for one in waiting if one.step <= step}
    if wrong := verify_files(mq.namespace.files, footers):
        topics = sorted({one.told.topic for one in waiting if one.told.file_id in wrong})
        count = sum(one.left_count for one in waiting if one.told.file_id in wrong)
        names = ", ".join(f"{file_stem(file_id)}.parquet ({flaw})" for file_id, flaw in sorted(wrong.items())[:_SOME])
        found = one_line(
            f"{count} messages of {', '.join(topics[:_SOME])} wait in files that are gone or damaged: {names}"
        )
        purge = f"lakemq --path {mq.namespace.path} delayed purge {topics[0]}"
        return Finding(
            "delays", False, found, f"Put them back into messages/ from a backup; or give up all of it: {purge}"
        )
    late = mq.delayed.releases().left(_store_now_ms(mq) - WAITING_MS).messages
    if late:
        mend = f"Is a sequencer running, and keeping up? Else: lakemq --path {mq.namespace.path} delayed release"
        return Finding("delays", False, f"{late} messages are due for more than {WAITING_MS // 1000} s", mend)
    return Finding("delays", True, f"{sum(one.left_count for one in waiting)} messages wait for their time")


def _deletion(path: str, topic: str, segments: pa.Table, gone: list[int]) -> str:
    """The command that deletes the records of a topic up to the last one in a file that is gone, if there is any."""
    lost = segments.filter(pc.is_in(segments.column("file_id"), pa.array(gone, pa.int64())))
    last = lost.group_by("partition").aggregate([("last_offset", "max")])
    pairs = sorted(zip(last["partition"].to_pylist(), last["last_offset_max"].to_pylist(), strict=True))
    before = " ".join(f"--before {partition}={offset + 1}" for partition, offset in pairs)
    return f"lakemq --path {path} topics delete-records {topic} {before}" if pairs else ""


def _store_now_ms(mq: Connection) -> int:
    """The store's time, by which its objects are old or new; this machine's for who may not write there."""
    try:
        return mq.namespace.files.time_ms()
    except OSError:
        return _now_ms()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _at(ms: int) -> str:
    return iso(datetime.fromtimestamp(ms / 1000, timezone.utc))


CHECKS: dict[str, Callable[[Connection], Finding]] = {
    "namespace": check_tables,
    "state": check_state,
    "writable": check_writable,
    "clock": check_clock,
    "sequencer": check_sequencer,
    "mailbox": check_mailbox,
    "letters": check_letters,
    "aside": check_aside,
    "aliens": check_aliens,
    "foreign commits": check_foreign_commits,
    "data files": check_data_files,
    "groups": check_groups,
    "delays": check_delays,
}
"""In this order: what a later one says hangs on what the earlier ones say."""
