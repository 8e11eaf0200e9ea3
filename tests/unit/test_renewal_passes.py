"""How often a leader that has nothing to decide writes the tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.served import CONFIG, IdleLeader
from unit.test_direct_line import letter_of

import lakemq
from lakemq.engine.client.operator_tools import Observer
from lakemq.engine.client.sql.arrow_query import find_projection_lag
from lakemq.engine.namespace.config import load_config
from lakemq.engine.namespace.load import read_watermark
from lakemq.jobs.metrics.readers import FamilyBuilder, read_waiting
from lakemq.tables.specs.journal import WATERMARKS


def read_watermark_version(leader: IdleLeader) -> int:
    """Return a number that grows with each pass."""
    return leader.mq.namespace.store.open(WATERMARKS).version


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[IdleLeader]:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        leader = IdleLeader(mq)
        yield leader
        leader.sequencer.resign()


def test_renewals_alone_are_projected_once_a_minute(leader: IdleLeader) -> None:
    version = read_watermark_version(leader)
    for _ in range(14):
        leader.renew()
    leader.wait_for_pass()
    assert read_watermark_version(leader) == version
    for _ in range(2):
        leader.renew()
    leader.wait_for_pass()
    assert read_watermark_version(leader) == version + 1


def test_decision_among_renewals_is_projected_at_once(leader: IdleLeader) -> None:
    version = read_watermark_version(leader)
    leader.renew()
    leader.mq.namespace.mailbox.put("c1", 1, letter_of("c1", 1, "orders"), 0)
    leader.renew()
    leader.wait_for_pass()
    assert read_watermark_version(leader) == version + 1


def test_metrics_and_sql_count_renewals_as_no_lag(leader: IdleLeader) -> None:
    observer = leader.mq.observer()
    for _ in range(3):
        leader.renew()
    assert read_lags(leader, observer) == (0, 0)
    leader.background._config = load_config(None, {"project.interval.ms": 3_600_000})
    leader.mq.namespace.mailbox.put("c1", 1, letter_of("c1", 1, "orders"), 0)
    leader.renew()
    steps_behind = leader.sequencer.state.step - read_watermark(leader.mq.namespace.store).step
    leader.renew()
    assert steps_behind >= 4
    assert read_lags(leader, observer) == (steps_behind, steps_behind)


def read_lags(leader: IdleLeader, observer: Observer) -> tuple[float, int]:
    """Return how many steps the tables are behind, by the metric and by what SQL says."""
    with observer.look() as observation:
        families = {family.name: family for family in read_waiting(leader.mq, observation, FamilyBuilder())}
    (sample,) = families["lakemq_projection_lag_steps"].samples
    store = leader.mq.namespace.store
    return sample.value, find_projection_lag(store, read_watermark(store).step).steps_behind
