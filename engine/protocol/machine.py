"""The machine: requests and time in, decisions out; decisions folded into the state. No I/O, no clock, no chance.

`decide_request` only reads the state, `evolve` only writes it, `decide_letter` and `fold_time` do both in turn. What
may happen stands in the registries of the subjects; another subject takes its place in the list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from .errors import ClientEnded, LakeMQError, ThrottlingQuotaExceeded, UnknownServerError
from .rules import (
    clients,
    dead_letters,
    delays,
    deliveries,
    groups,
    leader,
    log,
    offsets,
    producers,
    reconciling,
    topics,
    transactions,
)
from .rules.registries import Folds, Rules
from .rules.timers import Time, Timer, Timers
from .values.base import Record
from .values.clients import Answered, ClientRemoved, Letter, Unreadable
from .values.deciding import NOTHING, Decision, Given
from .values.delays import RangeKey, RangesDue
from .values.journal import JournalEntry, Step
from .values.kinds import AnyRequest, AnyResult
from .values.segments import NO_SEGMENTS, Segments
from .values.state import State

# those of time in this order: who ends does so before anybody is forgotten
SUBJECTS = (topics, log, delays, transactions, offsets, groups, deliveries, dead_letters, clients, producers, leader)

DECIDE: Rules = {kind: rule for subject in SUBJECTS for kind, rule in subject.DECIDE.items()}
EVOLVE: Folds = {kind: fold for subject in SUBJECTS for kind, fold in subject.EVOLVE.items()}
TIMERS: Timers = tuple(timer for subject in SUBJECTS for timer in subject.TIMERS)

MOST_TOLD_BYTES = 16 << 20
"""Of offsets, in the answers of a letter: they are one file, one row of the journal, and wait for one another."""

Due = tuple[Timer, Any]
"""A timer, and the key of what it is due for."""

Unforeseen = Callable[[Exception], None]


def _raised(error: Exception) -> None:
    raise error


def _raised_for(_: Any, error: Exception) -> None:
    raise error


def decide_request(
    state: State, request: AnyRequest | Unreadable, given: Given = NOTHING, unforeseen: Unforeseen = _raised
) -> Decision:
    """The decision on one request. A refusal changes nothing, but that a transaction it was part of must be aborted."""
    try:
        return DECIDE[type(request)](state, request, given)
    except LakeMQError as error:
        return _refused(state, request, error)
    except Exception as error:
        unforeseen(error)
        found = type(error).__name__
        return _refused(state, request, UnknownServerError("The sequencer could not decide this request.", found=found))


def _refused(state: State, request: AnyRequest | Unreadable, error: LakeMQError) -> Decision:
    return Decision(error.refusal(), tuple(transactions.decide_failure(state, request, error)))


def decide_letter(
    state: State, letter: Letter, given: Given = NOTHING, unforeseen: Unforeseen = _raised
) -> list[JournalEntry]:
    """Decide and fold a letter's requests in order; the last record is the answer to the letter.

    The state is folded as it goes, because a request may depend on the one before it in the same letter.
    unforeseen: told of an exception nobody foresaw, which refuses its own request and no other.
    """
    request_id = f"{letter.client_id}/{letter.number}"
    entries: list[JournalEntry] = []
    results: list[AnyResult] = []
    told_bytes = 0
    for request in letter.requests:
        if told_bytes > MOST_TOLD_BYTES and isinstance(request, offsets.TELLING):
            decision = _refused(state, request, ThrottlingQuotaExceeded(found=f"{told_bytes} bytes"))
        else:
            decision = decide_request(state, request, given, unforeseen)
        told_bytes += offsets.told_bytes(decision.result)
        entries += fold(state, [JournalEntry(one.record, one.segments, request_id) for one in decision.entries])
        results.append(decision.result)
    answer = Answered(letter.client_id, letter.number, results)
    return entries + fold(state, [JournalEntry(answer, NO_SEGMENTS, request_id)])


def refuse_letter(state: State, client_id: str, number: int, refusal: LakeMQError) -> list[JournalEntry]:
    """Answer a letter with a refusal of all of it: it cannot be read, or (ClientEnded) the one before it never came.

    A client that has ended is forgotten, so that none of its later letters has its turn either.
    """
    request_id = f"{client_id}/{number}"
    entries = [JournalEntry(Answered(client_id, number, [refusal.refusal()]), NO_SEGMENTS, request_id)]
    if isinstance(refusal, ClientEnded):
        entries.append(JournalEntry(ClientRemoved(client_id, refusal.detail), NO_SEGMENTS, request_id))
    return fold(state, entries)


def due(state: State, time: Time, forget: bool = True) -> list[Due]:
    """What time brings to a step that begins now. forget: also who was silent for long, which looks at everybody."""
    return [
        (timer, key)
        for timer in TIMERS
        if forget or not timer.forgets
        for key in timer.waiting(state)
        if timer.is_due(state, key, time)
    ]


def fold_time(
    state: State, due: Iterable[Due], time: Time, unforeseen: Callable[[Due, Exception], None] = _raised_for
) -> list[JournalEntry]:
    """Decide and fold what is due, after the letters of the step: who did something in it is due no more.

    unforeseen: told of an exception nobody foresaw, for which nothing comes of this one, and all of the others.
    """
    entries: list[JournalEntry] = []
    for timer, key in due:
        if timer.is_due(state, key, time):
            try:
                decided = timer.decide(state, key)
            except Exception as error:
                unforeseen((timer, key), error)
            else:
                entries += fold(state, decided)
    return entries


def fold_seen(state: State, seen: Iterable[Any], unforeseen: Unforeseen = _raised) -> list[JournalEntry]:
    """Decide and fold what the leader has seen or computed by itself; what is stale changes nothing."""
    entries: list[JournalEntry] = []
    for one in seen:
        entries += fold(state, decide_request(state, one, NOTHING, unforeseen).entries)
    return entries


def release(
    state: State, due: RangesDue, unforeseen: Callable[[RangeKey, Exception], None] = _raised_for
) -> list[JournalEntry]:
    """Decide and fold the release of what the leader has found to be due.

    unforeseen: told of an exception nobody foresaw, for which this range waits, and no other does.
    """
    decide = DECIDE[RangesDue]
    try:
        whole = decide(state, due, NOTHING)
    except Exception:
        whole = None
    if whole is not None:
        return fold(state, whole.entries)
    entries: list[JournalEntry] = []
    for key, due_ms, upto in zip(due.ranges, due.due_ms, due.upto, strict=True):
        try:
            decision = decide(state, RangesDue([key], [due_ms], [upto], due.pointer_ms), NOTHING)
        except Exception as error:
            unforeseen(key, error)
        else:
            entries += fold(state, decision.entries)
    return entries


def settle(state: State, unforeseen: Callable[[str, Exception], None] = _raised_for) -> list[JournalEntry]:
    """Decide and fold what follows for the groups that this step has touched, at its end, and what is left to move.

    unforeseen: told of an exception nobody foresaw, for which this group stays as it is, and no other does.
    """
    entries: list[JournalEntry] = []
    for name in sorted(state.touched_groups):
        decided = _settled(state, name, unforeseen)
        if not decided:  # nor would the next step find anything to move
            state.touched_groups.discard(name)
        entries += decided
    return entries


def _settled(state: State, name: str, unforeseen: Callable[[str, Exception], None]) -> list[JournalEntry]:
    entries: list[JournalEntry] = []
    for decide in reconciling.SETTLING:
        try:
            decided = decide(state, state.groups[name])
        except Exception as error:
            unforeseen(name, error)
            break
        entries += fold(state, [JournalEntry(record) for record in decided])
    return entries


def watched(state: State) -> Iterator[Hashable]:
    """What the leader has to see wait, for the timers that count by its patience."""
    return chain.from_iterable(timer.waiting(state) for timer in TIMERS if timer.watched)


def fold(state: State, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Fold entries, in order; returns them."""
    for one in entries:
        evolve(state, one.record, one.segments)
    return list(entries)


def evolve(state: State, record: Record, segments: Segments = NO_SEGMENTS) -> None:
    """Fold one decision into the state. Total: what was decided is never refused here."""
    EVOLVE[type(record)](state, record, segments)


def begin_step(state: State, now_ms: int) -> int:
    """Open the next step; returns its time, which never goes back. All records that follow belong to it."""
    state.step += 1
    state.begin_step()
    state.now_ms = max(state.now_ms, now_ms)
    return state.now_ms


def replay(state: State, steps: Iterable[Step]) -> State:
    """Fold steps of the journal, in order, into the state."""
    for step in steps:
        state.step, state.now_ms = step.step, max(state.now_ms, step.decided_at_ms)
        state.begin_step()
        for one in step.entries:
            evolve(state, one.record, one.segments)
    return state
