"""The machine: requests and time in, decisions out; decisions folded into the state. No I/O, no clock, no chance.

`decide_request` only reads the state, `evolve` only writes it, `decide_letter` and `fold_time` do both in turn.
A group or delay machine takes its place beside `log` and `transactions` in the two tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lakemq.tables.specs.messages import FileFacts

from . import clients, leader, log, offsets, producers, topics, transactions
from .decision import Decision
from .errors import ClientEnded, LakeMQError, UnknownServerError
from .limits import DEFAULT_LIMITS, Limits
from .records import Answered, AnyRecord, ClientRemoved, Decided, StepDecisions
from .requests import (
    AbortTransaction,
    AlterTopic,
    AnyRequest,
    AnyResult,
    CommitOffsets,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    EndTransaction,
    FetchOffsets,
    InitProducer,
    Letter,
    Produce,
    Unreadable,
)
from .segments import NO_SEGMENTS, Segments
from .state import State

_DECIDE: dict[type, Callable[[State, Any], Decision]] = {
    CreateTopic: topics.decide_create,
    AlterTopic: topics.decide_alter,
    DeleteTopic: topics.decide_delete,
    DeleteRecords: topics.decide_delete_records,
    EndTransaction: transactions.decide_end,
    AbortTransaction: transactions.decide_abort,
    CommitOffsets: offsets.decide_commit,
    FetchOffsets: offsets.decide_fetch,
    Unreadable: lambda _, request: Decision(request.refusal),
}

_EVOLVE: dict[str, Callable[[State, Any], None]] = {
    "leader_elected": leader.evolve_elected,
    "topic_created": topics.evolve_created,
    "topic_altered": topics.evolve_altered,
    "topic_deleted": topics.evolve_deleted,
    "records_deleted": topics.evolve_records_deleted,
    "producer_initialized": producers.evolve_initialized,
    "producer_expired": producers.evolve_expired,
    "transaction_moved": transactions.evolve_moved,
    "transaction_failed": transactions.evolve_failed,
    "offsets_committed": offsets.evolve_committed,
    "offsets_removed": offsets.evolve_removed,
    "answered": clients.evolve_answered,
    "client_removed": clients.evolve_removed,
}


Unforeseen = Callable[[Exception], None]


def _raised(error: Exception) -> None:
    raise error


def decide_request(
    state: State,
    request: AnyRequest | Unreadable,
    now_ms: int,
    inline: log.InlineRows | None = None,
    facts: Mapping[str, FileFacts | None] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    unforeseen: Unforeseen = _raised,
) -> Decision:
    """The decision on one request. A refusal changes nothing, but that a transaction it was part of must be aborted."""
    try:
        if isinstance(request, Produce):
            return log.decide_produce(state, request, now_ms, inline, facts)
        if isinstance(request, InitProducer):
            named = request.transactional_id is not None
            return transactions.decide_init(state, request, limits) if named else producers.decide_init(state)
        return _DECIDE[type(request)](state, request)
    except LakeMQError as error:
        return Decision(error.refusal(), tuple(transactions.decide_failure(state, request, error)))
    except Exception as error:
        unforeseen(error)
        refusal = UnknownServerError("The sequencer could not decide this request.", found=type(error).__name__)
        return Decision(refusal.refusal(), tuple(transactions.decide_failure(state, request, refusal)))


def decide_letter(
    state: State,
    letter: Letter,
    now_ms: int,
    inline: log.InlineRows | None = None,
    facts: Mapping[str, FileFacts | None] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    unforeseen: Unforeseen = _raised,
) -> list[Decided]:
    """Decide and fold a letter's requests in order; the last record is the answer to the letter.

    The state is folded as it goes, because a request may depend on the one before it in the same letter.
    unforeseen: told of an exception nobody foresaw, which refuses its own request and no other.
    """
    request_id = f"{letter.client_id}/{letter.number}"
    decided: list[Decided] = []
    results: list[AnyResult] = []
    for request in letter.requests:
        decision = decide_request(state, request, now_ms, inline, facts, limits, unforeseen)
        decided += fold(state, [Decided(one.record, one.segments, request_id) for one in decision.decided])
        results.append(decision.result)
    answer = Answered(letter.client_id, letter.number, results)
    return decided + fold(state, [Decided(answer, NO_SEGMENTS, request_id)])


def refuse_letter(state: State, client_id: str, number: int, refusal: LakeMQError) -> list[Decided]:
    """Answer a letter with a refusal of all of it: it cannot be read, or (ClientEnded) the one before it never came.

    A client that has ended is forgotten, so that none of its later letters has its turn either.
    """
    request_id = f"{client_id}/{number}"
    decided = [Decided(Answered(client_id, number, [refusal.refusal()]), NO_SEGMENTS, request_id)]
    if isinstance(refusal, ClientEnded):
        decided.append(Decided(ClientRemoved(client_id, refusal.detail), NO_SEGMENTS, request_id))
    return fold(state, decided)


def is_due(state: State, overdue: Sequence[str], now_ms: int, limits: Limits, expire: bool = True) -> bool:
    """Whether `fold_time` in a step at `now_ms` would have something to do."""
    return bool(overdue or (expire and _expired(state, now_ms, limits)))


def fold_time(state: State, overdue: Sequence[str], limits: Limits, expire: bool = True) -> list[Decided]:
    """Decide and fold what is due now, after the letters of the step: who did something in it has not expired.

    overdue: ids whose transaction was open for too long as the step began, to be aborted; expire: also forget who was
    silent for long, which takes a look at everybody.
    """
    decided: list[Decided] = []
    for name in overdue:
        decided += fold(state, transactions.decide_timeout(state, name))
    return decided + (fold(state, _expired(state, state.now_ms, limits)) if expire else [])


def _expired(state: State, now_ms: int, limits: Limits) -> list[Decided]:
    due = clients.decide_expiry(state, limits.client_expiration_ms, now_ms)
    due += producers.decide_expiry(state, limits.producer_id_expiration_ms, now_ms)
    return due + transactions.decide_expiry(state, limits.transactional_id_expiration_ms, now_ms)


def fold(state: State, decided: Sequence[Decided]) -> list[Decided]:
    """Fold decisions, in order; returns them."""
    for one in decided:
        evolve(state, one.record, one.segments)
    return list(decided)


def evolve(state: State, record: AnyRecord, segments: Segments = NO_SEGMENTS) -> None:
    """Fold one decision into the state. Total: what was decided is never refused here."""
    if record.kind == "produced":
        log.evolve_produced(state, record, segments)  # type: ignore[arg-type]
    elif record.kind == "markers_written":
        transactions.evolve_markers(state, segments)
    elif fold := _EVOLVE.get(record.kind):
        fold(state, record)


def kinds() -> list[str]:
    """The kinds of decisions that change the state; the others are for the tables only."""
    return ["produced", "markers_written", *_EVOLVE]


def begin_step(state: State, now_ms: int) -> int:
    """Open the next step; returns its time, which never goes back. All records that follow belong to it."""
    state.step += 1
    state.now_ms = max(state.now_ms, now_ms)
    return state.now_ms


def replay(state: State, steps: Iterable[StepDecisions]) -> State:
    """Fold steps of the journal, in order, into the state."""
    for step in steps:
        state.step, state.now_ms = step.step, max(state.now_ms, step.decided_at_ms)
        for one in step.decisions:
            evolve(state, one.record, one.segments)
    return state
