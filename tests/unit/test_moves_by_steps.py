"""A step moves a bounded number of a group's partitions, so that steps stay short. The next steps move the rest."""

import pytest
from protocol_harness import Harness
from stateful.player import Player

from lakemq.engine.protocol.rules import reconciling
from lakemq.engine.protocol.values.assignments import GroupStatus
from lakemq.engine.protocol.values.groups import JoinGroup
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import AlterTopic


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a decision move two partitions.

    A step decides twice, so the second decision may use what the first has freed.
    """
    monkeypatch.setattr(reconciling, "MAX_MOVES", 2)


def make_join(protocol: str, member: str = "C1") -> JoinGroup:
    return JoinGroup("g", member, ["t"], None, None, 6_000, 10_000, "earliest", {"group.protocol": protocol})


def join_first_member(protocol: str, partitions: int = 10) -> Harness:
    """Let a member join alone and compute its target. The next step begins to move partitions."""
    mq = Harness()
    mq.create("t", partitions)
    mq.one(make_join(protocol))
    mq.now_ms += 3_000  # of a classic group, which waits for other members
    mq.expire()
    mq.see(*mq.targets())
    return mq


def count_owned_partitions(state: State) -> int:
    return len(state.groups["g"].partitions_by_owner.get("C1", ()))


@pytest.mark.parametrize("protocol", ["cooperative", "queue"])
def test_each_step_moves_some_partitions_until_all_have_moved(protocol: str) -> None:
    mq, counts = join_first_member(protocol), []
    while mq.state.list_moving_groups():
        assert mq.state.groups["g"].status is GroupStatus.COMPLETING
        counts.append(count_owned_partitions(mq.state))
        mq.see()
    assert (counts, count_owned_partitions(mq.state)) == ([4, 8], 10)
    assert (mq.state.groups["g"].status, mq.state.groups["g"].generation) == (GroupStatus.STABLE, 1)


@pytest.mark.slow
def test_sequencer_moves_partitions_without_requests() -> None:
    player = Player()
    player.ask(AlterTopic("t", partitions=20))
    player.ask(make_join("cooperative"))
    player.step()
    player.background.run()  # the assignor as well
    counts = []
    while player.leader.step().working:
        player.world.remember_steps()
        counts.append(count_owned_partitions(player.leader.state))
    assert counts == [4, 8, 12, 16]
    assert count_owned_partitions(player.leader.state) == 20
    player.world.close()
