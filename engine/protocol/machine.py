"""The machine: requests and time come in, decisions come out, and decisions are folded into the state.

It does no I/O, reads no clock and uses no random numbers. `decide_request` only reads the state, `evolve` only writes
it; `decide_letter` and `decide_timers` do both in turn. The registries of the subjects say what can happen: a new
subject is added to SUBJECTS. Rows of docs/architecture.md: publish 9.
"""

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
    log,
    offsets,
    reconciling,
    schedules,
    topics,
    transactions,
)
from .rules.timers import Folds, Rules, Time, Timer, Timers
from .values.base import Record
from .values.clients import Answered, ClientRemoved, Letter, Unreadable
from .values.decision import NO_INPUTS, Decision, DecisionInputs
from .values.delays import RangeKey, RangesDue
from .values.journal import JournalEntry, Step
from .values.kinds import AnyRequest, AnyResult
from .values.segments import NO_SEGMENTS, Segments
from .values.state import Changes, State

# Timers run in this order: transactions time out before silent clients and producers are forgotten.
SUBJECTS = (
    topics,
    log,
    delays,
    schedules,
    transactions,
    offsets,
    groups,
    deliveries,
    dead_letters,
    clients,
)

DECIDE: Rules = {kind: rule for subject in SUBJECTS for kind, rule in subject.DECIDE.items()}
EVOLVE: Folds = {kind: fold for subject in SUBJECTS for kind, fold in subject.EVOLVE.items()}
TIMERS: Timers = tuple(timer for subject in SUBJECTS for timer in subject.TIMERS)

MAX_OFFSET_ANSWER_BYTES = 16 << 20
"""Size of the offsets in the answers to one letter. All answers of a letter are one file and one row of the journal,
and wait for each other.
"""

DueTimer = tuple[Timer, Any]
"""A timer that is due, and the key of the thing that it is due for."""

ErrorHandler = Callable[[Exception], None]
"""Is called with an exception that no rule expected."""


def _raise(error: Exception) -> None:
    raise error


def _raise_for(_: Any, error: Exception) -> None:
    raise error


def decide_request(
    state: State,
    request: AnyRequest | Unreadable,
    inputs: DecisionInputs = NO_INPUTS,
    on_error: ErrorHandler = _raise,
) -> Decision:
    """Decide one request. A refusal changes nothing, except that its transaction can then only be aborted."""
    try:
        return DECIDE[type(request)](state, request, inputs)
    except LakeMQError as error:
        return _refuse(state, request, error)
    except Exception as error:
        on_error(error)
        error_name = type(error).__name__
        return _refuse(
            state, request, UnknownServerError("The sequencer could not decide this request.", found=error_name)
        )


def _refuse(state: State, request: AnyRequest | Unreadable, error: LakeMQError) -> Decision:
    return Decision(error.refusal(), tuple(transactions.decide_failure(state, request, error)))


def decide_letter(
    state: State, letter: Letter, inputs: DecisionInputs = NO_INPUTS, on_error: ErrorHandler = _raise
) -> list[JournalEntry]:
    """Decide and fold a letter's requests in order. The last entry is the answer to the letter.

    Each decision is folded before the next one, because a request may depend on the one before it. on_error: called
    with an exception that no rule expected; it refuses its own request and no other.
    """
    request_id = f"{letter.client_id}/{letter.number}"
    entries: list[JournalEntry] = []
    results: list[AnyResult] = []
    offset_bytes = 0
    for request in letter.requests:
        if offset_bytes > MAX_OFFSET_ANSWER_BYTES and isinstance(request, offsets.LARGE_ANSWER_REQUESTS):
            decision = _refuse(state, request, ThrottlingQuotaExceeded(found=f"{offset_bytes} bytes"))
        else:
            decision = decide_request(state, request, inputs, on_error)
        offset_bytes += offsets.estimate_answer_bytes(decision.result)
        entries += fold(state, [JournalEntry(entry.record, entry.segments, request_id) for entry in decision.entries])
        results.append(decision.result)
    answer = Answered(letter.client_id, letter.number, results)
    return entries + fold(state, [JournalEntry(answer, NO_SEGMENTS, request_id)])


def refuse_letter(state: State, client_id: str, number: int, refusal: LakeMQError) -> list[JournalEntry]:
    """Answer a letter by refusing all of it: it cannot be read, or (ClientEnded) the letter before it never came.

    A client that has ended is forgotten, so that none of its later letters is decided.
    """
    request_id = f"{client_id}/{number}"
    entries = [JournalEntry(Answered(client_id, number, [refusal.refusal()]), NO_SEGMENTS, request_id)]
    if isinstance(refusal, ClientEnded):
        entries.append(JournalEntry(ClientRemoved(client_id, refusal.detail), NO_SEGMENTS, request_id))
    return fold(state, entries)


