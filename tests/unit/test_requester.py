"""The client's side of the mailbox: each caller gets its own answer, also when the store or its letter fails."""

import errno
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clocks import ManualClock
from faulty_files import FaultyFiles
from protocol_harness import letter_bytes
from stateful.world import Background
from unit.desk import Desk

from lakemq.engine.client.requests import requester as requester_module
from lakemq.engine.client.requests.requester import IDLE_MS, MAX_BYTES, NEVER_PUBLISHED, ask_with_retries
from lakemq.engine.namespace import crash
from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.codec.letter import decode_answer
from lakemq.engine.protocol.errors import (
    ClientEnded,
    IllegalState,
    InvalidRequest,
    InvalidTopic,
    LakeMQError,
    MailboxFullError,
    Refusal,
    RequestTimedOut,
    StaleTopicMetadata,
    StorageError,
    TransactionAbortable,
)
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.clients import Client, Letter
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import CreateTopic, DeleteTopic
from lakemq.engine.sequencer.letters import answers
from lakemq.engine.sequencer.letters.answers import SWEEP_MS, UNFETCHED_MS, Answers
from lakemq.engine.sequencer.letters.intake import LONGEST_PAUSE_MS, MAX_ANSWER_TRIES, Intake
from lakemq.tables.specs.messages import BODY_SCHEMA
from lakemq.tables.storage.coordination.mailbox import LetterName, Mailbox


def test_a_bad_request_is_refused_in_its_call_and_nothing_of_that_call_is_sent(tmp_path: Path):
    desk = Desk(tmp_path)
    with pytest.raises(InvalidRequest, match=r"CreateTopic cannot be sent: .*partitions"):
        desk.requester.submit_all([(DeleteTopic("t"), None), (CreateTopic("t", "4"), None)])  # type: ignore[arg-type]
    assert desk.ask() == ProducerDone(7, 0)
    assert desk.letters == [("c1", 1, 1)]


def test_requester_waits_for_a_letter_that_may_have_landed(tmp_path: Path):
    """The disk failed after the letter was visible. It was decided, and the answer says so."""
    desk = Desk(tmp_path, unwritable="mailbox/", vague=True)
    assert desk.ask() == ProducerDone(7, 0)
    desk.files.unwritable = ""
    assert desk.ask() == ProducerDone(7, 0)
    assert desk.letters == [("c1", 1, 1), ("c1", 2, 1)]


def test_unanswered_letter_has_an_unknown_outcome_and_its_number_is_not_reused(tmp_path: Path):
    desk = Desk(tmp_path, unwritable="mailbox/", vague=True)
    desk.silent = 1
    with pytest.raises(RequestTimedOut, match=r"request\.timeout\.ms.*outcome is unknown"):
        desk.ask()
    desk.ask()
    assert desk.letters == [("c1", 1, 1), ("c2", 1, 1)]


def test_put_that_fails_raises_nothing_was_sent(tmp_path: Path):
    desk = Desk(tmp_path, unwritable="mailbox/", code=errno.ENOSPC)
    with pytest.raises(StorageError, match="nothing was sent"):
        desk.ask()
    desk.files.unwritable = ""
    desk.ask()
    assert desk.letters == [("c2", 1, 1)]


def test_request_refused_by_a_full_mailbox_uses_no_number(tmp_path: Path):
    desk = Desk(tmp_path, limit=1)
    other = LetterName.of("other", 1, 0).name
    (tmp_path / "mailbox").mkdir()
    (tmp_path / "mailbox" / other).touch()
    with pytest.raises(MailboxFullError):
        desk.ask()
    desk.mailbox.withdraw(other)
    desk.clock.sleep(1_000)  # letters are counted once a second
    desk.ask()
    assert desk.letters == [("c1", 1, 1)]


def test_a_letter_that_cannot_be_withdrawn_is_of_unknown_outcome(tmp_path: Path):
    desk = Desk(tmp_path, undeletable="mailbox/")
    desk.silent = 1
    with pytest.raises(RequestTimedOut):
        desk.ask()
    desk.ask()
    assert [client for client, _, _ in desk.letters] == ["c1", "c2"]


