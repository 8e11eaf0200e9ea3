"""Decide one step and append it to the log.

The order within a step: requests, the lease, observations, timers, due messages, then what follows for groups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from ..namespace.processes import crash
from ..namespace.processes.clock import Clock
from ..protocol import machine
from ..protocol.rules import leader
from ..protocol.rules.timers import Time
from ..protocol.values.consuming.groups import MemberSilent, TargetComputed
from ..protocol.values.decision import DecisionInputs, InlineRows, Limits
from ..protocol.values.delayed.delays import RangeKey
from ..protocol.values.finals import RangesWritten
from ..protocol.values.journal import JournalEntry, Step, is_renewal
from ..protocol.values.log import FilesAdded
from ..protocol.values.queues.dead_letters import DyingFound
from ..protocol.values.state import State
from ..protocol.values.topics import LogOutgrown
from .letters.intake import OpenedLetter, StepLetters
from .letters.quarantine import Quarantine
from .step_log import EncodedStep
from .step_preparer import PreparedStep, StepPreparer
from .term import Term

log = logging.getLogger("lakemq.serve")

T = TypeVar("T")

Observation = MemberSilent | TargetComputed | LogOutgrown | DyingFound | RangesWritten
"""A fact that the leader has found out in another thread, between its steps. The next step decides what follows."""


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
        return [leader.decide_renew(term.state)] if quiet_ms > term.state.lease_ms // 3 else []

    def decide(
        self,
        term: Term,
        letters: StepLetters,
        lease: Sequence[JournalEntry],
        due: Sequence[machine.DueTimer] = (),
        observations: Sequence[Observation] = (),
    ) -> list[JournalEntry]:
        """Decide one step and append it to the log. When this returns, the step has landed."""
        prepared = self._prepare(term, letters)
        state = term.state
        machine.begin_step(state, term.time.now_ms())
        entries = [JournalEntry(prepared.added)] if prepared.added else []
        for opened, first_row in zip(letters.taken, prepared.first_rows, strict=True):
            entries += self._decide_letter(state, opened, first_row, prepared)
        entries += machine.fold(state, lease)
        entries += machine.decide_observations(state, observations, _log_failed_observation)
        entries += machine.decide_timers(
            state, due, self.make_time(term, state.now_ms), partial(self._log_failed_due, term)
        )
        entries += self._release_due_messages(term)
        entries += machine.decide_group_changes(state, _log_failed_group)
        if not entries:  # a step is never empty: the renewal is its only record then
            entries = machine.fold(state, [leader.decide_renew(state)])
        term.observed_waits.observe(machine.find_watched_waits(state), self._clock.steady_ms())
        self._append_step(term, entries, prepared.rows)
        return entries

    def give_sign_of_life(self, term: Term) -> None:
        """Decide a step without letters if the lease must be renewed. Long work around a step calls this repeatedly.

        The step also releases messages that are due and decides changes of groups.
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

    def _prepare(self, term: Term, letters: StepLetters) -> PreparedStep:
        prepared = self._preparer.prepare(letters.taken, term.pending_file, lambda: self.give_sign_of_life(term))
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
