"""Each subject lists what it has; nothing is forgotten, nothing stands twice."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from enum import Enum

import pytest
from unit import protocol_values

from lakemq.engine.protocol import machine, projection, rows, rules
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values import clients as client_values
from lakemq.engine.protocol.values import leader as leader_values
from lakemq.engine.protocol.values.assignments import PARTITION_TRANSITIONS, PartitionStatus
from lakemq.engine.protocol.values.base import Done, Record, Request, Result
from lakemq.engine.protocol.values.delays import Delayed
from lakemq.engine.protocol.values.deliveries import MessagesSettled
from lakemq.engine.protocol.values.kinds import SUBJECTS
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import LOG_TRANSITIONS, LogStatus, RecordsDeleted, TopicDeleted
from lakemq.engine.protocol.values.transactions import TRANSACTION_TRANSITIONS, TransactionMoved, TransactionStatus
from lakemq.engine.protocol.values.transitions import Transitions
from lakemq.tables.specs.registry import TABLES

RULES = [
    module
    for info in pkgutil.iter_modules(rules.__path__)
    if info.name != "transaction_end"  # whose registries are those of transactions
    and hasattr(module := importlib.import_module(f"{rules.__name__}.{info.name}"), "EVOLVE")
]


def kinds(base: type) -> Iterator[type]:
    """Those that travel: what a client makes of a result for its user is none of them."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("lakemq.engine.protocol."):
            yield kind
        yield from kinds(kind)


def test_every_request_is_listed_and_has_a_rule() -> None:
    listed = {kind for subject in SUBJECTS for kind in subject.REQUESTS}
    assert set(kinds(Request)) == listed
    assert listed < machine.DECIDE.keys()


def test_every_result_is_listed() -> None:
    assert set(kinds(Result)) == {Done, *(kind for subject in SUBJECTS for kind in subject.RESULTS)}


def test_every_record_is_listed_and_has_a_fold() -> None:
    subjects = (*SUBJECTS, client_values, leader_values)
    assert set(kinds(Record)) == {kind for subject in subjects for kind in subject.RECORDS} == machine.EVOLVE.keys()


def test_a_value_of_every_kind_is_drawn_where_what_travels_is_tested() -> None:
    assert protocol_values.REQUESTS.keys() == set(kinds(Request))
    assert protocol_values.RESULTS.keys() == {Refusal, *kinds(Result)}
    assert protocol_values.RECORDS.keys() == set(kinds(Record))


@pytest.mark.parametrize("registry", ["DECIDE", "EVOLVE", "TIMERS"])
def test_no_rule_stands_twice_and_none_is_left_out(registry: str) -> None:
    count = sum(len(getattr(subject, registry, ())) for subject in RULES)
    assert count == len(getattr(machine, registry))


# Rows of a log are records, so a log may show records of other subjects. The rows of a changelog are the state.
SHOWN_BY_LOGS = {
    ("log", TopicDeleted): "segments lists where logs end",
    ("log", RecordsDeleted): "segments lists where logs start",
    ("log", Delayed): "the files of delayed rows are registered as all others",
    ("groups", MessagesSettled): "assignment_moves counts the messages that a move delivers again",
}


def test_a_projection_names_no_record_of_another_subject() -> None:
    named = set()
    for info in pkgutil.iter_modules(rows.__path__):
        module = importlib.import_module(f"{rows.__name__}.{info.name}")
        values = f"lakemq.engine.protocol.values.{info.name}"
        for value in vars(module).values():
            is_record = isinstance(value, type) and issubclass(value, Record) and value is not Record
            if is_record and value.__module__ != values:
                named.add((info.name, value))
    assert named == SHOWN_BY_LOGS.keys()


def test_every_table_but_a_few_is_projected() -> None:
    """The others are written by who holds them."""
    others = {"messages", "inbox", "journal", "watermarks"}
    assert projection.PROJECT.keys() | others == {spec.name for spec in TABLES}
    assert projection.RESTORE.keys() < projection.PROJECT.keys()


@pytest.mark.parametrize(
    ("states", "transitions"),
    [
        (TransactionStatus, TRANSACTION_TRANSITIONS),
        (PartitionStatus, PARTITION_TRANSITIONS),
        (LogStatus, LOG_TRANSITIONS),
    ],
)
def test_a_table_of_transitions_has_every_state(states: type[Enum], transitions: Transitions) -> None:
    assert transitions.table.keys() == set(states)
    assert {after for allowed in transitions.table.values() for after in allowed} == set(states)


def test_a_transition_that_is_none_is_found_where_tests_run() -> None:
    state = State()
    machine.evolve(state, TransactionMoved("etl", 0, 0, TransactionStatus.EMPTY, 1))
    with pytest.raises(AssertionError, match="from Empty to CompleteCommit"):
        machine.evolve(state, TransactionMoved("etl", 0, 0, TransactionStatus.COMPLETE_COMMIT, 1))
