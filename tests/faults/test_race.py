"""Four publishers and two sequencers at once: every acknowledged publish is there, exactly once."""

from __future__ import annotations

import pytest
from faults.checks import check_all
from faults.processes import PATIENCE_S, TOPIC, Processes, terminate

pytestmark = pytest.mark.extended

PUBLISHERS, PUBLISHES = 4, 100


def test_four_publishers_and_two_sequencers(family: Processes):
    """The leader changes on the way, so that both have led under load."""
    serving = [family.serve(), family.serve()]
    names = [f"p{i}" for i in range(PUBLISHERS)]
    publishing = [
        family.publish(name, PUBLISHES, "producer" if i % 2 else "application") for i, name in enumerate(names)
    ]
    for _ in range(2):
        terminate(serving.pop(0))
        serving.append(family.serve())
    for child in publishing:
        assert child.wait(PATIENCE_S) == 0, family.read_log()
    for child in serving:
        terminate(child)
    acknowledged = [message for name in names for message in family.read_acknowledgements(name)]
    assert len(acknowledged) == PUBLISHERS * PUBLISHES
    assert check_all(family.path, TOPIC, acknowledged).num_rows == PUBLISHERS * PUBLISHES
