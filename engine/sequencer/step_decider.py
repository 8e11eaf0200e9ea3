"""Decide one step: prepare the files of its letters, decide them, append the step, and count how long that took.

The order within a step: requests, the lease, observations, timers, recurring and delayed messages that are due, then
what follows for groups.
Rows of docs/architecture.md: publish 8.
"""

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from lakemq.tables.specs.messages import SEQUENCERS_FILES, FileFacts
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files

from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.data_file import file_name, read_file_facts, write_data_file
from ..protocol import machine
from ..protocol.codec.few_rows import FewRows, Header, Rows, rows_to_table
from ..protocol.codec.steps import encode_step_rows, join_step_rows
from ..protocol.errors import StorageError
from ..protocol.rules.clients import decide_renew
from ..protocol.rules.schedules import find_due_occurrences
from ..protocol.rules.timers import Time
from ..protocol.values.dead_letters import DyingFound
from ..protocol.values.decision import DecisionInputs, InlineRows, Limits
from ..protocol.values.delays import RangeKey
from ..protocol.values.groups import MemberSilent, TargetComputed
from ..protocol.values.journal import JournalEntry, Step, is_renewal
from ..protocol.values.log import DataFile, FilesAdded, PendingFile, Produce, RangesWritten, RowsJournaled
from ..protocol.values.schedules import NAME_HEADER, TIME_HEADER, DueOccurrence, SchedulePaused
from ..protocol.values.state import State
from ..protocol.values.topics import LogOutgrown
from .letters.intake import OpenedLetter, Quarantine, StepLetters
from .projector import CurrentPendingFile
from .step_log import EncodedStep
from .term import Term

log = logging.getLogger("lakemq.serve")

# Prepare a step: make all requests to the store that its decisions need, many at once.
#
# A store may be slow or not answer at all. So the wait has a time limit, and the lease is renewed meanwhile.


_AT_ONCE = 16
"""Requests to the store at a time."""
_TURN_S = 0.1
"""How often the lease is looked after while requests are under way."""


@dataclass(frozen=True)
class PreparedStep:
    """The facts that a step's decisions need from the store.

    Attributes:
        inline: the one data file for all rows that came in letters.
        added: the record that names that file.
        rows: those rows as encoded for the step, if they go there.
        first_rows: per letter, and then for recurring messages, where its rows begin in the file.
        facts: by file id, what the store has of the files that requests name. None: nothing.
    """

    inline: DataFile | PendingFile | None = None
    added: FilesAdded | RowsJournaled | None = None
    rows: bytes | None = None
    first_rows: tuple[int, ...] = ()
    facts: dict[int, FileFacts | None] = field(default_factory=dict)


