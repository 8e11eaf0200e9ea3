"""What a refused commit means, without a sequencer."""

from concurrent.futures import Future
from typing import Any

import pytest

from lakemq.engine.client.transactions.manager import CommitAnswer
from lakemq.engine.protocol.values.log import Published
from lakemq.errors import InvalidTxnState, LakeMQError, StaleTopicMetadata, UnknownTopicId


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
    reply = CommitAnswer(build_future(REFUSED), [build_future(answer) for answer in replies])
    assert reply.find_cause(part_count) is cause


def test_a_repeated_commit_does_not_know_the_places_of_its_parts():
    replies = [build_future(STALE), build_future(PUBLISHED)]
    assert CommitAnswer(build_future(None), replies).list_published(2) == [Published([]), PUBLISHED]
    assert CommitAnswer(build_future(REFUSED), replies).list_published(2) == [None, PUBLISHED]