def test_an_idle_client_starts_over_before_it_is_forgotten(tmp_path: Path):
    desk = Desk(tmp_path)
    for pause_ms in (0, IDLE_MS, 1):
        desk.clock.sleep(pause_ms)
        desk.ask()
    desk.clock.sleep(IDLE_MS + 1)
    desk.ask()
    assert desk.letters == [("c1", 1, 1), ("c1", 2, 1), ("c1", 3, 1), ("c2", 1, 1)]


def test_forgotten_client_gets_an_error_and_then_a_new_id(tmp_path: Path):
    desk = Desk(tmp_path)
    desk.ask()
    desk.result = Refusal(ClientEnded.name, "Its letters were too far apart.")
    with pytest.raises(ClientEnded):
        desk.ask()
    desk.result = ProducerDone(7, 0)
    assert desk.ask() == ProducerDone(7, 0)
    assert desk.letters == [("c1", 1, 1), ("c1", 2, 1), ("c2", 1, 1)]


def test_empty_reply_is_no_answer(tmp_path: Path):
    desk = Desk(tmp_path)
    desk.silent = 1
    desk.mailbox.put_answer("c1", 1, b"")
    with pytest.raises(RequestTimedOut):
        desk.ask()


def test_a_request_too_large_for_any_letter_is_its_callers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requester_module, "MAX_REQUEST_BYTES", 1_000)
    desk = Desk(tmp_path)
    with pytest.raises(InvalidRequest, match=r"too large for a letter.*Expected at most 1000"):
        desk.requester.ask(CreateTopic("t" * 1_001, 1))
    with pytest.raises(InvalidRequest, match="too large for a letter"):
        desk.requester.ask(InitProducer(), make_body(["x" * 2_000]))
    desk.ask()
    assert len(desk.letters) == 1


def test_a_large_request_travels_alone(tmp_path: Path):
    desk = Desk(tmp_path)
    requests = [CreateTopic("t" * size, 1) for size in (10, MAX_BYTES + 1, 10, 10)]
    for future in desk.requester.submit_all([(request, None) for request in requests]):
        future.result()
    assert desk.letters == [("c1", 1, 1), ("c1", 2, 1), ("c1", 3, 2)]


def test_closed_requester_sends_nothing_and_leaves_no_reply(tmp_path: Path):
    desk = Desk(tmp_path)
    desk.ask()
    desk.requester.close()
    with pytest.raises(IllegalState, match="closed"):
        desk.ask()
    assert desk.files.folders("replies") == []


def test_a_reply_is_deleted_while_the_next_answer_is_awaited(tmp_path: Path):
    """On a store the deletion is a request. The caller must not wait for it, and neither must the next letter.

    The folder is never empty meanwhile: a gateway to a disk would remove it while the next answer is put.
    """
    desk = Desk(tmp_path)
    seen: list[tuple[str, list[int]]] = []
    answer = desk.files.after_put

    def list_replies() -> list[int]:
        return [int(name.rpartition("/")[2]) for name in desk.files.list("replies/c1")]

    def note_put(name: str) -> None:
        seen.append((name.partition("/")[0], list_replies()))
        answer(name)

    desk.files.after_put = note_put
    for _ in range(4):
        desk.ask()
    assert [replies for folder, replies in seen if folder == "mailbox"] == [[], [1], [1, 2], [2, 3]]
    assert [replies for folder, replies in seen if folder == "replies"] == [[1], [1, 2], [1, 2, 3], [2, 3, 4]]
    assert list_replies() == [3, 4]


def make_body(values: list[str]) -> pa.Table:
    filled: dict[str, Any] = {"topic": "t", "partition": 0, "timestamp": 5}
    columns = [
        [v.encode() for v in values] if f.name == "value" else [filled.get(f.name)] * len(values) for f in BODY_SCHEMA
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, BODY_SCHEMA, strict=True)], schema=BODY_SCHEMA)


