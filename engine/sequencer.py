"""The sequencer: takes all letters that wait, decides them together, appends one step to the journal, answers.

Invariants. A letter is answered only after its step has landed. The state in memory is the fold of the journal: when an
append fails, leadership is in doubt, the state is thrown away and loaded again. Killed anywhere, a letter that was not
answered is still in the mailbox; decided again, it is recognised by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from lakemq.tables.journal import JOURNAL
from lakemq.tables.mailbox import LetterName

from . import crash
from .clock import Clock
from .datafile import file_name, write_data_file
from .housekeeping import Housekeeping, JournalMerge
from .journal import Journal
from .namespace import Namespace
from .projector import Pass, Projector, plan_pass
from .protocol import leader, machine
from .protocol.clients import Turn, turn_of
from .protocol.codec import decode_letter, encode_answer
from .protocol.errors import ClientEnded, InvalidRequest, LakeMQError, NotLeader
from .protocol.log import InlineRows
from .protocol.records import Answered, Decided, FilesAdded, StepDecisions
from .protocol.requests import Answer, AnyResult, DataFile, Letter, Produce
from .protocol.state import State
from .recovery import load_state, read_watermark

EXPIRY_INTERVAL_MS = 10_000


@dataclass(frozen=True)
class StepReport:
    """What one step did. `letters`: taken and decided; `backlog`: more wait."""

    step: int
    letters: int
    decisions: int
    backlog: bool


@dataclass(frozen=True)
class _Taken:
    """A letter whose turn it is, with the rows that ride in it, or why it is refused unread."""

    name: LetterName
    letter: Letter
    rows: pa.Table | None = None
    refusal: LakeMQError | None = None


class Sequencer:
    """One of possibly many; at most one leads. Not thread-safe: one thread calls `try_lead` and `step`."""

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        clock: Clock,
        new_id: Callable[[], str],
        reached: crash.Reached = crash.nowhere,
        backstage: Executor | None = None,
    ) -> None:
        self._ns, self.name, self._clock, self._new_id, self._reached = (
            namespace,
            name,
            clock,
            new_id,
            reached,
        )
        self._own_backstage = backstage is None
        self._backstage = backstage or ThreadPoolExecutor(1, thread_name_prefix="lakemq-projector")
        self._projecting: Future[JournalMerge | None] | None = None
        self._waiting_since: dict[tuple[str, int], int] = {}
        self._journal: Journal | None = None
        self._watched_version = -1
        self._watched_since_ms = self._appended_at_ms = clock.steady_ms()
        self._tail: list[StepDecisions] = []
        self.state = State()
        self.leads = False

    # -- leadership -------------------------------------------------------------------------------------

    def try_lead(self) -> bool:
        """Take the lease if it is free, ours, or the journal has not moved for a lease; True when this one leads."""
        if self.leads:
            return True
        if self._journal is None:
            self._journal = Journal(self._ns.store)
        version, steady_ms = self._journal.refresh(), self._clock.steady_ms()
        if version != self._watched_version:
            self._watched_version, self._watched_since_ms = version, steady_ms
            self._recover()
        if not leader.may_lead(self.state, self.name, steady_ms - self._watched_since_ms):
            return False
        try:
            self._lead()
        except NotLeader:
            self._step_down()
        return self.leads

    def _lead(self) -> None:
        lease_ms = self._ns.config.ms("lease.ms")
        self._decide([], [leader.decide_take_over(self.state, self.name, lease_ms)])
        config, store = self._ns.config, self._ns.store
        self._housekeeping = Housekeeping(self._ns.files, config, self._clock, self._reached)
        self._projector = Projector(store, self._housekeeping, self._reached)
        self._projected_at_ms = self._expired_at_ms = self._clock.steady_ms()
        self.leads = True

    def _recover(self) -> None:
        """The state as stored: projections at the watermark, then the journal's tail."""
        assert self._journal is not None
        watermark = read_watermark(self._ns.store)
        state = load_state(self._ns.store, watermark, with_producers=True)
        self._tail = self._journal.steps_after(watermark.step)
        self.state = machine.replay(state, self._tail)
        self._watermark = watermark

    def _step_down(self) -> None:
        self.leads = False
        self._journal = None
        self._watched_version, self._watched_since_ms = -1, self._clock.steady_ms()
        if self._projecting is not None:
            self._projecting.exception()
            self._projecting = None

    def resign(self) -> None:
        """Project what is decided and give the lease back, so that another need not wait for it to run out."""
        if self.leads:
            try:
                self._decide([], [leader.decide_resign(self.state)])
                self._project(wait=True)
            except NotLeader:
                pass
            self._step_down()
        if self._own_backstage:
            self._backstage.shutdown()

    # -- the step ---------------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """Decide what waits and what is due. Raises NotLeader when another one has taken over: nothing was answered."""
        try:
            return self._step()
        except NotLeader:
            self._step_down()
            raise

    def _step(self) -> StepReport:
        self._tend()
        taken, repeated = self._take()
        self._reached("sequencer.letters_taken")
        backlog = len(taken) >= self._ns.config.number("step.max.letters")
        # nobody is forgotten while a letter of theirs may be waiting that was decided before
        due = self._due(expire=not repeated and not backlog)
        decided = self._decide(taken, due) if taken or due else []
        self._reply(taken, repeated, decided)
        if self._projection_is_due():
            self._project(wait=False)
        return StepReport(self.state.step, len(taken), len(decided), backlog)

    def _take(self) -> tuple[list[_Taken], list[LetterName]]:
        """Letters whose turn it is, oldest first, and those that were decided before; bounded in number and bytes."""
        config = self._ns.config
        room, taken, repeated = config.number("step.max.bytes"), [], []
        planned: dict[str, int] = {}
        for name in self._ns.mailbox.waiting(config.number("step.max.letters")):
            turn = self._turn(name, planned)
            if turn is Turn.WAIT:
                continue
            if turn is Turn.REPEAT:
                repeated.append(name)
                continue
            body = self._ns.mailbox.take(name)
            if body is None:
                continue
            taken.append(_opened(name, body, in_turn=turn is Turn.DECIDE))
            if turn is Turn.DECIDE:
                planned[name.client_id] = name.number
            room -= len(body)
            if room <= 0:
                break
        return taken, repeated

    def _turn(self, name: LetterName, planned: dict[str, int]) -> Turn:
        if planned.get(name.client_id) == name.number - 1:
            return Turn.DECIDE
        if name.number <= planned.get(name.client_id, 0):
            return Turn.WAIT
        key = (name.client_id, name.number)
        since = self._waiting_since.get(key, self._clock.steady_ms())
        waited_ms = self._clock.steady_ms() - since
        turn = turn_of(self.state, *key, waited_ms, self._ns.config.ms("request.gap.ms"))
        if turn is Turn.WAIT:
            self._waiting_since[key] = since
        else:
            self._waiting_since.pop(key, None)
        return turn

    def _decide(self, taken: Sequence[_Taken], due: Sequence[Decided]) -> list[Decided]:
        """One step: what was asked, in order, then what time asks for. It has landed when this returns."""
        inline, first_rows = self._write_inline(taken)
        sizes = self._sizes(taken)
        now_ms = machine.begin_step(self.state, self._clock.now_ms())
        decided = [Decided(FilesAdded([inline]))] if inline else []
        for one, first_row in zip(taken, first_rows, strict=True):
            if one.refusal is not None:
                decided += machine.refuse_letter(self.state, one.name.client_id, one.name.number, one.refusal)
            else:
                rows = InlineRows(inline, first_row, one.rows.num_rows) if inline and one.rows is not None else None
                decided += machine.decide_letter(self.state, one.letter, now_ms, rows, sizes)
        decided += machine.fold_due(self.state, due)
        self._land(decided)
        return decided

    def _write_inline(self, taken: Sequence[_Taken]) -> tuple[DataFile | None, list[int]]:
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

    def _sizes(self, taken: Sequence[_Taken]) -> dict[str, int | None]:
        """What the store says of the files that requests name."""
        named = {
            file.batch_id
            for one in taken
            for request in one.letter.requests
            if isinstance(request, Produce)
            for file in request.files
        }
        return {batch_id: self._ns.files.size(file_name(batch_id)) for batch_id in named}

    def _due(self, expire: bool) -> list[Decided]:
        """What time asks for: expiries now and then, and a sign of life when the lease is a third gone."""
        steady_ms, config = self._clock.steady_ms(), self._ns.config
        due: list[Decided] = []
        if expire and steady_ms - self._expired_at_ms > EXPIRY_INTERVAL_MS:
            self._expired_at_ms = steady_ms
            expiry = (config.ms("client.expiration.ms"), config.ms("producer.id.expiration.ms"))
            now_ms = max(self.state.now_ms, self._clock.now_ms())
            due += machine.decide_time(self.state, now_ms, *expiry)
        if not due and steady_ms - self._appended_at_ms > self.state.lease_ms // 3:
            due.append(leader.decide_renew(self.state))
        return due

    def _land(self, decided: list[Decided]) -> None:
        """Append the step; from here on it is decided. Raises NotLeader."""
        assert self._journal is not None
        step = StepDecisions(self.state.step, self.state.now_ms, self.state.leader_epoch, decided)
        silent_ms = self._clock.steady_ms() - self._appended_at_ms
        self._journal.append(step)
        if silent_ms > self.state.lease_ms:
            # stopped for longer than a lease: the append may have landed on a version others have long cleaned away
            self._journal.renew_handle(after=0)
        self._appended_at_ms = self._clock.steady_ms()
        self._tail.append(step)
        self._reached("sequencer.journal_appended")

    def _reply(self, taken: Sequence[_Taken], repeated: Sequence[LetterName], decided: Sequence[Decided]) -> None:
        for one in decided:
            if isinstance(one.record, Answered):
                self._answer(one.record.client_id, one.record.number, one.record.results)
        for name in repeated:
            client = self.state.clients.get(name.client_id)
            if client is not None and client.number == name.number:
                self._answer(name.client_id, name.number, client.results)
        self._reached("sequencer.answered")
        done = [one.name for one in taken] + list(repeated)
        if done:
            self._ns.mailbox.discard(done)
            self._reached("sequencer.letters_discarded")

    def _answer(self, client_id: str, number: int, results: list[AnyResult]) -> None:
        body = encode_answer(Answer(client_id, number, self.state.step, results))
        self._ns.mailbox.reply(client_id, number, body)

    # -- projecting -------------------------------------------------------------------------------------

    def _projection_is_due(self) -> bool:
        since_ms = self._clock.steady_ms() - self._projected_at_ms
        return bool(self._tail) and since_ms >= self._ns.config.ms("project.interval.ms")

    def _project(self, wait: bool) -> None:
        """Start writing what is not projected yet; with `wait`, see it done."""
        if self._projecting is not None:
            if not wait and not self._projecting.done():
                return
            self._finish_projection()
        if self._tail:
            work = plan_pass(self.state, self._tail, self._watermark.floor, self._watermark.journal_start)
            self._planned = len(self._tail)
            self._projected_at_ms = self._clock.steady_ms()
            self._projecting = self._backstage.submit(self._write_pass, work)
        if wait and self._projecting is not None:
            self._finish_projection()

    def _write_pass(self, work: Pass) -> JournalMerge | None:
        self._projector.write(work)
        return self._housekeeping.tend_journal(self._ns.store.open(JOURNAL), work.step)

    def _finish_projection(self) -> None:
        assert self._projecting is not None and self._journal is not None
        projecting, self._projecting = self._projecting, None
        merge = projecting.result()
        del self._tail[: self._planned]
        if merge is not None:
            self._journal.replace(merge.add, merge.remove)
            self._housekeeping.merged_journal(merge)

    def _tend(self) -> None:
        """Between two steps: take over what the background has finished, renew the journal's handle."""
        assert self._journal is not None
        if self._projecting is not None and self._projecting.done():
            self._finish_projection()
        self._journal.renew_handle(self._ns.config.number("checkpoint.interval"))


def _opened(name: LetterName, body: bytes, in_turn: bool) -> _Taken:
    """The letter of an object, or the refusal of one that cannot be read or comes after a gap."""
    if not in_turn:
        gap = ClientEnded("A letter before this one never came.", found=f"letter {name.number}")
        return _Taken(name, _nothing(name), refusal=gap)
    try:
        letter, rows = decode_letter(body)
    except ValueError as error:
        unreadable = InvalidRequest(f"The letter cannot be read: {error}")
        return _Taken(name, _nothing(name), refusal=unreadable)
    if (letter.client_id, letter.number) != (name.client_id, name.number):
        alien = InvalidRequest("The letter is not the one its name says.", found=f"{letter.client_id}/{letter.number}")
        return _Taken(name, _nothing(name), refusal=alien)
    return _Taken(name, letter, rows)


def _nothing(name: LetterName) -> Letter:
    return Letter(name.client_id, name.number, [], 0)
