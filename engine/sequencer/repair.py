"""Find damage of tables, and repair it from the journal, the steps, and the tables' own logs.

Invariant: after a repair, folding the journal gives exactly the tables. No offset that was acknowledged is given twice.
Nothing that a reader could see before is gone. So

- all is planned before anything is written, and the planned tables are compared with the fold. If one table cannot be
  repaired, nothing is written.
- the fold begins with step 1 where the journal has it. Otherwise it begins at a watermark, and every table must be as
  new as that one says: what a table has lost before is in no journal.
- a repair adds rows and files. It takes away only what a foreign commit has added, and unreadable files.
- no decision depends on `samples` and `admin_log`. So what they have lost stops no repair. It goes on with what is
  left, and adds the changes that the journal still has.
- it leads while it writes: it puts the step after the last one that it has read. If a sequencer has put that, the
  repair fails. Any other one waits for the lease.
- each table is changed by one commit, on the version that was read. If its log has lost entries, empty commits follow
  up to the version that the watermark names, before which no sequencer leads. So a repair may be killed anywhere, and
  repeated.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import ADMIN_LOG, JOURNAL, WATERMARKS
from lakemq.tables.specs.messages import (
    DELAYED,
    FINAL_FILES,
    FINAL_MESSAGES,
    MESSAGES,
    REJECTED_ROWS,
    file_stem,
    parse_final_file_id,
)
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import COMPACTED, SEGMENTS
from lakemq.tables.storage.coordination.leader_locks import LeaderLocks
from lakemq.tables.storage.coordination.step_objects import StepsGone, list_steps, step_name
from lakemq.tables.storage.delta.commits import CommitConflict, NewFile, StoredFile, compute_statistics, write_rows
from lakemq.tables.storage.delta.store import (
    DamagedFile,
    MissingTable,
    NewerTable,
    NotATable,
    Store,
    TableHandle,
    list_foreign_commits,
    make_filter,
    name_file,
    select_newest,
)

from ..maintenance.final_table import FinalTable, list_named_files, read_named_rows
from ..maintenance.removal import parse_file_id
from ..maintenance.retention import LiveState, drop_deleted_segments, read_live_state, trim_rows
from ..maintenance.row_audit import count_differing, find_base, replay_steps
from ..namespace.clock import SystemClock
from ..namespace.data_file import WrittenFile, file_name, new_file_id, read_file_facts, to_table_file
from ..namespace.data_file_reader import verify_files
from ..namespace.load import BEGINNING, least_versions, read_newest_watermark
from ..namespace.namespace import Namespace
from ..namespace.process import new_id
from ..namespace.step_reader import Snapshot, StepReader
from ..namespace.store_errors import report_damage
from ..protocol.codec.steps import decode_head, decode_step_object, decode_steps, encode_steps
from ..protocol.errors import LakeMQError, NotLeader, TableDamaged
from ..protocol.projection import PROJECT
from ..protocol.rows.admin_log import build_admin_log
from ..protocol.rows.clients import build_watermark
from ..protocol.values.clients import LeaderElected
from ..protocol.values.journal import JournalEntry, Step, StepBatch
from .step_log import StepLog

_PLACED = (SEGMENTS, REJECTED_ROWS)
"""Logs whose rows merges change: a decided row may name a place where its messages no longer are."""
_REPAIR = "Stop the sequencer, then repair the tables."
_RESTORE = "Beyond repair. Restore the namespace from a backup, with lakemq restore."
_UPGRADE = "Repair it with the version of LakeMQ that wrote the tables, or a later one."
_LOST = "Its rows are lost, and nothing else depends on them: a repair goes on with what is left."
_SLACK_MS = 2_000
_SOME = 5


class Damage(NamedTuple):
    """Damage of a table. advice: what an operator can do."""

    table: str
    found: str
    advice: str

    @property
    def is_beyond_repair(self) -> bool:
        """Whether no repair can mend it."""
        return self.advice is not _REPAIR


class _PlannedTable(TableHandle):
    """A table as it will be: without foreign changes and unreadable files, and with the rows that it has lost.

    Attributes:
        lost: files that are missing or changed.
        foreign: what foreign commits have done.
        refusal: why one of them cannot be undone.
        intact_version: the last version before them. Entries before that one may have been lost, too.
        added, new_files: rows and files to add.
    """

    def __init__(self, store: Store, spec: TableSpec) -> None:
        super().__init__(store, spec, store.open(spec)._table)
        self.added, self.new_files = spec.empty(), list[NewFile]()
        self.foreign, self.refusal, self.intact_version = list[str](), "", self.version
        self._stored = {file.path: file for file in TableHandle.files(self)}
        planned = self._undo_foreign_commits()
        try:
            self._check_version(self.version)
        except OSError as error:  # another program has changed the protocol
            self.refusal = str(error)
        self.lost = [file for file in planned.values() if not self._is_whole(file)]
        self.planned = {path: file for path, file in planned.items() if file not in self.lost}

    def _undo_foreign_commits(self) -> dict[str, StoredFile]:
        """Return the files without what foreign commits have changed, the newest first."""
        files = dict(self._stored)
        for commit in list_foreign_commits(self):
            if commit.keeps_rows:
                continue
            versions = (commit.version - 1, commit.version)
            try:
                before, after = ({f.path: f for f in self._store.open_version(self.spec, v).files()} for v in versions)
            except FileNotFoundError as error:
                self.refusal = f"{commit}, and the log does not say any more what it has changed: {error}"
                break
            added, removed = after.keys() - before.keys(), before.keys() - after.keys()
            if not added <= files.keys() or removed & files.keys():
                self.refusal = f"{commit}, and later commits have changed its rows"
                break
            files = {path: file for path, file in files.items() if path not in added}
            files |= {path: before[path] for path in removed}
            self.foreign.append(commit.description)
            self.intact_version = commit.version - 1
        return files

    def _is_whole(self, file: StoredFile) -> bool:
        """Return whether a file is as the log says; of a file of messages, whether it can be added again."""
        size_bytes = self._store.files.size(name_file(self.spec, file))
        if self.spec.shape == "data":
            return file.path in self._stored or size_bytes == file.size_bytes
        if size_bytes != file.size_bytes:
            return False
        try:
            return _has_statistics(file, TableHandle.read(self, files=[file]))
        except (FileNotFoundError, DamagedFile):
            return False

    def files(self, **bounds: tuple[Any, Any]) -> list[StoredFile]:
        """Return the planned files. Files that come back are in any bounds."""
        back = [self.planned[path] for path in self.planned.keys() - self._stored.keys()]
        return [file for file in super().files(**bounds) if file.path in self.planned] + back

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        files: Sequence[StoredFile] | None = None,
        **bounds: tuple[Any, Any],
    ) -> pa.Table:
        """Read the planned rows."""
        rows = super().read(columns, where, self.files(**bounds) if files is None else files, **bounds)
        if files is not None or not self.added.num_rows:
            return rows
        within = make_filter(bounds, where)
        added = self.added if within is None else self.added.filter(within)
        return pa.concat_tables([rows, added.select(rows.column_names)])

    def write(self, least_version: int, last_step: int | None, renew: Callable[[], None]) -> bool:
        """Commit the plan, and return whether the table was changed. renew: called before each empty commit."""
        version, files = self.version, self._store.files
        back = self.planned.keys() - self._stored.keys()
        add = [*self.new_files, *(_to_new_file(self.planned[path]) for path in sorted(back))]
        remove = [file for path, file in self._stored.items() if path not in self.planned]
        if self.added.num_rows:
            order = [(key, "ascending") for key in self.spec.sort_by]
            rows = self.added.sort_by(order) if order else self.added
            add.append(write_rows(files, self.spec.name, rows.cast(self.spec.stored_schema), files.time_ms()))
        if add or remove or self.foreign:
            undone = self.version if self.foreign else None
            self.replace_at(self.version, add, remove, last_step, moved=True, undone=undone)
        while self.version < least_version:
            renew()  # there may be thousands
            self.replace_at(self.version, [])
        return self.version > version


class Repair:
    """The damage of all tables as of the newest watermark, and a plan to repair it. To plan, it only reads.

    Attributes:
        damages: all that was found. If one is beyond repair, `write` refuses.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace, self._store, self._files = namespace, namespace.store, namespace.files
        self.damages, self._tables = list[Damage](), dict[str, _PlannedTable]()
        self._is_final_missing, self._missing_tables, self._steps = False, list[TableSpec](), list[Step]()
        try:
            with report_damage(self._store):
                self._plan()
        except (TableDamaged, StepsGone) as error:
            self._refuse("namespace", str(error))

    @property
    def is_possible(self) -> bool:
        """Whether nothing is beyond repair."""
        return not any(damage.is_beyond_repair for damage in self.damages)

    def _refuse(self, table: str, found: str, lost: str = "") -> None:
        self.damages.append(Damage(table, f"{found}. Lost: {lost}" if lost else found, _RESTORE))

    def _plan(self) -> None:
        # the watermark first: the others then hold its step
        for spec in sorted(TABLES, key=lambda spec: (spec is not WATERMARKS, spec is MESSAGES)):
            try:
                if not spec.is_open_to_writers:
                    self._tables[spec.name] = _PlannedTable(self._store, spec)
            except NotATable as error:
                if isinstance(error, MissingTable) and not error.is_needed:
                    self._missing_tables.append(spec)
                    self.damages.append(Damage(spec.name, f"{error}. {_LOST}", _REPAIR))
                else:
                    self._refuse(spec.name, f"its log is lost or damaged: {error}")
            except NewerTable as error:
                self.damages.append(Damage(spec.name, str(error), _UPGRADE))
        if not self.is_possible:
            return
        self._watermark = read_newest_watermark(self._store, self._tables[WATERMARKS.name])
        self._least, self._last = least_versions(self._watermark), self._watermark.step
        self._is_old = {n: t.intact_version < self._least.get(n, 0) for n, t in self._tables.items()}
        if (floor := max(table.floor() for table in self._tables.values())) > self._last:
            self._refuse(WATERMARKS.name, f"its last step is {self._last}, and tables were merged up to step {floor}")
        for name, table in self._tables.items():
            self._note_damage(name, table)
        reader = StepReader(self._store, self._last, SystemClock().steady_ms, self._namespace.namespace_id)
        reader.read_heads()
        self._stands_on = reader.step, reader.identity
        self._steps = self._plan_journal()
        if self.is_possible:
            self._replay_steps(self._steps)
        if self.is_possible:
            for name in PROJECT:
                self._plan_rows(self._tables[name])
            self._plan_admin_log()
            self._check_segments()
            self._plan_messages()
            self._plan_final_messages()

    def _note_damage(self, name: str, table: _PlannedTable) -> None:
        if table.refusal:
            self._refuse(name, table.refusal)
        texts = [f"changed by {text}" for text in table.foreign]
        texts += [f"{name_file(table.spec, file)} is missing or changed" for file in table.lost[:_SOME]]
        if table.version < self._least.get(name, 0):
            texts.append(f"at version {table.version}, expected {self._least[name]}: the newest log entries are lost")
        if name == WATERMARKS.name and (table.lost or self._is_old[name]):
            self._refuse(name, "; ".join(texts), "its rows, which nothing else has")
        elif texts and not table.spec.is_needed:
            self.damages.append(Damage(name, f"{'; '.join(texts)}. {_LOST}", _REPAIR))
        elif table.spec.shape == "data" and table.lost:
            self._refuse(name, "; ".join(texts), "messages of these files")
        elif texts:
            self.damages.append(Damage(name, "; ".join(texts), _REPAIR))

    def _plan_journal(self) -> list[Step]:
        """Plan to add the steps that only objects have. Return all steps that the journal then has."""
        journal = self._tables[JOURNAL.name]
        newest = max(self._last, journal.last_step())  # a pass may have ended before its watermark
        steps = {step.step: step for step in decode_steps(journal.read(step=(None, newest)))}
        unwritten = dict[int, Step]()
        for number in list_steps(self._files):
            if 0 < number <= newest and number not in steps:
                with suppress(FileNotFoundError, ValueError):
                    unwritten[number] = decode_step_object(self._files.get(step_name(number)))[1]
        begins = [_bounds(file)[0] for file in (*journal.files(), *journal.lost)]
        begin = min([*begins, journal.last_step() + 1 if self._is_old[JOURNAL.name] else newest + 1])
        available = steps | unwritten
        if gaps := [number for number in range(begin, newest + 1) if number not in available]:
            self._refuse(JOURNAL.name, "steps are missing", f"what steps {gaps[0]} to {gaps[-1]} decided")
        if journal.lost or self._is_old[JOURNAL.name]:
            journal.added = encode_steps([unwritten[n] for n in sorted(unwritten) if n >= begin])
        return [available[number] for number in range(begin, self._last + 1) if number in available]

    def _replay_steps(self, steps: Sequence[Step]) -> None:
        """Fold the steps on the tables as of an earlier watermark, or on nothing if step 1 is there."""
        self._snapshot = Snapshot(self._watermark, self._tables)
        first = steps[0].step if steps else self._last + 1
        base = BEGINNING if first == 1 else find_base(self._snapshot, first)
        for name in PROJECT:
            table, least = self._tables[name], least_versions(base).get(name, 0)
            if table.intact_version < least:
                text = f"intact up to version {table.intact_version}, and the replay needs version {least}"
                self._refuse(name, text, f"changes before step {base.step}")
            for file in table.lost:
                low, high = _bounds(file)
                if low <= base.step or high > self._last:
                    self._refuse(name, f"{name_file(table.spec, file)} is missing", f"rows of steps {low} to {high}")
        if not self.is_possible:
            return
        ends = self._tables[WATERMARKS.name].read(["step"], step=(base.step + 1, self._last))["step"].to_pylist()
        ends += [step for table in self._tables.values() if base.step < (step := table.last_step()) < self._last]
        later = [step for step in steps if step.step > base.step]
        self._replay = replay_steps(self._snapshot, base, later, sorted(set(ends)))
        self._live = read_live_state(self._replay.state)
        counters = WATERMARKS.rows(build_watermark(self._replay.state, self._watermark.floor))[0]
        if counters != replace(self._watermark, versions=[]):
            self._refuse(WATERMARKS.name, "its counters are not those of the journal")

    def _count_differing(self, spec: TableSpec) -> int:
        return count_differing(spec, self._snapshot, self._replay, self._namespace.config)

    def _plan_rows(self, table: _PlannedTable) -> None:
        """Plan to add the rows that a table lacks, and check that it then holds what the journal says."""
        spec, name = table.spec, table.spec.name
        is_noted, differing = bool(table.lost or self._is_old[name]), self._count_differing(spec)
        if not is_noted and not differing:
            return
        decided = self._replay.decided.get(name, spec.empty())
        if spec not in _PLACED:
            table.added = _drop_stored(decided, table.read(), (*spec.keys, "step"))
        else:
            parts = [decided.filter(pc.field("step") > table.last_step())] if self._is_old[name] else []
            for file in table.lost:
                low, high = _bounds(file)
                parts.append(decided.filter((pc.field("step") >= low) & (pc.field("step") <= high)))
                if not _has_statistics(file, parts[-1]):
                    lost = f"places of messages of steps {low} to {high}"
                    self._refuse(name, f"{name_file(spec, file)} is missing", lost)
            table.added = pa.concat_tables([spec.empty(), *parts])
        if remaining_count := self._count_differing(spec):
            self._refuse(name, f"{remaining_count} rows are unlike the journal")
        elif not is_noted:
            self.damages.append(Damage(name, f"{differing} rows are unlike the journal", _REPAIR))

    def _plan_admin_log(self) -> None:
        """Plan to add the changes that `admin_log` has lost, as far back as the journal goes."""
        table = self._tables.get(ADMIN_LOG.name)
        if table is not None and (table.lost or self._is_old[ADMIN_LOG.name]):
            table.added = _drop_stored(build_admin_log(StepBatch(self._steps)), table.read(), ADMIN_LOG.keys)

    def _check_segments(self) -> None:
        """Check that each offset has one segment, and that the files are there of tables that get rows."""
        segments = self._tables[SEGMENTS.name]
        if wrong := _find_wrong_offsets(segments.read(step=(None, self._last)), self._live):
            self._refuse(SEGMENTS.name, "no segment, or two", ", ".join(wrong[:_SOME]))
        for spec, topic, footer in ((SEGMENTS, "topic", "footer_hash"), (REJECTED_ROWS, "source", None)):
            table = self._tables[spec.name]
            if not table.added.num_rows and not self._is_old[spec.name]:
                continue
            rows = table.read(where=pc.field("file_id").is_valid(), step=(None, self._last))
            if spec is SEGMENTS:  # files of deleted messages may be gone
                rows = drop_deleted_segments(trim_rows(spec, rows, self._live, 0, whole=True), self._live)
            ids, topics = rows["file_id"].to_pylist(), rows[topic].to_pylist()
            footers = dict.fromkeys(ids) if footer is None else dict(zip(ids, rows[footer].to_pylist(), strict=True))
            flaws = verify_files(self._files, footers, dict(zip(ids, topics, strict=True)))
            gone = [f"{file_stem(id_)} ({flaw})" for id_, flaw in flaws.items() if footer or flaw == "gone"]
            if gone:
                self._refuse(spec.name, f"its rows name files that are not there: {', '.join(gone[:_SOME])}")

    def _plan_messages(self) -> None:
        """Plan to register files that tables name, and to drop files that are gone and that nothing names."""
        messages, named = self._tables[MESSAGES.name], set[int | None]()
        for spec in (SEGMENTS, REJECTED_ROWS):
            named.update(self._tables[spec.name].read(["file_id"]).column("file_id").unique().to_pylist())
        waiting = select_newest(self._tables[DELAYED.name].read(["step", "removed", *DELAYED.keys]), DELAYED.keys)
        named.update(waiting.filter(~pc.field("removed")).column("file_id").to_pylist())
        registered = {parse_file_id(file.path) for file in messages.files()}
        for file_id in sorted(id_ for id_ in named - registered if id_ is not None and id_ < FINAL_FILES):
            facts = read_file_facts(self._files, file_id)
            if facts is not None and not facts.flaw:
                written = WrittenFile(file_id, facts.size_bytes, facts.record_count, -1, -1, facts.footer_hash)
                messages.new_files.append(to_table_file(written))
        unneeded = [id_ for id_ in registered - named if id_ >= 0 and self._files.size(file_name(id_)) is None]
        for file_id in unneeded:
            del messages.planned[f"{file_stem(file_id)}.parquet"]
        if messages.new_files or unneeded:
            text = f"lacks {len(messages.new_files)} files, and has {len(unneeded)} that are gone and not needed"
            self.damages.append(Damage(MESSAGES.name, text, _REPAIR))

    def _plan_final_messages(self) -> None:
        """Check that `final_messages` has lost new files only: without a rewrite it would show messages twice."""
        final = self._tables[FINAL_MESSAGES.name]
        self._named = read_named_rows(self._tables[SEGMENTS.name], self._live)
        named = {file.file_id: file.name for file in list_named_files(self._named[0])}
        stored = {parse_final_file_id(file.path) for file in final.files()}
        missing = [name for id_, name in named.items() if id_ not in stored and self._files.size(name) is not None]
        if stored - named.keys() and (self._is_old[FINAL_MESSAGES.name] or self._is_old[SEGMENTS.name]):
            self._refuse(FINAL_MESSAGES.name, f"it has {len(stored - named.keys())} files that segments does not name")
        elif missing and not stored - named.keys():
            self._is_final_missing = True
            self.damages.append(Damage(FINAL_MESSAGES.name, f"it lacks {', '.join(missing[:_SOME])}", _REPAIR))

    def write(self) -> list[str]:
        """Write the plan, and return the tables that were changed.

        Raises:
            TableDamaged: something is beyond repair. Nothing was written.
            NotLeader: a sequencer leads, or has begun to lead.
        """
        if not self.is_possible:
            beyond = "; ".join(f"{damage.table}: {damage.found}" for damage in self.damages if damage.is_beyond_repair)
            raise TableDamaged(f"Nothing was changed, because this is beyond repair: {beyond}.", expected=_RESTORE)
        written = []
        with _lead(self._namespace, *self._stands_on) as renew:
            for spec in self._missing_tables:
                self._store.create(spec)
                self._tables[spec.name], self._is_old[spec.name] = _PlannedTable(self._store, spec), True
                self._plan_admin_log()
                written.append(spec.name)
            for name in sorted(self._tables, key=lambda name: name != MESSAGES.name):  # segments need its files
                renew()
                table, is_old = self._tables[name], self._is_old[name]
                last_step = max(table.last_step(), self._last) if is_old else None
                is_changed = table.write(self._least.get(name, 0), last_step, renew)
                written += [name] if is_changed and name not in written else []
                if name == FINAL_MESSAGES.name and self._is_final_missing:
                    written += [name] if name not in written else []
                    # after the lost versions, so that a stream that has read these gets all files
                    finals = FinalTable(self._files, self._namespace.config, SystemClock(), new_file_id)
                    finals.sync(table, *self._named)
        return written


