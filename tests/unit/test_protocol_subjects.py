"""Each subject lists its parts. Nothing is missing, and nothing is listed twice."""

import copy
from enum import Enum

import pytest

from lakemq.engine.client.transactions.state import PHASE_TRANSITIONS, Phase, PhaseEvent
from lakemq.engine.protocol import machine, projection
from lakemq.engine.protocol.values.assignments import PARTITION_TRANSITIONS, PartitionEvent, PartitionStatus
from lakemq.engine.protocol.values.base import Transitions, log_defect
from lakemq.engine.protocol.values.delays import DELAY_TRANSITIONS, DelayEvent, DelayStatus
from lakemq.engine.protocol.values.deliveries import DELIVERY_TRANSITIONS, DeliveryEvent, DeliveryStatus
from lakemq.engine.protocol.values.schedules import SCHEDULE_TRANSITIONS, ScheduleEvent, ScheduleStatus
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import LOG_TRANSITIONS, LogEvent, LogStatus, PartitionsEnded, TopicCreated
from lakemq.engine.protocol.values.transactions import TRANSACTION_TRANSITIONS, TransactionEvent, TransactionStatus
from lakemq.tables.specs.registry import TABLES


def test_projection_writes_every_table_of_the_core() -> None:
    """Other parts of the system write the remaining tables."""
    not_projected = {"messages", "final_messages", "inbox", "samples", "admin_log", "journal", "watermarks"}
    assert projection.PROJECT.keys() | not_projected == {spec.name for spec in TABLES}
    assert projection.RESTORE.keys() < projection.PROJECT.keys()


TABLES_OF_TRANSITIONS = [
    (TransactionStatus, TransactionEvent, TRANSACTION_TRANSITIONS),
    (PartitionStatus, PartitionEvent, PARTITION_TRANSITIONS),
    (LogStatus, LogEvent, LOG_TRANSITIONS),
    (DeliveryStatus, DeliveryEvent, DELIVERY_TRANSITIONS),
    (DelayStatus, DelayEvent, DELAY_TRANSITIONS),
    (ScheduleStatus, ScheduleEvent, SCHEDULE_TRANSITIONS),
    (Phase, PhaseEvent, PHASE_TRANSITIONS),
]


@pytest.mark.parametrize(("states", "events", "transitions"), TABLES_OF_TRANSITIONS)
def test_a_table_of_transitions_has_every_state(
    states: type[Enum], events: type[Enum], transitions: Transitions
) -> None:
    assert transitions.table.keys() == set(events)
    entered = {after for _, after in transitions.table.values()}
    assert entered | set(transitions.starts) == set(states)
    assert {before for allowed, _ in transitions.table.values() for before in allowed} <= set(states)


def test_move_outside_the_table_is_logged_and_applied(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state, defect = State(), "active to ended"
    machine.evolve(state, TopicCreated(1, "t", 2, {}, []))
    ended = PartitionsEnded(1, "t", 1)  # it still takes messages
    with pytest.raises(AssertionError, match=defect):
        machine.evolve(copy.deepcopy(state), ended)
    monkeypatch.setattr(Transitions, "report", staticmethod(log_defect))
    for _ in range(2):  # a process logs a defect once, however often it folds the record
        machine.evolve(copy.deepcopy(state), ended)
    assert [(entry.name, entry.levelname) for entry in caplog.records] == [("lakemq", "ERROR")]
    assert defect in caplog.text
