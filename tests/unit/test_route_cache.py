"""Routes are looked up once, and again when an answer says that they have changed."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from protocol_harness import Harness
from unit.served import new_topic

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.rows import routing
from lakemq.engine.client.rows.routing import Route, RouteCache
from lakemq.engine.protocol.errors import UnknownTopicOrPartition
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import AlterTopic


def test_a_route_is_looked_up_again_when_it_is_said_to_have_changed() -> None:
    mq, looks = Harness(), []

    def look(find_route: Callable[[State], Route]) -> Route:
        looks.append(mq.state.step)
        return find_route(mq.state)

    routes = RouteCache(look)
    with pytest.raises(UnknownTopicOrPartition):
        routes.find("t")
    mq.create("t", 2)
    first, is_new = routes.find("t")
    assert (is_new, first.topics[0].partition_count) == (True, 2)
    mq.one(AlterTopic("t", partitions=3))
    assert routes.find("t") == (first, False)
    routes.forget()
    assert routes.find("t")[0].topics[0].partition_count == 3
    assert len(looks) == 3


def test_route_cache_keeps_a_bounded_number_of_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_ROUTES", 3)
    mq, looks = Harness(), []
    for number in range(4):
        mq.create(f"t{number}", 1)

    def look(find_route: Callable[[State], Route]) -> Route:
        looks.append(mq.state.step)
        return find_route(mq.state)

    routes = RouteCache(look)
    assert [routes.find(f"t{number}")[1] for number in (0, 1, 2, 0, 3, 3, 0)] == [True] * 3 + [False, True, False, True]
    assert len(looks) == 5


@pytest.mark.slow
def test_rows_that_are_rejected_rightly_do_not_make_the_others_be_written_again(mq: Connection) -> None:
    topic = new_topic(mq, 1)
    rows = pa.table({"value": ["fits", "x" * 2_000_000]})
    mq.publish(topic, rows)
    before = set(mq.namespace.files.list("messages"))
    assert mq.publish(topic, rows).rejected_count == 1
    assert len(set(mq.namespace.files.list("messages")) - before) == 1
    mq.topics.alter(topic, {"max.message.bytes": 3_000_000})
    assert mq.publish(topic, rows).rejected_count == 0, "the limit was raised since the last look"
