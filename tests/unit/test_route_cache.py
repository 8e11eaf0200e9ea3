"""Routes are looked up once, and again when an answer says that they have changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from protocol_harness import Harness

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