class StepPreparer:
    """Belongs to one sequencer, whose thread calls it."""

    def __init__(self, files: Files, new_file_id: Callable[[], int], timeout_ms: int, max_age_ms: int) -> None:
        """Args:
        new_file_id: returns a random id below SEQUENCERS_FILES.
        timeout_ms: for all requests of one step.
        max_age_ms: of a data file that a request names.
        """
        self._files, self._new_file_id, self._timeout_ms = files, new_file_id, timeout_ms
        self._max_age_ms = max_age_ms
        self._pool: Workers | None = None

    def prepare(
        self,
        taken: Sequence[OpenedLetter],
        recurring: FewRows | None,
        pending_file: CurrentPendingFile,
        give_sign_of_life: Callable[[], None],
    ) -> PreparedStep:
        """Make the requests of one step. Raises StorageError if the store fails or does not answer in time.

        recurring: rows of recurring messages. give_sign_of_life: renews the lease if that is due. It is called
        repeatedly; its error ends the wait.
        """
        parts: list[Rows] = [opened.rows for opened in taken if opened.rows is not None and opened.rows.num_rows]
        parts += [] if recurring is None else [recurring]
        rows = join_step_rows(parts)
        goes_into_step = rows is not None and pending_file.has_room_for(rows.nbytes)
        named = sorted(_find_footer_hashes(taken).items())
        work: list[Callable[[], object]] = [partial(self._inspect_file, *named_file) for named_file in named]
        if named:
            work.append(self._files.time_ms)
        if rows is not None and not goes_into_step:
            work.append(partial(self._write_file, rows))
        answers = self._run_all(work, give_sign_of_life)
        # the answers come in the order of `work`: the named files, then the store's time, then the new file
        inspected: Sequence[Any] = answers[: len(named)]
        facts = {
            file_id: self._refuse_if_old(facts_, written_ms, answers[len(named)])
            for (file_id, _), (facts_, written_ms) in zip(named, inspected, strict=True)
        }
        if rows is not None and goes_into_step:
            body = encode_step_rows(rows)
            file, first = pending_file.add_rows(rows.num_rows, len(body))
            journaled = RowsJournaled(file.file_id, first, rows.num_rows)
            return PreparedStep(file, journaled, body, _find_first_rows(taken, first), facts)
        if rows is not None:
            written: Any = answers[-1]
            return PreparedStep(written, FilesAdded([written]), None, _find_first_rows(taken, 0), facts)
        return PreparedStep(first_rows=_find_first_rows(taken, 0), facts=facts)

    def _run_all(self, requests: Sequence[Callable[[], object]], give_sign_of_life: Callable[[], None]) -> list[object]:
        if not requests:
            return []
        self._pool = self._pool or Workers(_AT_ONCE, "lakemq-preparing")
        futures = [self._pool.submit(request) for request in requests]
        for _ in range(max(1, int(self._timeout_ms / 1000 / _TURN_S))):
            if not wait(futures, _TURN_S).not_done:
                return [future.result() for future in futures]
            give_sign_of_life()
        self.close()  # threads of this pool may hang, so the next step gets a new pool
        raise StorageError(f"The store did not answer in {self._timeout_ms} ms.", found=f"{len(requests)} requests")

    def _inspect_file(self, file_id: int, footer_hash: int | None) -> tuple[FileFacts | None, int | None]:
        """Return the facts of a data file, and when it was written."""
        return read_file_facts(self._files, file_id, footer_hash), self._files.modified_ms(file_name(file_id))

    def _refuse_if_old(self, facts: FileFacts | None, written_ms: int | None, now_ms: Any) -> FileFacts | None:
        """Return the facts, with a flaw if the file is so old that it may be about to be removed."""
        if facts is None or written_ms is None or now_ms - written_ms <= self._max_age_ms:
            return facts
        return facts._replace(flaw="written longer ago than publish.max.duration.ms")

    def _write_file(self, rows: Rows) -> DataFile:
        file_id = SEQUENCERS_FILES | self._new_file_id()
        return DataFile(*write_data_file(self._files, file_id, rows_to_table([rows])))

    def close(self) -> None:
        """Give up requests that still hang."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _find_first_rows(taken: Sequence[OpenedLetter], first: int) -> tuple[int, ...]:
    """Return for each letter, and then for recurring messages, the row of the file at which its own rows begin.

    The first ones begin at `first`.
    """
    counts = (0 if opened.rows is None else opened.rows.num_rows for opened in taken)
    return tuple(accumulate(counts, initial=first))


def _find_footer_hashes(taken: Iterable[OpenedLetter]) -> dict[int, int | None]:
    """Return file_id -> hash of its footer, for files that requests name; None: requests say different hashes."""
    footer_hashes: dict[int, int | None] = {}
    for opened in taken:
        for request in opened.letter.requests:
            for file in request.files if isinstance(request, Produce) else ():
                if footer_hashes.setdefault(file.file_id, file.footer_hash) != file.footer_hash:
                    footer_hashes[file.file_id] = None
    return footer_hashes


# Decide one step and append it to the log.


T = TypeVar("T")

Observation = MemberSilent | TargetComputed | LogOutgrown | DyingFound | RangesWritten
"""A fact that the leader has found out in another thread, between its steps. The next step decides what follows."""


MAX_OCCURRENCES = 1_000
"""Most recurring messages of a step: their rows have at most 16 MB, and to find them takes a tenth of a second."""
RETRY_MS = 5_000
"""How long recurring messages wait after a fault that may pass. One is missed after a minute."""


def build_recurring_rows(recurring: Sequence[DueOccurrence], now_ms: int) -> FewRows | None:
    """Return a row for each copy of these occurrences; None without any. now_ms: their timestamp."""
    copies = [(occurrence, *copy) for occurrence in recurring for copy in occurrence.copies]
    if not copies:
        return None
    return FewRows(
        [occurrence.schedule.topic for occurrence, _, _ in copies],
        [partition for _, _, partition in copies],
        [occurrence.schedule.key for occurrence, _, _ in copies],
        [occurrence.schedule.value for occurrence, _, _ in copies],
        [now_ms * 1000] * len(copies),
        [_list_headers(occurrence) for occurrence, _, _ in copies],
    )


def _list_headers(occurrence: DueOccurrence) -> list[Header]:
    schedule = occurrence.schedule
    added = [(NAME_HEADER, schedule.name.encode()), (TIME_HEADER, str(occurrence.at_ms).encode())]
    return [*schedule.headers, *added]


def decide_recurring(
    state: State, recurring: Sequence[DueOccurrence], file: DataFile | PendingFile | None, first_row: int
) -> list[JournalEntry]:
    """Decide and fold occurrences. Their rows are in the file from `first_row` on, in order. None: they have none."""
    entries: list[JournalEntry] = []
    for occurrence in recurring:
        count, errors = len(occurrence.copies), list[Exception]()
        inline = None if file is None else InlineRows(file, first_row, count)
        entries += machine.decide_observations(state, [occurrence], errors.append, DecisionInputs(inline=inline))
        if errors:  # it would fail in each step, so the schedule is paused
            failed = replace(occurrence, error=f"The occurrence cannot be decided: {errors[0]!r}")
            entries += machine.decide_observations(state, [failed], _log_failed_observation)
        first_row += count
    for entry in entries:
        if isinstance(entry.record, SchedulePaused):
            log.error("The schedule %s is paused. %s", entry.record.name, entry.record.reason)
    return entries


class StepDecider:
    """Decides the steps of one sequencer and appends them. For the sequencer's thread."""

    def __init__(
        self,
        preparer: StepPreparer,
        quarantine: Quarantine,
        limits: Limits,
        clock: Clock,
        crash_point: crash.CrashPoint,
    ) -> None:
        """Create it. quarantine: for letters that meet an unexpected error."""
        self._preparer, self._quarantine, self._limits = preparer, quarantine, limits
        self._clock, self._crash_point = clock, crash_point

    def make_time(self, term: Term, now_ms: int) -> Time:
        return Time(now_ms, self._clock.steady_ms(), self._limits, term.observed_waits)

    def build_renewal_if_due(self, term: Term) -> list[JournalEntry]:
        """Return a renewal of the lease if no step has landed for a third of its time; otherwise no entry."""
        quiet_ms = self._clock.steady_ms() - term.current_at_ms
        return [decide_renew(term.state)] if quiet_ms > term.state.lease_ms // 3 else []

    def find_recurring(self, term: Term) -> list[DueOccurrence]:
        """Return occurrences that are due by the store's time, as delayed messages are.

        If one meets a fault that may pass, all that are due later wait for the next try.
        """
        if not term.is_occurrence_due:
            return []
        now_ms = term.time.store_ms()
        recurring = find_due_occurrences(term.state, now_ms, MAX_OCCURRENCES)
        if failed := [occurrence for occurrence in recurring if occurrence.may_pass]:
            term.recurring_from_ms = now_ms + RETRY_MS
            text = "The schedule %s and %d others are tried again in %d ms. %s"
            log.error(text, failed[0].schedule.name, len(failed) - 1, RETRY_MS, failed[0].error)
        return [occurrence for occurrence in recurring if not occurrence.may_pass]

    def decide(
        self,
        term: Term,
        letters: StepLetters,
        lease: Sequence[JournalEntry],
        due: Sequence[machine.DueTimer] = (),
        observations: Sequence[Observation] = (),
        recurring: Sequence[DueOccurrence] = (),
    ) -> list[JournalEntry]:
        """Decide one step and append it to the log. When this returns, the step has landed."""
        state = term.state
        prepared = self._prepare(term, letters, build_recurring_rows(recurring, term.time.now_ms()))
        machine.begin_step(state, term.time.now_ms())
        entries = [JournalEntry(prepared.added)] if prepared.added else []
        for opened, first_row in zip(letters.taken, prepared.first_rows, strict=False):
            entries += self._decide_letter(state, opened, first_row, prepared)
        entries += machine.fold(state, lease)
        entries += machine.decide_observations(state, observations, _log_failed_observation)
        entries += machine.decide_timers(
            state, due, self.make_time(term, state.now_ms), partial(self._log_failed_due, term)
        )
        entries += decide_recurring(state, recurring, prepared.inline, prepared.first_rows[-1])
        entries += self._release_due_messages(term)
        entries += machine.decide_group_changes(state, _log_failed_group)
        if not entries:  # a step is never empty: the renewal is its only record then
            entries = machine.fold(state, [decide_renew(state)])
        term.observed_waits.observe(machine.find_watched_waits(state), self._clock.steady_ms())
        self._append_step(term, entries, prepared.rows)
        return entries

    def give_sign_of_life(self, term: Term) -> None:
        """Decide a step without letters if the lease must be renewed. Long work around a step calls this repeatedly.

        The step also releases messages that are due and decides changes of groups. It has no recurring messages: their
        rows may need the store, for which the caller may be waiting.
        """
        if renewal := self.build_renewal_if_due(term):
            self.decide(term, StepLetters(), renewal)

    def yield_between_signs_of_life(self, term: Term, items: Iterable[T]) -> Iterator[T]:
        """Yield the items one by one, and renew the lease in between: the work on each may take a while."""
        for item in items:
            self.give_sign_of_life(term)
            yield item

    def _release_due_messages(self, term: Term) -> list[JournalEntry]:
        """Release messages that are due both by the step's time and by the store's, which may be behind it."""
        state = term.state
        term.delay_queue.add_new_ranges(state.delays)
        due = term.delay_queue.take_due(state.delays, min(state.now_ms, term.time.store_ms()))
        return [] if due is None else machine.release_delays(state, due, _log_failed_release)

    def _log_failed_due(self, term: Term, due: machine.DueTimer, error: Exception) -> None:
        """Log a timer that failed unexpectedly, and skip it for the rest of the term: it would fail in each step."""
        log.error("The timer of %s met an unexpected error, and is left out: %s", due[1], error, exc_info=error)
        term.failed_due.add(due)

    def _decide_letter(
        self, state: State, opened: OpenedLetter, first_row: int, prepared: PreparedStep
    ) -> list[JournalEntry]:
        refusal = opened.refusal or self._quarantine.find_refusal(opened.name)
        if refusal is not None:
            return machine.refuse_letter(state, opened.name.client_id, opened.name.number, refusal)
        inline = None
        if prepared.inline is not None and opened.rows is not None:
            inline = InlineRows(prepared.inline, first_row, opened.rows.num_rows)

        def on_error(error: Exception) -> None:
            body = None if opened.on_line is None else opened.on_line.body
            self._quarantine.store_copy(opened.name, error, body)

        try:
            context = DecisionInputs(self._limits, inline, prepared.facts)
            return machine.decide_letter(state, opened.letter, context, on_error)
        except Exception as error:
            # the state may be half folded. The caller throws it away, and the letter is refused unread next time
            on_error(error)
            self._quarantine.refuse_next_time(opened.name.client_id, opened.name.number)
            raise

    def _prepare(self, term: Term, letters: StepLetters, recurring: FewRows | None) -> PreparedStep:
        prepared = self._preparer.prepare(
            letters.taken, recurring, term.pending_file, lambda: self.give_sign_of_life(term)
        )
        if isinstance(prepared.added, FilesAdded):
            self._crash_point("sequencer.rows_written")
        return prepared

    def _append_step(self, term: Term, entries: list[JournalEntry], rows: bytes | None) -> None:
        """Append the step to the log, and queue it for projection. Raises NotLeader."""
        state, begun_at_ms = term.state, self._clock.steady_ms()
        step = Step(state.step, state.now_ms, state.leader_epoch, entries, rows)
        term.log.append(self._encode(term, step))
        term.current_at_ms = begun_at_ms
        if term.lines is not None:
            term.lines.note_step(begun_at_ms)
            if not is_renewal(step):  # followers read a renewed lease with the next step
                term.lines.followers.note_step(step.step)
        term.background.add_step(step)
        term.events.note(step, state)
        self._crash_point("sequencer.step_landed")

    def _encode(self, term: Term, step: Step) -> EncodedStep:
        try:
            return term.log.encode(step, term.state.leader, term.state.lease_ms)
        except Exception:
            for entry in step.entries:
                self._quarantine_unless_encodable(term, step, entry)
            raise

    def _quarantine_unless_encodable(self, term: Term, step: Step, entry: JournalEntry) -> None:
        try:
            alone = Step(step.step, step.decided_at_ms, step.leader_epoch, [entry])
            term.log.encode(alone, term.state.leader, term.state.lease_ms)
        except Exception as error:
            fields = {"step": step.step, "requests": [entry.request_id]}
            text = "The decision for %s cannot be encoded: %s"
            log.error(text, entry.request_id or "time", error, extra=fields)
            if entry.request_id is not None:
                client_id, _, number = entry.request_id.rpartition("/")
                self._quarantine.refuse_next_time(client_id, int(number))


