"""Rejected rows: each is listed once, however often a request is repeated (I10)."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from protocol_harness import F, G, H, Harness, plain
from unit.served import new_topic

from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.log import Published, Unit
from lakemq.engine.protocol.values.state import State
from lakemq.errors import RequestTimedOut

pytestmark = pytest.mark.slow


@pytest.fixture
def core() -> Harness:
    harness = Harness()
    harness.create("t", 2)
    harness.producer()
    return harness


def list_rejections(mq: Harness) -> list[tuple[str, int, int]]:
    table = project(mq.state, mq.steps).get("rejected_rows")
    rows = [] if table is None else table.to_pylist()
    return [(row["file_id"], row["first_row"], row["record_count"]) for row in rows]


def test_repeated_request_lists_its_rejected_rows_once(core: Harness) -> None:
    request = core.produce({}, producer=(0, 0), rejected=3)
    assert core.one(request) == Published([], rejected_count=3)
    for _ in range(3):  # each in a letter of its own, as after an answer that was lost
        assert core.one(request) == Published([], rejected_count=3, duplicate=True)
    assert list_rejections(core) == [(F, 0, 3)]
    assert plain(machine.replay(State(), core.steps)) == plain(core.state)


def test_repeated_request_with_accepted_rows_lists_rejected_ones_once(core: Harness) -> None:
    request = core.produce({0: 2, 1: 1}, producer=(0, 0), rejected=2)
    units = [Unit("t", 0, 0, 2), Unit("t", 1, 0, 1)]
    assert core.one(request) == Published(units, rejected_count=2)
    assert core.one(request) == Published(units, rejected_count=2, duplicate=True)
    assert list_rejections(core) == [(F, 3, 2)]


def test_next_request_lists_its_own_rejected_rows(core: Harness) -> None:
    first, good = core.produce({}, producer=(0, 0), rejected=3), core.produce({0: 1}, producer=(0, 0), file_id=G)
    next_request = core.produce({0: 1}, producer=(0, 0), sequence=1, rejected=3, file_id=H)
    assert next_request.producer is not None
    next_request = msgspec.structs.replace(
        next_request, producer=msgspec.structs.replace(next_request.producer, rejected_sequence=3)
    )
    for request in (first, good, next_request, next_request, first):
        core.one(request)
    assert list_rejections(core) == [(F, 0, 3), (H, 1, 3)]
    assert core.state.topic("t").high_watermarks.tolist() == [2, 0]


@pytest.mark.parametrize("rejected", [0, 2])
def test_rejected_sequence_is_given_exactly_with_rejected_rows(core: Harness, rejected: int) -> None:
    request = core.produce({0: 1}, producer=(0, 0), rejected=rejected)
    assert request.producer is not None
    other = msgspec.structs.replace(request.producer, rejected_sequence=None if rejected else 0)
    assert core.refused(msgspec.structs.replace(request, producer=other)).error == "INVALID_REQUEST"


def test_producer_with_lost_answers_has_each_row_rejected_once(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(mq)
    mq.topics.alter(topic, {"max.message.bytes": 100})
    submit, lost = mq.requester.submit, []

    def lose_answer(request: Any, rows: pa.Table | None = None) -> Any:
        future = submit(request, rows)
        if len(lost) % 2 == 0 and getattr(request, "rejected", None):
            future.result()
            lost.append(request)
            future = type(future)()
            future.set_exception(RequestTimedOut())
        elif getattr(request, "rejected", None):
            lost.append(request)
        return future

    monkeypatch.setattr(mq.requester, "submit", lose_answer)
    with mq.producer(linger_ms=0) as producer:
        for rows in (["x" * 200] * 2, ["fine", "y" * 200], ["z" * 200]):
            producer.send_arrow(topic, pa.table({"value": rows}))
            producer.flush()
    assert len(lost) == 6
    state = mq._whole_state()
    (units,) = (p.units[0, -1] for p in state.producers.values() if (0, -1) in p.units)
    assert sum(unit.record_count for unit in units) == 4
    assert mq.end_offsets(topic) == {0: 1}


def test_rows_that_are_rejected_rightly_do_not_make_the_others_be_written_again(mq: Connection) -> None:
    topic = new_topic(mq, 1)
    rows = pa.table({"value": ["fits", "x" * 2_000_000]})
    mq.publish(topic, rows)
    before = set(mq.namespace.files.list("messages"))
    assert mq.publish(topic, rows).rejected_count == 1
    assert len(set(mq.namespace.files.list("messages")) - before) == 1
    mq.topics.alter(topic, {"max.message.bytes": 3_000_000})
    assert mq.publish(topic, rows).rejected_count == 0, "the limit was raised since the last look"
