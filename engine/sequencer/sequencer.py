"""The sequencer: takes all letters that wait, decides them together, appends one step to the journal, answers.

Invariants. A letter is answered only after its step has landed. The state in memory is the fold of the journal: when
anything fails on the way, leadership is in doubt, the state is thrown away and loaded again. Killed anywhere, a letter
that was not answered is still in the mailbox; decided again, it is recognised by its number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from lakemq.tables.storage.inotify import Watch
from lakemq.tables.storage.mailbox import LetterName, Mailbox
from lakemq.tables.storage.workers import Workers

from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.config import limits_of
from ..namespace.load import damage_told
from ..namespace.namespace import Namespace
from ..namespace.store_errors import store_errors
from ..protocol import machine
from ..protocol.codec.journal import encode_step
from ..protocol.errors import NotLeader, StepTooOld
from ..protocol.rules import leader
from ..protocol.rules.ending import waits_for_patience
from ..protocol.rules.timers import Time
from ..protocol.values.clients import Answered, ClientRemoved
from ..protocol.values.dead_letters import DyingFound
from ..protocol.values.deciding import Given, InlineRows
from ..protocol.values.delays import RangeKey
from ..protocol.values.groups import MemberSilent, TargetComputed
from ..protocol.values.journal import JournalEntry, Step
from ..protocol.values.log import FilesAdded
from ..protocol.values.state import State
from ..protocol.values.topics import LogOutgrown
from .aside import Aside
from .intake import Intake, OpenedLetter, StepLetters
from .preparing import PreparedStep, Preparing
from .replies import Replies, Reply
from .standby import Standby
from .term import Term, Terms

log = logging.getLogger("lakemq.serve")

T = TypeVar("T")

Seen = MemberSilent | TargetComputed | LogOutgrown | DyingFound
"""What the leader has found out by itself."""

EXPIRY_INTERVAL_MS = 10_000
MOST_FAILURES = 3
"""Terms in a row without a step that landed; then the lease is given away, for one that may do better where it runs."""

BACKLOG_MS = 10_000
"""Of letters that were not looked at; one that lasts longer keeps no transaction from its timeout any more."""

_WHAT = "The sequencer cannot read or write what it must."


@dataclass(frozen=True)
class StepReport:
    """What one step did. `letters`: taken and decided; `backlog`: more wait; `patience`: something is overdue that the
    leader must see wait for a while yet: a transaction for its timeout, a letter for the one before it; working: what a
    group is to have is being computed or is yet to move, or messages that are due are yet to be released; due_in_ms:
    until members are to be looked at, a delay of a group is over, or a message is due.
    """

    step: int
    letters: int
    decisions: int
    backlog: bool
    patience: bool
    working: bool = False
    due_in_ms: float | None = None


def _tell_of_seen(error: Exception) -> None:
    log.error("What the leader has seen met an error nobody foresaw: %s", error, exc_info=error)


def _tell_of_group(name: str, error: Exception) -> None:
    log.error("The group %s met an error nobody foresaw, and stays as it is: %s", name, error, exc_info=error)


def _tell_of_delay(key: RangeKey, error: Exception) -> None:
    log.error("The release of %s met an error nobody foresaw, and waits: %s", key, error, exc_info=error)


class Sequencer:
    """One of possibly many; at most one leads. Not thread-safe: one thread calls `try_lead`, `step`, `resign`."""

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        clock: Clock,
        new_file_id: Callable[[], int],
        reached: crash.Reached = crash.nowhere,
        background: Executor | None = None,
    ) -> None:
        """background: where projections are written; a thread of its own by default."""
        self._ns, self.name, self._clock, self._reached = namespace, name, clock, reached
        self._owns_executor = background is None
        self._executor = background or Workers(1, "lakemq-projector")
        # a mailbox of its own, because it remembers its listing
        self._mailbox = Mailbox(namespace.files)
        self._intake = Intake(self._mailbox, namespace.config, clock)
        self._aside = Aside(namespace.files, self._mailbox)
        timeout_ms, max_age_ms = map(namespace.config.ms, ("step.timeout.ms", "publish.max.duration.ms"))
        self._preparing = Preparing(namespace.files, new_file_id, timeout_ms, max_age_ms)
        # not the projector's: sweeping may take long
        self._sweeper = background or Workers(1, "lakemq-sweeper")
        self._replies = Replies(self._mailbox, clock, self._sweeper)
        # what the leader sees of members and computes for groups, beside its steps
        self._watchers = background or Workers(2, "lakemq-watch")
        self._terms = Terms(namespace, clock, new_file_id, self._executor, self._watchers, reached)
        self._limits = limits_of(namespace.config)
        self._standby = Standby(namespace.store, clock)
        self._term: Term | None = None
        self._failures = 0

    @property
    def leads(self) -> bool:
        return self._term is not None

    @property
    def state(self) -> State:
        """What it has decided on top of; of a standby, only who leads."""
        term = self._term  # another thread may look while this one steps down
        return term.state if term else self._standby.state

    def watch_letters(self) -> Watch | None:
        """Tells of letters that come; None: there was none yet, or they are not told of."""
        return self._mailbox.watch_letters()

    # -- leadership -------------------------------------------------------------------------------------

    def try_lead(self) -> bool:
        """Take the lease if it is free, ours, or the journal has not moved for a lease; True when this one leads.

        After so many steps that failed in a row it does not count as ours: another may have better luck.

        Raises StorageError; trying again later is right then.
        """
        if self._term is not None:
            return True
        try:
            with store_errors(_WHAT):
                mine = self.name if self._failures < MOST_FAILURES else None
                self._term = self._take_over() if self._standby.may_lead(mine) else None
        except (NotLeader, StepTooOld):
            self._standby.forget()
        except BaseException:
            self._standby.forget()
            raise
        return self.leads

    def _take_over(self) -> Term | None:
        """A new term; None: the journal has moved meanwhile. Raises NotLeader, StepTooOld where others go on."""
        with damage_told(self._ns.store):
            term = self._terms.begin(self._standby.version)
        if term is not None:
            lease_ms = self._ns.config.ms("lease.ms")
            self._decide(term, StepLetters(), [leader.decide_take_over(term.state, self.name, lease_ms)])
            self._reached("sequencer.elected")
        return term

    def _step_down(self) -> None:
        term, self._term = self._term, None
        self._standby.forget()
        if term is not None:
            term.slots.close()
            term.background.abandon()

    def resign(self) -> None:
        """Project what is decided and give the lease back, so that another need not wait for it to run out.

        Raises StorageError. The sequencer is of no use afterwards.
        """
        try:
            # NotLeader: somebody else has it already
            with suppress(NotLeader), store_errors(_WHAT):
                if self._term is not None:
                    self._hand_over(self._term)
        finally:
            self._step_down()
            self._preparing.close()
            if self._owns_executor:
                self._executor.shutdown()
                self._sweeper.shutdown(wait=False, cancel_futures=True)
                self._watchers.shutdown(wait=False, cancel_futures=True)

    def _hand_over(self, term: Term) -> None:
        # the lease goes last, so that the next leader does not meet our projector
        term.background.drain(term.state)
        self._decide(term, StepLetters(), [leader.decide_resign(term.state)])
        self._reached("sequencer.resigned")
        term.background.drain(term.state)

    def look_for_old(self) -> None:
        """Have the next step begin to look for messages that retention deletes, if this one leads."""
        if self._term is not None:
            self._term.retention.make_due()

    # -- the step ---------------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """Decide what waits and what is due.

        Raises NotLeader when another one has taken over, StorageError. Either way nothing wrong was answered, and this
        one does not lead any more: it may try to again.
        """
        if self._term is None:
            raise NotLeader("This sequencer does not lead.", found=self.state.leader)
        try:
            with store_errors(_WHAT):
                report = self._step(self._term)
        except BaseException as error:
            self._failures += not isinstance(error, NotLeader)
            self._step_down()
            raise
        self._failures = 0
        return report

    def _step(self, term: Term) -> StepReport:
        term.background.collect()
        letters = self._intake.take(term.state, term.journal.table_id, lambda: self._give_sign_of_life(term))
        self._reached("sequencer.letters_taken")
        due = self._due(term, letters)
        renewal = self._renewal(term)
        now_ms = term.time.store_ms()
        old = term.retention.outgrown(term.state, min(now_ms, term.time.now_ms()))
        dying = term.dead_letters.found(term.state)
        seen: list[Seen] = [*term.targets.computed(), *term.attendance.silent(term.state), *old, *dying]
        term.slots.read_ahead(term.state.delays, now_ms)
        asked = letters.taken or renewal or due or seen or term.state.moving_on()
        is_due = bool(asked) or term.slots.is_due(now_ms)
        entries = self._decide(term, letters, renewal, due, seen) if is_due else []
        term.targets.ask(term.state)
        self._reply(term, letters, entries)
        self._tell(term, letters)
        self._replies.sweep_if_due(term.state)
        term.background.project_if_due(term.state, lambda: self._give_sign_of_life(term))
        patience = letters.gaps or waits_for_patience(term.state, self._time(term, term.time.now_ms()))
        told = term.state.step, len(letters.taken), len(entries), letters.backlog
        return StepReport(*told, patience, term.is_working, term.due_in_ms())

    def _due(self, term: Term, letters: StepLetters) -> list[machine.Due]:
        """What time brings to this step."""
        steady_ms = self._clock.steady_ms()
        all_seen = not (letters.repeated or letters.backlog)
        if all_seen:
            term.all_seen_at_ms = steady_ms
        elif steady_ms - term.all_seen_at_ms < BACKLOG_MS:
            return []  # nothing ends while a letter that was sent in time may be waiting
        # a letter of a client that was forgotten would be decided again
        expire = steady_ms >= term.expire_at_ms and all_seen and not letters.undeleted
        if expire:
            term.expire_at_ms = steady_ms + EXPIRY_INTERVAL_MS
        due = machine.due(term.state, self._time(term, term.time.now_ms()), expire)
        return [one for one in due if one not in term.given_up]

    def _time(self, term: Term, now_ms: int) -> Time:
        return Time(now_ms, self._clock.steady_ms(), self._limits, term.patience)

    def _renewal(self, term: Term) -> list[JournalEntry]:
        """A sign of life when the lease is a third gone."""
        quiet_ms = self._clock.steady_ms() - term.current_at_ms
        return [leader.decide_renew(term.state)] if quiet_ms > term.state.lease_ms // 3 else []

    def _decide(
        self,
        term: Term,
        letters: StepLetters,
        lease: Sequence[JournalEntry],
        due: Sequence[machine.Due] = (),
        seen: Sequence[Seen] = (),
    ) -> list[JournalEntry]:
        """One step: what was asked, in order, then what was seen, what time asks for, and what follows of it all.

        It has landed when this returns.
        """
        prepared = self._prepared(term, letters)
        state = term.state
        machine.begin_step(state, term.time.now_ms())
        entries = [JournalEntry(prepared.added)] if prepared.added else []
        for one, first_row in zip(letters.taken, prepared.first_rows, strict=True):
            entries += self._decide_letter(state, one, first_row, prepared)
        entries += machine.fold(state, lease)
        entries += machine.fold_seen(state, seen, _tell_of_seen)
        entries += machine.fold_time(state, due, self._time(term, state.now_ms), partial(self._give_up, term))
        entries += self._release(term)
        entries += machine.settle(state, _tell_of_group)
        if not entries:  # a step is never empty
            entries = machine.fold(state, [leader.decide_renew(state)])
        term.patience.look(machine.watched(state), self._clock.steady_ms())
        self._land(term, entries, prepared.rows)
        return entries

    def _release(self, term: Term) -> list[JournalEntry]:
        """What waited and is due by the time of this step, and by the store's, which may be behind."""
        state = term.state
        term.slots.look(state.delays)
        due = term.slots.due(state.delays, min(state.now_ms, term.time.store_ms()))
        return [] if due is None else machine.release(state, due, _tell_of_delay)

    def _give_up(self, term: Term, due: machine.Due, error: Exception) -> None:
        """What is due has met an error nobody foresaw, and would again in each step."""
        log.error("What is due for %s met an error nobody foresaw: %s", due[1], error, exc_info=error)
        term.given_up.add(due)

    def _decide_letter(
        self, state: State, one: OpenedLetter, first_row: int, prepared: PreparedStep
    ) -> list[JournalEntry]:
        refusal = one.refusal or self._aside.refusal(one.name)
        if refusal is not None:
            return machine.refuse_letter(state, one.name.client_id, one.name.number, refusal)
        inline = None
        if prepared.inline is not None and one.rows is not None:
            inline = InlineRows(prepared.inline, first_row, one.rows.num_rows)

        def unforeseen(error: Exception) -> None:
            self._aside.keep(one.name, error)

        try:
            given = Given(self._limits, inline, prepared.facts)
            return machine.decide_letter(state, one.letter, given, unforeseen)
        except Exception as error:
            # the state may be half folded: it is thrown away
            unforeseen(error)
            self._aside.poison(one.name.client_id, one.name.number)
            raise

    def _prepared(self, term: Term, letters: StepLetters) -> PreparedStep:
        prepared = self._preparing.prepare(letters.taken, term.pending, lambda: self._give_sign_of_life(term))
        if isinstance(prepared.added, FilesAdded):
            self._reached("sequencer.rows_written")
        return prepared

    def _give_sign_of_life(self, term: Term) -> None:
        """Within a step that takes long: a step of its own, when it is time for one."""
        if renewal := self._renewal(term):
            self._decide(term, StepLetters(), renewal)

    def _land(self, term: Term, entries: list[JournalEntry], rows: bytes | None) -> None:
        """Append the step; from here on it is entries. Raises NotLeader."""
        state, begun_at_ms = term.state, self._clock.steady_ms()
        step = Step(state.step, state.now_ms, state.leader_epoch, entries, rows)
        term.journal.append(step.step, self._encoded(step))
        term.current_at_ms = begun_at_ms
        term.background.landed(step)
        self._reached("sequencer.journal_appended")

    def _encoded(self, step: Step) -> pa.Table:
        try:
            return encode_step(step)
        except Exception:
            for one in step.entries:
                self._poison_unless_encodable(step, one)
            raise

    def _poison_unless_encodable(self, step: Step, one: JournalEntry) -> None:
        try:
            encode_step(Step(step.step, step.decided_at_ms, step.leader_epoch, [one]))
        except Exception as error:
            told = {"step": step.step, "requests": [one.request_id]}
            text = "What was decided for %s cannot be journaled: %s"
            log.error(text, one.request_id or "time", error, extra=told)
            if one.request_id is not None:
                client_id, _, number = one.request_id.rpartition("/")
                self._aside.poison(client_id, int(number))

    def _reply(self, term: Term, letters: StepLetters, entries: Sequence[JournalEntry]) -> None:
        state, records = term.state, [one.record for one in entries]
        replies: list[Reply] = [(r.client_id, r.number, r.results) for r in records if isinstance(r, Answered)]
        for name in letters.repeated:
            client = state.clients.get(name.client_id)
            if client is not None and client.number == name.number:
                replies.append((name.client_id, name.number, client.results))
        self._replies.give(state.step, self._living(term, replies))
        self._replies.again(state)
        expired = [one.record for one in entries if isinstance(one.record, ClientRemoved) and one.request_id is None]
        self._replies.forget([record.client_id for record in expired])
        self._reached("sequencer.answered")
        done: list[LetterName] = [one.name for one in letters.taken] + letters.repeated
        if done:
            self._intake.discard(self._living(term, done))
            self._reached("sequencer.letters_discarded")

    def _tell(self, term: Term, letters: StepLetters) -> None:
        if letters.taken and log.isEnabledFor(logging.DEBUG):
            requests = [f"{one.name.client_id}/{one.name.number}" for one in letters.taken]
            told = {"step": term.state.step, "letters": len(requests), "requests": requests}
            log.debug("step %d decided %d letters", term.state.step, len(requests), extra=told)

    def _living(self, term: Term, items: Iterable[T]) -> Iterator[T]:
        """One after the other, with signs of life in between: each may take the store a while."""
        for one in items:
            self._give_sign_of_life(term)
            yield one
