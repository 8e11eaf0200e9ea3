"""The doctor's checks of a namespace.

The doctor changes nothing, except that it writes and deletes one small object beside the tables. That shows whether the
namespace is writable and what time the store has.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.delayed_rows import UnreleasedCounter
from lakemq.engine.client.fetch.log_reader import Reader
from lakemq.engine.client.fetch.lookup import OffsetRange
from lakemq.engine.client.fetch.plan import beginning_offsets
from lakemq.engine.client.groups.stalls import write_advice
from lakemq.engine.client.operator_tools import Observation, Observer
from lakemq.engine.client.sequencers import find_store_now_ms, read_leadership
from lakemq.engine.maintenance.final_files import measure_final_lag_ms
from lakemq.engine.maintenance.final_table import list_named_files, read_named_rows
from lakemq.engine.maintenance.retention import read_live_state
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.data_file import file_name
from lakemq.engine.namespace.data_file_reader import verify_files
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.sequencer.letters.intake import FOLDER as ASIDE
from lakemq.jobs.key_spread import describe_fullest_partition
from lakemq.jobs.output import MOST_NAMED, format_size, name_some, one_line, to_iso
from lakemq.jobs.process.probe import probe
from lakemq.tables.specs.messages import file_stem
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import SCHEMA_VERSION
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.coordination.mailbox import LETTERS
from lakemq.tables.storage.delta.store import MissingTable, NewerTable, NotATable, find_foreign_commits
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

# The result of a check.


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        advice: how to fix the problem. If the check is ok, how to do better, or empty.
        commands: those of `lakemq` that do it, each as its words.
        choices: sentences of the advice, each with its commands, where not all of them are to be followed at once.
    """

    check: str
    ok: bool
    found: str
    advice: str = ""
    commands: Sequence[Sequence[str]] = ()
    choices: Sequence[tuple[str, Sequence[Sequence[str]]]] = ()

    @property
    def state(self) -> str:
        """`FINDING`: something must be mended. `advice`: it works, and something could be better. Else `ok`."""
        return "FINDING" if not self.ok else "advice" if self.advice else "ok"

    def to_record(self, path: str | None) -> dict[str, object]:
        """Return it for people and programs: its commands stand in the advice, and beside it. path: the namespace."""
        choices = self.choices or [(self.advice, self.commands)]
        advice = " ".join(write_advice(text, commands, path) for text, commands in choices)
        record = vars(self) | {"state": self.state, "advice": advice}
        del record["choices"]
        return record


# How full the disk of a namespace is: for the doctor, `lakemq status`, the console and the metrics.


_LOW_SHARE = 0.05
_LOW_BYTES = 5 << 30
"""A disk is low below both: a twentieth of a large disk still lasts for long, and a small disk may be meant to be."""

_LOW_INODES_SHARE = 0.02


@dataclass(frozen=True)
class FreeSpace:
    """Room of the file system that holds a namespace, as its user may take it.

    Attributes:
        size_bytes: taken and free bytes, as `df` counts them: without blocks that are kept for root.
        inodes: how many files the file system can hold; 0 if it sets no limit.
    """

    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int

    @property
    def full_share(self) -> float:
        """The share of the bytes that is taken, from 0 to 1."""
        return 1 - self.free_bytes / self.size_bytes if self.size_bytes else 0.0

    @property
    def is_low(self) -> bool:
        """Whether to make room soon."""
        few_bytes = self.free_bytes < min(_LOW_SHARE * self.size_bytes, _LOW_BYTES)
        return few_bytes or self.free_inodes < _LOW_INODES_SHARE * self.inodes