@contextmanager
def _lead(namespace: Namespace, last_step: int, identity: str) -> Iterator[Callable[[], None]]:
    """Lead from this step on, and yield a function that renews the lease if it is time. Raises NotLeader."""
    files, clock, locks = namespace.files, SystemClock(), LeaderLocks(namespace.files)
    head, lease_ms = decode_head(files.get(step_name(last_step))), namespace.config.ms("lease.ms")
    last_ms = (files.modified_ms(step_name(last_step)) or head.decided_at_ms) + head.lease_ms + _SLACK_MS
    if head.leader and files.time_ms() <= last_ms and not locks.is_dead(head.leader):
        raise NotLeader("A sequencer leads. Stop it, then repair.", found=head.leader, expected="no leader")
    name, epoch = f"{socket.gethostname()}-{os.getpid()}-repair-{new_id()[:6]}", head.leader_epoch + 1
    log = StepLog(files, namespace.namespace_id, last_step, identity, new_id, clock.steady_ms)

    put_at_ms = 0

    def put(leader: str) -> None:
        nonlocal put_at_ms
        put_at_ms, entries = clock.steady_ms(), [JournalEntry(LeaderElected(leader, epoch, lease_ms))]
        log.append(
            log.encode(Step(log.step + 1, max(head.decided_at_ms, files.time_ms()), epoch, entries), leader, lease_ms)
        )

    def renew() -> None:
        if clock.steady_ms() - put_at_ms >= lease_ms // 3:
            put(name)

    locks.hold(name)
    try:
        put(name)
        try:
            yield renew
        except Exception as error:
            with suppress(LakeMQError, OSError):
                put("")
            if isinstance(error, CommitConflict):
                raise NotLeader(f"A sequencer has begun to lead, and the repair ended: {error}.") from error
            raise
        put("")
    finally:
        locks.release()