# -- Answers: one that cannot be written delays no other, and none stays forever -------------------------


class Counter:
    """The sequencer's side that takes letters and writes answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, FaultyFiles(str(folder))
        self.mailbox, self.clock, self.background = Mailbox(self.files), ManualClock(), Background()
        self.intake = Intake(self.mailbox, EngineConfig(), self.clock)
        self.answers = Answers(self.mailbox, self.intake, self.clock, self.background, crash.nowhere)
        self.state = State()

    def ask(self, *client_ids: str) -> None:
        for client_id in client_ids:
            name = LetterName.of(client_id, 1, 0)
            self.files.put(f"mailbox/{name.name}", letter_bytes(Letter(client_id, 1, [InitProducer()], 0)))
        self.step()

    def step(self) -> None:
        letters = self.intake.take_letters(self.state, "")
        machine.begin_step(self.state, self.clock.now_ms())
        entries = [entry for taken in letters.taken for entry in machine.decide_letter(self.state, taken.letter)]
        self.answers.send(self.state, None, letters, entries, iter)

    def steps_pass(self, count: int, ms: int = 1_000) -> None:
        for _ in range(count):
            self.clock.sleep(ms)
            self.step()

    def sweep(self) -> list[str]:
        self.answers.sweep_if_due(self.state)
        self.background.run()
        return self.mailbox.list_answered_clients()

    def grow_old(self, client_id: str) -> None:
        for path in (self.folder / "replies" / client_id).iterdir():
            at_s = path.stat().st_mtime - UNFETCHED_MS // 1_000 - 1
            os.utime(path, (at_s, at_s))


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path)


def test_letter_stays_until_its_answer_can_be_written(counter: Counter, caplog: pytest.LogCaptureFixture) -> None:
    counter.files.unwritable = "replies/b"
    with caplog.at_level(logging.ERROR):
        counter.ask("a", "b", "c")
    assert counter.mailbox.list_answered_clients() == ["a", "c"]
    assert [name.client_id for name in counter.mailbox.list_waiting(10)] == ["b"]
    assert len(caplog.records) == 1
    counter.files.unwritable = ""
    counter.steps_pass(3)
    answer = counter.mailbox.poll_answer("b", 1)
    assert answer is not None
    assert decode_answer(answer).results == counter.state.clients["b"].results
    assert counter.mailbox.list_waiting(10) == []
    assert counter.state.next_producer_id == 3, "each letter is decided once"


def test_answer_is_given_up_after_some_tries(counter: Counter) -> None:
    counter.files.unwritable = "replies/b"
    counter.ask("b")
    counter.steps_pass(20, LONGEST_PAUSE_MS)
    assert len([name for name in counter.files.puts if name.startswith("replies/")]) == MAX_ANSWER_TRIES
    assert counter.mailbox.list_waiting(10) == []


def test_older_answer_of_a_client_is_not_written_again(counter: Counter) -> None:
    counter.files.unwritable = "replies/b"
    counter.ask("b")
    counter.state.clients["b"] = Client(2, [Done()], 0)
    counter.files.unwritable = ""
    counter.steps_pass(20)
    assert counter.mailbox.list_answered_clients() == []


# -- answers that no client fetches -------------------------------------------------------------------------


def test_old_replies_to_unknown_clients_are_deleted(counter: Counter, caplog: pytest.LogCaptureFixture) -> None:
    counter.ask("known", "left-a-gap", "new", "stuck")
    for client_id in ("left-a-gap", "new", "stuck"):
        del counter.state.clients[client_id]
    for client_id in ("known", "left-a-gap", "stuck"):
        counter.grow_old(client_id)
    counter.files.undeletable = "replies/stuck"
    with caplog.at_level(logging.WARNING):
        assert counter.sweep() == ["known", "new", "stuck"]
    assert len(caplog.records) == 1


def test_sweep_continues_where_the_last_one_ended(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_SWEPT", 1)
    counter.ask("new", "old")
    counter.state.clients.clear()
    counter.grow_old("old")
    assert counter.sweep() == ["new", "old"]
    counter.clock.sleep(SWEEP_MS)
    assert counter.sweep() == ["new"]


# -- Repeated attempts: once an attempt got no answer, no error claims that nothing was sent -------------

UNSENT_ERRORS = [MailboxFullError("full"), StorageError("no space")]


class Clock(ManualClock):
    """A clock on which each attempt takes a second."""

    def __init__(self, outcomes: Iterable[Any]) -> None:
        super().__init__()
        self.ms, self.outcomes = 0, iter(outcomes)

    def now_ms(self) -> int:
        raise AssertionError("may jump")

    def ask(self) -> Any:
        self.ms += 1_000
        outcome = next(self.outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def ask_repeatedly(*outcomes: Any, deadline_ms: int = 100_000) -> Any:
    clock = Clock(outcomes)
    try:
        return ask_with_retries(clock.ask, clock, deadline_ms)
    except LakeMQError as error:
        return error


def test_answer_after_unanswered_attempts_is_returned():
    assert ask_repeatedly(7) == 7
    assert ask_repeatedly(RequestTimedOut(), RequestTimedOut(), 7) == 7
    refused = InvalidTopic()
    assert ask_repeatedly(refused) is refused
    assert ask_repeatedly(RequestTimedOut(), refused) is refused


def test_inconclusive_error_of_a_repeat_is_not_raised_as_the_outcome():
    """The producer id of the repeat has expired. The attempt before it may have been decided."""
    clock = Clock([RequestTimedOut("Who knows."), InvalidTopic("gone")])
    with pytest.raises(RequestTimedOut, match=r"Who knows\..*INVALID_TOPIC"):
        ask_with_retries(clock.ask, clock, 100_000, conclusive=(StaleTopicMetadata,))
    clock = Clock([RequestTimedOut(), StaleTopicMetadata("anew")])
    with pytest.raises(StaleTopicMetadata):
        ask_with_retries(clock.ask, clock, 100_000, conclusive=(StaleTopicMetadata,))


def test_transaction_abortable_is_the_outcome_of_all_attempts():
    clock = Clock([RequestTimedOut(), TransactionAbortable("open for too long")])
    with pytest.raises(TransactionAbortable):
        ask_with_retries(clock.ask, clock, 100_000, NEVER_PUBLISHED)


@pytest.mark.parametrize("unsent", UNSENT_ERRORS)
def test_unsent_repeat_leaves_the_outcome_unknown(unsent: LakeMQError):
    assert ask_repeatedly(RequestTimedOut("Who knows."), unsent, unsent, 7) == 7
    error = ask_repeatedly(RequestTimedOut("Who knows."), *[unsent] * 4, deadline_ms=5_000)
    assert type(error) is RequestTimedOut
    assert error.detail == f"Who knows. The last attempt does not clear this up: {unsent}"


def test_timeout_names_the_number_of_attempts_and_their_time() -> None:
    """The error of the last attempt alone would name only a quarter of the time that the caller has waited."""
    error = ask_repeatedly(*[RequestTimedOut("No answer in 1000 ms.")] * 3, deadline_ms=2_500)
    assert re.search(r"No answer in 1000 ms\. The request was sent 3 times in 3 s\.", str(error))
    once = ask_repeatedly(RequestTimedOut("No answer in 1000 ms."), deadline_ms=500)
    assert "The request was sent" not in str(once)


def test_request_of_an_ended_client_is_repeated():
    assert ask_repeatedly(ClientEnded(), 7) == 7
    assert ask_repeatedly(RequestTimedOut(), ClientEnded(), 7) == 7
    assert type(ask_repeatedly(ClientEnded(), deadline_ms=500)) is ClientEnded


def test_connection_closed_between_attempts_leaves_the_outcome_unknown():
    closed = IllegalState("closed")
    assert ask_repeatedly(closed) is closed
    assert type(ask_repeatedly(RequestTimedOut(), closed)) is RequestTimedOut