def find_due(state: State, time: Time, with_expiries: bool = True) -> list[DueTimer]:
    """Return the timers that are due. with_expiries: check also those that are slow to check (`Timer.is_expiry`)."""
    return [
        (timer, key)
        for timer in TIMERS
        if with_expiries or not timer.is_expiry
        for key in timer.list_keys(state)
        if timer.is_due(state, key, time)
    ]


def decide_timers(
    state: State, due: Iterable[DueTimer], time: Time, on_error: Callable[[DueTimer, Exception], None] = _raise_for
) -> list[JournalEntry]:
    """Decide and fold the timers that are due. This comes after the step's letters, which may have made some obsolete.

    on_error: called with an exception that no rule expected. Its timer does nothing; the others run.
    """
    entries: list[JournalEntry] = []
    for timer, key in due:
        if timer.is_due(state, key, time):
            try:
                decided = timer.decide(state, key)
            except Exception as error:
                on_error((timer, key), error)
            else:
                entries += fold(state, decided)
    return entries


def decide_observations(
    state: State, observations: Iterable[Any], on_error: ErrorHandler = _raise, inputs: DecisionInputs = NO_INPUTS
) -> list[JournalEntry]:
    """Decide and fold what the leader has observed or computed itself. An outdated observation changes nothing."""
    entries: list[JournalEntry] = []
    for observation in observations:
        entries += fold(state, decide_request(state, observation, inputs, on_error).entries)
    return entries


def release_delays(
    state: State, due: RangesDue, on_error: Callable[[RangeKey, Exception], None] = _raise_for
) -> list[JournalEntry]:
    """Decide and fold the release of delayed rows that the leader has found to be due.

    on_error: called with an exception that no rule expected. Its range keeps waiting; the others are released.
    """
    decide = DECIDE[RangesDue]
    try:
        whole = decide(state, due, NO_INPUTS)
    except Exception:  # one range must not hold up the others, so each is decided alone below
        whole = None
    if whole is not None:
        return fold(state, whole.entries)
    entries: list[JournalEntry] = []
    for key, due_ms, upto in zip(due.ranges, due.due_ms, due.upto, strict=True):
        try:
            decision = decide(state, RangesDue([key], [due_ms], [upto], due.pointer_ms), NO_INPUTS)
        except Exception as error:
            on_error(key, error)
        else:
            entries += fold(state, decision.entries)
    return entries


def decide_group_changes(state: State, on_error: Callable[[str, Exception], None] = _raise_for) -> list[JournalEntry]:
    """Decide and fold, at the end of a step, what follows for the groups that it has touched.

    on_error: called with an exception that no rule expected. Its group does not change; the others are settled.
    """
    entries: list[JournalEntry] = []
    for name in sorted(state.touched_groups):
        decided = _settle_group(state, name, on_error)
        if not decided:  # there is nothing left to move, so the next step need not look at it
            state.touched_groups.discard(name)
        entries += decided
    return entries


def _settle_group(state: State, name: str, on_error: Callable[[str, Exception], None]) -> list[JournalEntry]:
    entries: list[JournalEntry] = []
    for decide in reconciling.SETTLING:
        try:
            decided = decide(state, state.groups[name])
        except Exception as error:
            on_error(name, error)
            break
        entries += fold(state, [JournalEntry(record) for record in decided])
    return entries


def find_watched_waits(state: State) -> Iterator[Hashable]:
    """Yield the keys of the waits that the leader has to observe itself."""
    return chain.from_iterable(timer.list_keys(state) for timer in TIMERS if timer.watched)


def fold(state: State, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Fold entries in order, and return them."""
    for entry in entries:
        evolve(state, entry.record, entry.segments)
    return list(entries)


def evolve(state: State, record: Record, segments: Segments = NO_SEGMENTS) -> None:
    """Fold one record into the state. It never fails: the record is already decided."""
    EVOLVE[type(record)](state, record, segments)


def begin_step(state: State, now_ms: int) -> int:
    """Begin the next step and return its time, which never goes back. All records that follow belong to it."""
    state.step += 1
    state.begin_step()
    state.now_ms = max(state.now_ms, now_ms)
    return state.now_ms


def follow(state: State, steps: Iterable[Step]) -> None:
    """Fold decided steps, in order, into a state that is never projected, and forget what they have changed.

    Answers are left out: only the leader gives them again.
    """
    replay(state, steps, left_out=Answered)
    state.changes = Changes()


def replay(state: State, steps: Iterable[Step], left_out: type[Record] | None = None) -> State:
    """Fold decided steps, in order, into the state, and return it. left_out: a kind of records to pass over."""
    for step in steps:
        state.step, state.now_ms = step.step, max(state.now_ms, step.decided_at_ms)
        state.begin_step()
        for entry in step.entries:
            if type(entry.record) is not left_out:
                evolve(state, entry.record, entry.segments)
    return state
