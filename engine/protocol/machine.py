"""The machine: requests and time in, decisions out; decisions folded into the state. No I/O, no clock, no chance.

`decide_request` and `decide_time` only read the state, `evolve` only writes it, `decide_letter` does both in turn.
A transaction, group or delay machine takes its place beside `log` and `topics` in the two tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import clients, leader, log, producers, topics
from .decision import Decision
from .errors import ClientEnded, LakeMQError
from .records import Answered, AnyRecord, ClientRemoved, Decided, ProducerExpired, StepDecisions
from .requests import (
    AlterTopic,
    AnyRequest,
    AnyResult,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    InitProducer,
    Letter,
    Produce,
)
from .segments import NO_SEGMENTS, Segments
from .state import Client, Producer, State

_DECIDE: dict[type, Callable[[State, Any], Decision]] = {
    CreateTopic: topics.decide_create,
    AlterTopic: topics.decide_alter,
    DeleteTopic: topics.decide_delete,
    DeleteRecords: topics.decide_delete_records,
    InitProducer: producers.decide_init,
}

_EVOLVE: dict[str, Callable[[State, Any], None]] = {
    "leader_elected": leader.evolve_elected,
    "topic_created": topics.evolve_created,
    "topic_altered": topics.evolve_altered,
    "topic_deleted": topics.evolve_deleted,
    "records_deleted": topics.evolve_records_deleted,
    "producer_initialized": producers.evolve_initialized,
    "producer_expired": producers.evolve_expired,
    "answered": clients.evolve_answered,
    "client_removed": clients.evolve_removed,
}


def decide_request(
    state: State,
    request: AnyRequest,
    now_ms: int,
    inline: log.InlineRows | None = None,
    sizes: Mapping[str, int | None] | None = None,
) -> Decision:
    """The decision on one request. A refusal has no records: it changes nothing."""
    try:
        if isinstance(request, Produce):
            return log.decide_produce(state, request, now_ms, inline, sizes)
        return _DECIDE[type(request)](state, request)
    except LakeMQError as error:
        return Decision(error.refusal())


def decide_letter(
    state: State,
    letter: Letter,
    now_ms: int,
    inline: log.InlineRows | None = None,
    sizes: Mapping[str, int | None] | None = None,
) -> list[Decided]:
    """Decide and fold a letter's requests in order; the last record is the answer to the letter.

    The state is folded as it goes, because a request may depend on the one before it in the same letter.
    """
    request_id = f"{letter.client_id}/{letter.number}"
    decided: list[Decided] = []
    results: list[AnyResult] = []
    for request in letter.requests:
        decision = decide_request(state, request, now_ms, inline, sizes)
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


def decide_time(state: State, now_ms: int, client_expiration_ms: int, producer_expiration_ms: int) -> list[Decided]:
    """What is due at `now_ms` without anybody asking: clients and producers that have expired.

    Not folded yet: `fold_due` does so, after the letters of the same step.
    """
    due = clients.decide_expiry(state, client_expiration_ms, now_ms)
    return due + producers.decide_expiry(state, producer_expiration_ms, now_ms)


def fold_due(state: State, due: Sequence[Decided]) -> list[Decided]:
    """Fold what time asks for; returns it. Who did something in this very step has not expired after all."""
    return fold(state, [one for one in due if not _was_busy(state, one.record)])


def _was_busy(state: State, record: AnyRecord) -> bool:
    who: Client | Producer | None = None
    if isinstance(record, ClientRemoved):
        who = state.clients.get(record.client_id)
    elif isinstance(record, ProducerExpired):
        who = state.producers.get(record.producer_id)
    return who is not None and who.seen_at_ms == state.now_ms


def fold(state: State, decided: Sequence[Decided]) -> list[Decided]:
    """Fold decisions, in order; returns them."""
    for one in decided:
        evolve(state, one.record, one.segments)
    return list(decided)


def evolve(state: State, record: AnyRecord, segments: Segments = NO_SEGMENTS) -> None:
    """Fold one decision into the state. Total: what was decided is never refused here."""
    if record.kind == "produced":
        log.evolve_produced(state, record, segments)  # type: ignore[arg-type]
    elif fold := _EVOLVE.get(record.kind):
        fold(state, record)


def kinds() -> list[str]:
    """The kinds of decisions that change the state; the others are for the tables only."""
    return ["produced", *_EVOLVE]


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