def read_free_space(files: Files) -> FreeSpace | None:
    """Return the room on the disk of a namespace; None for an object store, which has no such limit."""
    if not isinstance(files, LocalFiles):
        return None
    disk = os.statvfs(files.root)
    return FreeSpace(
        size_bytes=(disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize,
        free_bytes=disk.f_bavail * disk.f_frsize,
        inodes=disk.f_files,
        free_inodes=disk.f_favail,
    )


def describe_free_space(space: FreeSpace) -> str:
    """Return one sentence part, such as "12 % full, 3.4 GB of 40 GB free"."""
    text = f"{space.full_share:.0%} full, {format_size(space.free_bytes)} of {format_size(space.size_bytes)} free"
    few_inodes = space.free_inodes < _LOW_INODES_SHARE * space.inodes
    return f"{text}, and room for only {space.free_inodes:,} more files" if few_inodes else text


# The checks.


SKEW_MS = 2_000
"""How far this clock may differ from the store's, and how far the time of steps may be ahead of it."""

WAITING_MS = 10_000
"""How long a letter may wait before it is a problem."""

_SERVE = (("serve",),)

_FULL = (errno.ENOSPC, errno.EDQUOT)

_ONLY_A_BACKUP = "restore the namespace from a backup; there is no other way"
_MOST_LETTERS = 10_000
_SOME_LETTERS = 1_000


def check_tables(mq: Connection) -> Finding:
    """Check that all tables exist, are LakeMQ's, and have a schema version that this version supports."""
    wrong: list[str] = []
    advice: list[str] = []
    for spec in TABLES:
        try:
            mq.namespace.store.open(spec)
        except NewerTable as error:
            wrong.append(one_line(str(error)))
            advice.append("upgrade LakeMQ to the version that wrote the tables, or a later one")
        except NotATable as error:
            wrong.append(one_line(str(error)))
            is_made_again = isinstance(error, MissingTable) and not error.is_needed
            advice.append("make it with lakemq fsck --repair" if is_made_again else _ONLY_A_BACKUP)
    if wrong:
        return Finding("namespace", False, "; ".join(wrong), _sentence(advice))
    return Finding("namespace", True, f"{mq.namespace.path}: {len(TABLES)} tables, schema version {SCHEMA_VERSION}")


def _sentence(parts: list[str]) -> str:
    sentence = "; ".join(dict.fromkeys(parts))
    return f"{sentence[:1].upper()}{sentence[1:]}."


def check_state(observer: Observer) -> Finding:
    """Check that a state can be loaded from the tables; raises TableDamaged."""
    with observer.look() as observation:
        state = observation.state
        return Finding("state", True, f"{len(state.topic_ids)} topics as of step {state.step}")


def check_writable(mq: Connection) -> Finding:
    """Check that requests can be written."""
    try:
        probe(mq.namespace.files)
    except OSError as error:
        text = f"cannot be written: {error.strerror or error}"
        need = "make room on the disk" if error.errno in _FULL else "give this user write permission"
        return Finding("writable", False, text, f"Fetching works. To publish or to serve, {need}.")
    return Finding("writable", True, "objects can be written and deleted")


def check_space(mq: Connection) -> Finding:
    """Check that the disk has room; an object store has no end."""
    space = read_free_space(mq.namespace.files)
    if space is None:
        return Finding("space", True, "the store is no disk of this machine, so nothing limits it")
    text = describe_free_space(space)
    if not space.is_low:
        return Finding("space", True, text)
    advice = (
        "Make room on the disk, or make it larger. When it is full, requests wait and nothing is lost. Messages"
        " take less with a shorter retention.ms or retention.bytes of their topics."
    )
    return Finding("space", False, text, advice)


def check_clock(mq: Connection) -> Finding:
    """Check that this clock agrees with the store's, and that the time of the steps is not ahead of both."""
    before_ms = _now_ms()
    try:
        store_ms = probe(mq.namespace.files)
    except OSError:  # the check of writing says why
        return Finding("clock", True, "not compared, because the store cannot be written")
    skew_ms = 0 if store_ms is None else _outside(store_ms, before_ms, _now_ms())
    if abs(skew_ms) > SKEW_MS:
        text = f"the store's time is {skew_ms / 1000:+.1f} s off this clock"
        return Finding("clock", False, text, "Synchronise both clocks with a time server (chrony, systemd-timesyncd).")
    ahead_ms = mq.state().now_ms - _now_ms()
    if ahead_ms > SKEW_MS:
        text = f"the time of the steps is {ahead_ms / 1000:.1f} s ahead of this clock"
        advice = "A sequencer's clock was ahead. Correct the clocks: LakeMQ's time never goes back, but waits for them."
        return Finding("clock", False, text, advice)
    return Finding("clock", True, f"within {max(abs(skew_ms), 1)} ms of the store's")


def _outside(at_ms: int, first_ms: int, last_ms: int) -> int:
    return min(0, at_ms - first_ms) or max(0, at_ms - last_ms)


def check_sequencer(mq: Connection, observer: Observer) -> Finding:
    """Check that a sequencer leads and decides steps, or that nothing waits for one."""
    with observer.look() as observation:
        leadership = read_leadership(mq.namespace.files, observation.state)
    leader, silent_ms = leadership.leader, leadership.silent_ms
    last = f"the last step, {leadership.step}, was put at {_at(leadership.put_ms)}, {silent_ms / 1000:.1f} s ago"
    waits = bool(mq.namespace.mailbox.list_waiting(1))
    start = "Letters wait. Start a sequencer." if waits else "Start a sequencer."
    if leadership.has_died or (waits and not leader):
        ended = f": {leader} has ended without handing over its lease" if leader else ""
        return Finding("sequencer", False, f"no sequencer leads{ended}; {last}", start, _SERVE)
    if not leader:
        return Finding("sequencer", True, f"no sequencer leads; {last}")
    leads = f"{leader} leads with epoch {leadership.epoch}; {last}"
    if leadership.is_silent and _is_disk_full(mq):
        advice = "The disk is full. Make room, and it goes on by itself. Another sequencer would not help."
        return Finding("sequencer", False, leads, advice)
    if leadership.is_silent:
        advice = "It seems to be dead or stopped. Start another one, which takes over."
        return Finding("sequencer", False, leads, advice, _SERVE)
    standbys = ", ".join(leadership.standbys[:MOST_NAMED]) or "none"
    return Finding("sequencer", True, f"{leads}; standby: {standbys}")


def _is_disk_full(mq: Connection) -> bool:
    try:
        probe(mq.namespace.files)
    except OSError as error:
        return error.errno in _FULL
    return False


def check_mailbox(mq: Connection) -> Finding:
    """Check that no letter waits for long."""
    waiting = mq.namespace.mailbox.list_waiting(_MOST_LETTERS)
    if not waiting:
        return Finding("mailbox", True, "no letter waits")
    count = f"waiting letters: {len(waiting)}{' or more' if len(waiting) == _MOST_LETTERS else ''}"
    put_ms = mq.namespace.files.modified_ms(f"{LETTERS}/{waiting[0].name}")
    if put_ms is None:
        return Finding("mailbox", True, f"{count}, and a sequencer is taking them")
    oldest_ms = max(0, find_store_now_ms(mq.namespace.files) - put_ms)
    text = f"{count}, the oldest for about {oldest_ms / 1000:.0f} s"
    if oldest_ms <= WAITING_MS:
        return Finding("mailbox", True, text)
    return Finding("mailbox", False, text, "Check that a sequencer keeps up, or start one.", _SERVE)


def check_letters(mq: Connection) -> Finding:
    """Check that this user can read all waiting letters."""
    unreadable = mq.namespace.mailbox.find_unreadable(_SOME_LETTERS)
    if not unreadable:
        return Finding("letters", True, "all waiting letters can be read")
    shown = name_some([f"{name} ({reason})" for name, reason in unreadable])
    advice = (
        "The sequencer skips them, and their clients wait. Delete files that no client wrote. If several users share"
        " the namespace, let their group read and write it."
    )
    share = [["init", "--shared-with-group"]]
    return Finding("letters", False, one_line(f"cannot be read: {shown}"), advice, share)


def check_aside(mq: Connection) -> Finding:
    """Check that no request has failed with an internal error."""
    letters = mq.namespace.files.list(ASIDE)
    if not letters:
        return Finding("aside", True, "no request has failed with an internal error")
    advice = "The sequencer refused them; its log has the error. Report the error with these files, then delete them."
    return Finding("aside", False, one_line(f"requests refused for an internal error: {name_some(letters)}"), advice)


def check_aliens(mq: Connection) -> Finding:
    """Check that the mailbox holds only letters."""
    aliens = mq.namespace.mailbox.list_unknown_names(_MOST_LETTERS)
    if not aliens:
        return Finding("aliens", True, "the mailbox holds only letters")
    names = name_some([one_line(alien) for alien in aliens])
    return Finding(
        "aliens",
        False,
        f"files that are not letters: {names}",
        "The sequencer ignores them. Delete them from mailbox/.",
    )


def check_foreign_commits(mq: Connection) -> Finding:
    """Check that only LakeMQ has committed to its tables, as far back as their logs go."""
    foreign = list(find_foreign_commits(mq.namespace.store))
    if not foreign:
        return Finding("foreign commits", True, "none")
    stop = (
        "Leave maintenance to LakeMQ: stop the programs that run OPTIMIZE, VACUUM, UPDATE, DELETE or INSERT on these"
        " tables (only inbox takes INSERT)."
    )
    commands: list[list[str]] = []
    if all(commit.keeps_rows for commit in foreign):
        after = "No rows were changed. If no file is missing, do nothing else; the finding ends with the log entry."
    else:
        after, commands = "Rows were changed. See what can be undone.", [["fsck"]]
    summary = name_some([*map(str, foreign)], "; ")
    return Finding("foreign commits", False, one_line(summary), f"{stop} {after}", commands)


def check_data_files(mq: Connection) -> Finding:
    """Check that all data files with messages of a topic exist and are unchanged."""
    reader = Reader(mq.namespace.store, SystemClock(), namespace_id=mq.namespace.namespace_id)
    needed: dict[str, pa.Table] = {}
    for topic in list(reader.refresh().topics.values()):
        ends = topic.high_watermarks.tolist()
        ranges = [OffsetRange(p, first, ends[p]) for p, first in beginning_offsets(topic).items() if ends[p] > first]
        segments = reader.find_segments(topic, ranges, committed=False)
        # rows that are only in steps get their file with the next projection
        unwritten = pa.array(list(reader.find_step_rows(segments)), pa.int64())
        needed[topic.topic] = segments.filter(pc.invert(pc.is_in(segments.column("file_id"), unwritten)))
    footers, topics = dict[int, int | None](), dict[int, str]()
    for topic_name, rows in needed.items():
        ids = rows["file_id"].to_pylist()
        footers |= zip(ids, rows["footer_hash"].to_pylist(), strict=True)
        topics |= dict.fromkeys(ids, topic_name)
    wrong = verify_files(mq.namespace.files, footers, topics)
    if not wrong:
        return Finding("data files", True, f"all {len(footers)} exist and are unchanged")
    names = name_some([f"{file_stem(file_id)}.parquet ({flaw})" for file_id, flaw in sorted(wrong.items())])
    lost = {topic: extents for topic, rows in needed.items() if (extents := _find_lost(rows, list(wrong)))}
    places = [f"{topic}-{partition} {first} to {last}" for topic in lost for partition, first, last in lost[topic]]
    folders = " and ".join(sorted({f"{file_name(file_id, topics[file_id]).partition('/')[0]}/" for file_id in wrong}))
    advice = f"Restore them into {folders} from a backup. Or delete their messages and all earlier ones."
    summary = one_line(
        f"{len(wrong)} of {len(footers)} are missing or damaged: {names}. Offsets within: {name_some(places)}"
    )
    return Finding("data files", False, summary, advice, [_make_deletion(topic, lost[topic]) for topic in lost])


_FINAL_INTERVALS = 3
"""Intervals after which messages that could be final are late."""


def check_final_messages(mq: Connection, observer: Observer) -> Finding:
    """Check that all files of `final_messages` exist unchanged, and that messages get there in time.

    Without a leader they wait, and need not come.
    """
    with observer.look() as observation:
        live, leader = read_live_state(observation.state), observation.state.leader
    store, interval_ms = mq.namespace.store, mq.namespace.config.ms("final.interval.ms")
    is_due = interval_ms and leader
    lag_ms = measure_final_lag_ms(store, live.topics, find_store_now_ms(store.files)) if is_due else 0
    if lag_ms > _FINAL_INTERVALS * interval_ms:
        text = f"messages have waited for {lag_ms // 1000} s to become final; final.interval.ms is {interval_ms}"
        return Finding("final messages", False, text, "Look at the log of the sequencer, and at the room of the store.")
    named = {file.file_id: file for file in list_named_files(read_named_rows(store.open(SEGMENTS), live)[0])}
    footers = {file_id: file.footer_hash for file_id, file in named.items()}
    damaged = verify_files(store.files, footers, {file_id: file.topic for file_id, file in named.items()})
    if not damaged:
        return Finding("final messages", True, "all files exist and are unchanged")
    file_id, flaw = next(iter(damaged.items()))
    text = one_line(f"{len(damaged)} files of final_messages are missing or damaged: {named[file_id].name} ({flaw})")
    return Finding(
        "final messages", False, text, "Restore them from a backup. The check of data files names what fetches need."
    )


def check_groups(mq: Connection, observer: Observer) -> Finding:
    """Check that no group's offsets expire soon, and that no group with members is stuck."""
    now_ms = find_store_now_ms(mq.namespace.files)
    with observer.look() as observation:
        groups = observation.groups.all(rates=False)
    in_use = [group for group in groups if group.members]
    stalls = [(group.group, stall) for group in in_use for stall in group.stalls if stall.is_overdue(now_ms)]
    if stalls:
        texts = [f"{group}: {stall.found}" for group, stall in stalls[:MOST_NAMED]]
        more = f" And {len(stalls) - MOST_NAMED} more." if len(stalls) > MOST_NAMED else ""
        named: dict[tuple[str, tuple[tuple[str, ...], ...]], list[str]] = {}
        for group, stall in stalls[:MOST_NAMED]:
            named.setdefault((stall.advice, tuple(map(tuple, stall.commands))), []).append(group)
        choices = [
            (one_line(text if len(stalls) == 1 else f"{', '.join(dict.fromkeys(names))}: {text}"), commands)
            for (text, commands), names in named.items()
        ]
        advice = " ".join(text for text, _ in choices)
        every = dict.fromkeys(command for _, commands in choices for command in commands)
        return Finding("groups", False, one_line(" ".join(texts) + more), advice, [*every], choices)
    near = [
        group
        for group in groups
        if group.expires_at_ms is not None
        and group.idle_since_ms is not None
        and 2 * now_ms > group.idle_since_ms + group.expires_at_ms
    ]
    if not near:
        return Finding("groups", True, f"{len(groups)} groups")
    near.sort(key=lambda group: group.expires_at_ms or 0)
    names = name_some([f"{group.group} at {_at(group.expires_at_ms or 0)}" for group in near])
    text = f"unused groups whose committed offsets expire soon: {names}"
    keep = [["groups", "alter", group.group, "--config", "offsets.retention.ms=-1"] for group in near[:MOST_NAMED]]
    return Finding("groups", False, text, "Consume with these groups, or keep their offsets.", keep)


def check_losses(mq: Connection, observer: Observer) -> Finding:
    """Check that retention deletes no messages before a group reads them.

    What was lost stays counted. It is a finding while the group still stands at the start of a log: it loses whatever
    retention deletes next.
    """
    with observer.look() as observation:
        state = observation.state
        lags = [lag for name in observation.groups.list() for lag in observation.groups.lag(name) if lag.deleted]
    lost: dict[tuple[str, str], int] = {}
    for lag in lags:
        if lag.lag and lag.next_offset == state.topic(lag.topic).log_starts[lag.partition]:
            lost[lag.group, lag.topic] = lost.get((lag.group, lag.topic), 0) + lag.deleted
    if not lost:
        return Finding("losses", True, f"offsets deleted before a group read them: {sum(lag.deleted for lag in lags)}")
    named = name_some([f"{group} has lost {count} of {topic}" for (group, topic), count in lost.items()], "; ")
    topics = dict.fromkeys(topic for _, topic in list(lost)[:MOST_NAMED])
    keep = [["topics", "alter", topic, "--config", "retention.waits.for.groups=true"] for topic in topics]
    advice = "These groups read more slowly than retention deletes. Make them faster, or keep messages for them."
    return Finding("losses", False, one_line(named), advice, keep)


def check_spread(mq: Connection) -> Finding:
    """Report topics with a partition that has twice its fair share of offsets; this is only advice."""
    fullest = {topic.topic: describe_fullest_partition(topic) for topic in mq.topics.list()}
    uneven = {topic: text for topic, text in fullest.items() if text}
    if not uneven:
        return Finding("spread", True, "no partition has twice its fair share of offsets")
    describe = [["topics", "describe", next(iter(uneven)), "--keys", "--show-hot-keys"]]
    return Finding(
        "spread", True, one_line(name_some([*uneven.values()], "; ")), "See whether a hot key is the reason.", describe
    )


def check_delays(mq: Connection, observer: Observer) -> Finding:
    """Check that no due message is unreleased, and that the data files of waiting messages are readable."""
    step = read_watermark(mq.namespace.store).step
    with observer.look() as observation:
        return _check_delays(mq, observation, step)


def _check_delays(mq: Connection, observation: Observation, step: int) -> Finding:
    """Check the delayed messages of an observation. step: up to which their rows are in data files."""
    waiting = list(observation.state.delays.ranges)
    # rows that are only in steps get their file with the next projection
    footers = {range_.published.file_id: range_.published.footer_hash for range_ in waiting if range_.step <= step}
    if wrong := verify_files(mq.namespace.files, footers):
        topics = sorted({range_.published.topic for range_ in waiting if range_.published.file_id in wrong})
        count = sum(range_.waiting_count for range_ in waiting if range_.published.file_id in wrong)
        names = name_some([f"{file_stem(file_id)}.parquet ({flaw})" for file_id, flaw in sorted(wrong.items())])
        text = one_line(f"{count} messages of {name_some(topics)} wait in files that are missing or damaged: {names}")
        advice = "Restore them into messages/ from a backup. Or cancel all messages that wait."
        return Finding("delays", False, text, advice, [["delayed", "purge", topic] for topic in topics[:MOST_NAMED]])
    counter = UnreleasedCounter(mq.namespace.files, lambda read: read(observation.state))
    late = counter.count_unreleased(find_store_now_ms(mq.namespace.files) - WAITING_MS).messages
    if late:
        text = f"{late} messages have been due for more than {WAITING_MS // 1000} s"
        advice = "Check that a sequencer runs and keeps up. Or release them now."
        return Finding("delays", False, text, advice, [["delayed", "release"]])
    return Finding("delays", True, f"{sum(range_.waiting_count for range_ in waiting)} messages wait for their time")


def _find_lost(segments: pa.Table, gone: list[int]) -> list[tuple[int, int, int]]:
    """Return (partition, first offset, last offset) of a topic's rows in missing files, by partition."""
    lost = segments.filter(pc.is_in(segments.column("file_id"), pa.array(gone, pa.int64())))
    extents = lost.group_by("partition").aggregate([("base_offset", "min"), ("last_offset", "max")])
    names = ("partition", "base_offset_min", "last_offset_max")
    return sorted(zip(*(extents[name].to_pylist() for name in names), strict=True))


def _make_deletion(topic: str, extents: list[tuple[int, int, int]]) -> list[str]:
    """Return the command that deletes a topic's records up to the last one in a missing file."""
    before = (word for partition, _, last in extents for word in ("--before", f"{partition}={last + 1}"))
    return ["topics", "delete-records", topic, *before]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _at(ms: int) -> str:
    return to_iso(datetime.fromtimestamp(ms / 1000, UTC))


def make_checks(mq: Connection, observer: Observer) -> dict[str, Callable[[], Finding]]:
    """Return the checks by name, in order: later ones rely on earlier ones. They load the whole state only once."""
    return {
        "namespace": partial(check_tables, mq),
        "state": partial(check_state, observer),
        "writable": partial(check_writable, mq),
        "space": partial(check_space, mq),
        "clock": partial(check_clock, mq),
        "sequencer": partial(check_sequencer, mq, observer),
        "mailbox": partial(check_mailbox, mq),
        "letters": partial(check_letters, mq),
        "aside": partial(check_aside, mq),
        "aliens": partial(check_aliens, mq),
        "foreign commits": partial(check_foreign_commits, mq),
        "data files": partial(check_data_files, mq),
        "final messages": partial(check_final_messages, mq, observer),
        "spread": partial(check_spread, mq),
        "groups": partial(check_groups, mq, observer),
        "losses": partial(check_losses, mq, observer),
        "delays": partial(check_delays, mq, observer),
    }