def _bounds(file: StoredFile) -> tuple[int, int]:
    """Return the first and the last step of a file. A file without statistics may have any."""
    low, high = file.statistics.get("min.step"), file.statistics.get("max.step")
    return low or 0, 1 << 62 if high is None else high


def _has_statistics(file: StoredFile, rows: pa.Table) -> bool:
    """Return whether a file has these rows, as far as its statistics show it."""
    statistics = compute_statistics(rows)
    bounds = {f"min.{name}": value for name, value in statistics["minValues"].items()}
    bounds |= {f"max.{name}": value for name, value in statistics["maxValues"].items()}
    is_within = all(file.statistics.get(name) in (None, value) for name, value in bounds.items())
    return rows.num_rows == file.record_count and is_within


def _to_new_file(file: StoredFile) -> NewFile:
    """Return a file that a commit adds again."""
    # JSON can hold numbers and texts
    plain = [(name, value) for name, value in file.statistics.items() if isinstance(value, int | str)]
    low, high = ({name[4:]: value for name, value in plain if name.startswith(bound)} for bound in ("min.", "max."))
    statistics = {"numRecords": file.record_count, "minValues": low, "maxValues": high}
    return NewFile(unquote(file.path), file.size_bytes, file.modified_ms, statistics, file.partition_values)


