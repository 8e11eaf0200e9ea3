"""The state machine of a transactional id in its process, and what a refused commit means, without a sequencer."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

from lakemq.engine.client.transactions.end_requests import CommitReply
from lakemq.engine.client.transactions.state import TransactionState
from lakemq.engine.protocol.values.log import Published
from lakemq.engine.protocol.values.producers import ProducerDone, TransactionRef
from lakemq.errors import (
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    LakeMQError,
    ProducerFenced,
    StaleTopicMetadata,
    TransactionAbortable,
    UnknownTopicId,
)


def take_id() -> TransactionState:
    state = TransactionState()
    state.take_id("etl", ProducerDone(7, 0, -1))
    return state


def test_a_lost_id_is_reported_rather_than_a_failed_part():
    parts = take_id().parts
    parts.note_failure(UnknownTopicId())
    with pytest.raises(TransactionAbortable):
        parts.check_no_failure()
    parts.note_failure(InvalidProducerEpoch())
    with pytest.raises(ProducerFenced):
        parts.check_no_failure()


def test_failed_end_leaves_the_transaction_open():
    state = take_id()
    ref = state.begin()
    with suppress(InvalidTxnState), state.ending(commits=True, expected_ref=ref):
        with pytest.raises(IllegalState, match="another thread"):
            state.get_accepting(None)
        raise InvalidTxnState
    assert state.get_accepting(ref) == ref


def test_a_part_belongs_to_the_transaction_that_it_names():
    state = take_id()
    ref = state.begin()
    with state.ending(commits=False, expected_ref=None):
        state.finish(TransactionRef("etl", 7, 1))
    state.begin()
    with pytest.raises(IllegalState, match="another one is open"):
        state.get_accepting(ref)


# -- a refused commit -----------------------------------------------------------------------------------


def build_future(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


STALE, DELETED, REFUSED = StaleTopicMetadata(), UnknownTopicId(), InvalidTxnState()
PUBLISHED = Published([])


@pytest.mark.parametrize(
    ("replies", "part_count", "cause"),
    [
        ([PUBLISHED], 1, REFUSED),
        ([], 0, REFUSED),
        ([STALE, PUBLISHED], 2, None),
        ([STALE, DELETED], 2, DELETED),
        ([PUBLISHED, STALE], 1, STALE),
    ],
    ids=["parts accepted", "no parts", "a part is stale", "a part cannot be built again", "offsets cannot be stale"],
)
def test_only_stale_parts_can_be_built_again(replies: list[Any], part_count: int, cause: LakeMQError | None):
    reply = CommitReply(build_future(REFUSED), [build_future(answer) for answer in replies])
    assert reply.find_cause(part_count) is cause


def test_a_repeated_commit_does_not_know_the_places_of_its_parts():
    replies = [build_future(STALE), build_future(PUBLISHED)]
    assert CommitReply(build_future(None), replies).list_published(2) == [Published([]), PUBLISHED]
    assert CommitReply(build_future(REFUSED), replies).list_published(2) == [None, PUBLISHED]