def _log_failed_observation(error: Exception) -> None:
    log.error("An observation of the leader met an unexpected error, and is dropped: %s", error, exc_info=error)


def _log_failed_group(name: str, error: Exception) -> None:
    log.error("The group %s met an unexpected error, and stays unchanged: %s", name, error, exc_info=error)


def _log_failed_release(key: RangeKey, error: Exception) -> None:
    log.error("The release of %s met an unexpected error, and waits: %s", key, error, exc_info=error)


# How long the steps of a process took, for metrics.


BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets. A step on a local disk takes milliseconds; beyond ten seconds, clients lose patience."""


class DurationCounts(NamedTuple):
    """Steps that were put, so far.

    Attributes:
        counts: steps per bucket; the last one has those above all bounds.
        sum_s: how long all of them took together.
        letters: how many letters they decided.
    """

    counts: list[int]
    sum_s: float
    letters: int


class StepDurations:
    """Count steps by their duration. The sequencer's thread adds, and other threads read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s, self._letters = 0.0, 0
        self._step = -1

    def add(self, step: int, letters: int, took_ms: float) -> None:
        """Count one call of `step` of the sequencer. One that has put no step does not count."""
        with self._lock:
            if step == self._step:
                return
            self._step = step
            self._counts[bisect_left(BOUNDS_S, took_ms / 1000)] += 1
            self._sum_s += took_ms / 1000
            self._letters += letters

    def read(self) -> DurationCounts:
        """Return the counts so far."""
        with self._lock:
            return DurationCounts(list(self._counts), self._sum_s, self._letters)