def _drop_stored(rows: pa.Table, stored: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows whose keys no stored row has."""
    stored_keys = set(zip(*(stored.column(key).to_pylist() for key in keys), strict=True))
    row_keys = zip(*(rows.column(key).to_pylist() for key in keys), strict=True)
    return rows.filter(pa.array([key not in stored_keys for key in row_keys], pa.bool_()))


def _find_wrong_offsets(segments: pa.Table, live: LiveState) -> list[str]:
    """Return the offsets that have no segment, or two, as "topic-partition first to last"."""
    is_log = pc.is_in(segments.column("kind"), pa.array(["data", "commit", "abort", COMPACTED]))
    names = ("topic_id", "partition", "base_offset", "last_offset")
    extents = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for topic_id, partition, base, last in zip(
        *(segments.filter(is_log).sort_by("base_offset").column(name).to_pylist() for name in names), strict=True
    ):
        extents[topic_id, partition].append((base, last))
    wrong = []
    for topic in live.topics.values():
        for partition in range(topic.log_count):
            reached, end = int(topic.log_starts[partition]), int(topic.high_watermarks[partition])
            start = reached
            for base, last in [*extents[topic.topic_id, partition], (end, end - 1)]:
                if last < start and base != end:
                    continue
                if max(base, start) != reached:
                    low, high = sorted((max(base, start), reached))
                    wrong.append(f"{topic.topic}-{partition} {low} to {high - 1}")
                reached = max(reached, last + 1)
    return wrong
