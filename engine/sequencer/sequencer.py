"""The sequencer: takes all letters that wait, decides them together, appends one step to the journal, answers.

Invariants. A letter is answered only after its step has landed. The state in memory is the fold of the journal: when
anything fails on the way, leadership is in doubt, the state is thrown away and loaded again. Killed anywhere, a letter
that was not answered is still in the mailbox; decided again, it is recognised by its number.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from lakemq.tables.mailbox import LetterName, Mailbox
from lakemq.tables.store import NewerTable, NotATable

from .. import crash
from ..clock import Clock
from ..config import limits_of
from ..datafile import file_name, write_data_file
from ..namespace import Namespace
from ..protocol import leader, machine
from ..protocol.codec import encode_answer
from ..protocol.errors import NewerFormat, NotLeader, StepTooOld, StorageError
from ..protocol.log import InlineRows
from ..protocol.records import Answered, ClientRemoved, Decided, FilesAdded, StepDecisions
from ..protocol.requests import Answer, AnyResult, DataFile, Produce
from ..protocol.state import State
from ..recovery import load_state, read_watermark
from .backstage import Backstage
from .housekeeping import Housekeeping
from .intake import Intake, Reception, Taken
from .journal import Journal
from .projector import Projector
from .standby import Standby

log = logging.getLogger("lakemq.serve")

EXPIRY_INTERVAL_MS = 10_000


@dataclass(frozen=True)
class StepReport:
    """What one step did. `letters`: taken and decided; `backlog`: more wait."""

    step: int
    letters: int
    decisions: int
    backlog: bool


@dataclass
class _Term:
    """What a sequencer has only while it leads; thrown away as a whole when leadership is in doubt.

    state: the fold of the journal up to the version of `journal`; current_at_ms: when that was known to be the newest;
    expire_at_ms: when to look next for who has expired. A term begins with it: many a one is over in seconds.
    """

    state: State
    journal: Journal
    backstage: Backstage
    current_at_ms: int
    expire_at_ms: int


@dataclass(frozen=True)
class _Time:
    """What time may do in a step. passes: abort transactions; expire: also forget the silent; is_due: there is some."""

    passes: bool
    expire: bool
    is_due: bool


_NO_TIME = _Time(False, False, False)


class Sequencer:
    """One of possibly many; at most one leads. Not thread-safe: one thread calls `try_lead`, `step`, `resign`."""

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        clock: Clock,
        new_id: Callable[[], str],
        reached: crash.Reached = crash.nowhere,
        backstage: Executor | None = None,
    ) -> None:
        """backstage: where projections are written; a thread of its own by default."""
        self._ns, self.name, self._clock, self._new_id, self._reached = namespace, name, clock, new_id, reached
        self._owns_executor = backstage is None
        self._executor = backstage or ThreadPoolExecutor(1, thread_name_prefix="lakemq-projector")
        # a mailbox of its own, because it remembers its listing
        self._mailbox = Mailbox(namespace.files)
        self._reception = Reception(self._mailbox, namespace.config, clock)
        self._limits = limits_of(namespace.config)
        self._standby = Standby(namespace.store, clock)
        self._term: _Term | None = None

    @property
    def leads(self) -> bool:
        return self._term is not None

    @property
    def state(self) -> State:
        """What it has decided on top of; of a standby, only who leads."""
        return self._term.state if self._term else self._standby.state

    # -- leadership -------------------------------------------------------------------------------------

    def try_lead(self) -> bool:
        """Take the lease if it is free, ours, or the journal has not moved for a lease; True when this one leads.

        Raises StorageError; trying again later is right then.
        """
        if self._term is not None:
            return True
        try:
            with _store_errors():
                self._term = self._take_over() if self._standby.may_lead(self.name) else None
        except (NotLeader, StepTooOld):
            self._standby.forget()
        except BaseException:
            self._standby.forget()
            raise
        return self.leads

    def _take_over(self) -> _Term | None:
        """A new term; None: the journal has moved meanwhile. Raises NotLeader, StepTooOld where others go on."""
        term = self._recover()
        if term is not None:
            lease_ms = self._ns.config.ms("lease.ms")
            self._decide(term, Intake(), [leader.decide_take_over(term.state, self.name, lease_ms)])
            self._reached("sequencer.elected")
        return term

    def _recover(self) -> _Term | None:
        """The state as stored: projections at the watermark, then the journal's tail."""
        ns, now_ms = self._ns, self._clock.steady_ms()
        journal = Journal(ns.store)
        if journal.version != self._standby.version:
            return None
        watermark = read_watermark(ns.store)
        state = load_state(ns.store, watermark, with_clients=True)
        tail = journal.steps_after(watermark.step)
        housekeeping = Housekeeping(ns.files, ns.config, self._clock, watermark, self._reached)
        projector = Projector(ns.store, housekeeping, self._reached)
        backstage = Backstage(ns.store, journal, housekeeping, projector, self._executor, self._clock, ns.config, tail)
        return _Term(machine.replay(state, tail), journal, backstage, now_ms, now_ms)

    def _step_down(self) -> None:
        term, self._term = self._term, None
        self._standby.forget()
        if term is not None:
            term.backstage.abandon()

    def resign(self) -> None:
        """Project what is decided and give the lease back, so that another need not wait for it to run out.

        Raises StorageError. The sequencer is of no use afterwards.
        """
        try:
            # NotLeader: somebody else has it already
            with suppress(NotLeader), _store_errors():
                if self._term is not None:
                    self._hand_over(self._term)
        finally:
            self._step_down()
            if self._owns_executor:
                self._executor.shutdown()

    def _hand_over(self, term: _Term) -> None:
        # the lease goes last, so that the next leader does not meet our projector
        term.backstage.drain(term.state)
        self._decide(term, Intake(), [leader.decide_resign(term.state)])
        self._reached("sequencer.resigned")
        term.backstage.drain(term.state)

    # -- the step ---------------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """Decide what waits and what is due.

        Raises NotLeader when another one has taken over, StorageError. Either way nothing wrong was answered, and this
        one does not lead any more: it may try to again.
        """
        if self._term is None:
            raise NotLeader("This sequencer does not lead.", found=self.state.leader)
        try:
            with _store_errors():
                return self._step(self._term)
        except BaseException:
            self._step_down()
            raise

    def _step(self, term: _Term) -> StepReport:
        term.backstage.collect()
        intake = self._reception.take(term.state)
        self._reached("sequencer.letters_taken")
        time = self._time(term, intake)
        renewal = self._renewal(term)
        decided = self._decide(term, intake, renewal, time) if intake.taken or renewal or time.is_due else []
        self._reply(term.state, intake, decided)
        term.backstage.project_if_due(term.state)
        return StepReport(term.state.step, len(intake.taken), len(decided), intake.backlog)

    def _time(self, term: _Term, intake: Intake) -> _Time:
        """What time may do in this step, and whether there is anything."""
        # nothing ends while a letter that was sent in time may be waiting
        if intake.repeated or intake.backlog:
            return _NO_TIME
        steady_ms = self._clock.steady_ms()
        expire = steady_ms >= term.expire_at_ms
        if expire:
            term.expire_at_ms = steady_ms + EXPIRY_INTERVAL_MS
        now_ms = max(term.state.now_ms, self._clock.now_ms())
        return _Time(True, expire, machine.is_due(term.state, now_ms, self._limits, expire))

    def _renewal(self, term: _Term) -> list[Decided]:
        """A sign of life when the lease is a third gone."""
        quiet_ms = self._clock.steady_ms() - term.current_at_ms
        return [leader.decide_renew(term.state)] if quiet_ms > term.state.lease_ms // 3 else []

    def _decide(self, term: _Term, intake: Intake, lease: Sequence[Decided], time: _Time = _NO_TIME) -> list[Decided]:
        """One step: what was asked, in order, then what time asks for. It has landed when this returns."""
        inline, first_rows = self._write_inline(intake.taken)
        sizes, state = self._sizes(intake.taken), term.state
        now_ms = machine.begin_step(state, self._clock.now_ms())
        decided = [Decided(FilesAdded([inline]))] if inline else []
        for one, first_row in zip(intake.taken, first_rows, strict=True):
            if one.refusal is not None:
                decided += machine.refuse_letter(state, one.name.client_id, one.name.number, one.refusal)
            else:
                rows = InlineRows(inline, first_row, one.rows.num_rows) if inline and one.rows is not None else None
                decided += machine.decide_letter(state, one.letter, now_ms, rows, sizes, self._limits)
        decided += machine.fold(state, lease)
        if time.passes:
            decided += machine.fold_time(state, self._limits, time.expire)
        self._land(term, decided)
        return decided

    def _write_inline(self, taken: Sequence[Taken]) -> tuple[DataFile | None, list[int]]:
        """All rows that ride in letters, as one data file; and per letter the row its own begin at."""
        first_rows, tables, total = [], [], 0
        for one in taken:
            first_rows.append(total)
            if one.rows is not None:
                tables.append(one.rows)
                total += one.rows.num_rows
        if not total:
            return None, first_rows
        file = DataFile(*write_data_file(self._ns.files, self._new_id(), pa.concat_tables(tables)))
        self._reached("sequencer.rows_written")
        return file, first_rows

    def _sizes(self, taken: Sequence[Taken]) -> dict[str, int | None]:
        """What the store says of the files that requests name."""
        named = {
            file.batch_id
            for one in taken
            for request in one.letter.requests
            if isinstance(request, Produce)
            for file in request.files
        }
        return {batch_id: self._ns.files.size(file_name(batch_id)) for batch_id in named}

    def _land(self, term: _Term, decided: list[Decided]) -> None:
        """Append the step; from here on it is decided. Raises NotLeader."""
        state, begun_at_ms = term.state, self._clock.steady_ms()
        step = StepDecisions(state.step, state.now_ms, state.leader_epoch, decided)
        term.journal.append(step)
        if self._clock.steady_ms() - term.current_at_ms > state.lease_ms // 2:
            # stopped on the way: others may have led since, and cleaned away the log entry that would have told
            term.journal.renew_handle()
        term.current_at_ms = begun_at_ms
        term.backstage.landed(step)
        self._reached("sequencer.journal_appended")

    def _reply(self, state: State, intake: Intake, decided: Sequence[Decided]) -> None:
        mailbox, repeated = self._mailbox, intake.repeated
        for one in decided:
            if isinstance(one.record, Answered):
                self._answer(state.step, one.record.client_id, one.record.number, one.record.results)
        expired = [one.record for one in decided if isinstance(one.record, ClientRemoved) and one.request_id is None]
        if expired:
            self._executor.submit(self._forget_clients, [record.client_id for record in expired])
        for name in repeated:
            client = state.clients.get(name.client_id)
            if client is not None and client.number == name.number:
                self._answer(state.step, name.client_id, name.number, client.results)
        self._reached("sequencer.answered")
        done: list[LetterName] = [one.name for one in intake.taken] + repeated
        if done:
            mailbox.discard(done)
            self._reached("sequencer.letters_discarded")

    def _forget_clients(self, client_ids: Sequence[str]) -> None:
        """In the background: nobody reads their last replies any more."""
        try:
            for client_id in client_ids:
                self._mailbox.forget_client(client_id)
        except OSError as error:
            log.warning("Replies to %d clients that have expired may be left behind: %s", len(client_ids), error)

    def _answer(self, step: int, client_id: str, number: int, results: list[AnyResult]) -> None:
        self._mailbox.reply(client_id, number, encode_answer(Answer(client_id, number, step, results)))


@contextmanager
def _store_errors() -> Iterator[None]:
    """What the store fails with, as StorageError."""
    try:
        yield
    except FileNotFoundError as gone:
        raise StorageError("A file that a table needs is gone: put it back.", found=str(gone)) from gone
    except NewerTable as error:
        raise NewerFormat(str(error)) from error
    except (OSError, NotATable) as error:
        # delta-rs paints a tree of causes over several lines
        text = " ".join(re.sub(r"\x1b\[\d*m|↳", " ", str(error)).split())
        raise StorageError("The sequencer cannot read or write what it must.", found=text) from error
