"""Routes are looked up once a second, and at once where somebody says that they have changed."""

from __future__ import annotations

import pytest
from clocks import ManualClock
from protocol_harness import Harness

from lakemq.engine.client.publish.routing import RouteCache
from lakemq.engine.protocol.errors import UnknownTopicOrPartition
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import AlterTopic


def test_a_route_is_looked_up_again_when_it_is_old_or_said_to_be() -> None:
    mq, clock, looks = Harness(), ManualClock(), []

    def metadata() -> State:
        looks.append(clock.ms)
        return mq.state

    routes = RouteCache(metadata, clock)
    with pytest.raises(UnknownTopicOrPartition):
        routes.find("t")
    mq.create("t", 2)
    first, is_new = routes.find("t")
    assert (is_new, first.topics[0].partition_count) == (True, 2)
    mq.one(AlterTopic("t", partitions=3))
    clock.sleep(RouteCache.MAX_AGE_MS - 1)
    assert routes.find("t") == (first, False)
    clock.sleep(1)
    assert routes.find("t")[0].topics[0].partition_count == 3
    mq.one(AlterTopic("t", partitions=4))
    routes.forget()
    assert routes.find("t")[0].topics[0].partition_count == 4
    assert len(looks) == 4
