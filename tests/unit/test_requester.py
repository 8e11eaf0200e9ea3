"""The client's side of the mailbox: each caller gets its own answer, also when the store or its letter fails."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clocks import ManualClock
from unit.desk import Desk

from lakemq.engine.client.requests import requester as requester_module
from lakemq.engine.client.requests.requester import PendingRequest, Requester, build_letter
from lakemq.engine.protocol.codec.letter import decode_letter
from lakemq.engine.protocol.errors import (
    IllegalState,
    InvalidRequest,
    MailboxFullError,
    RequestTimedOut,
    StorageError,
    UnknownServerError,
)
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone
from lakemq.engine.protocol.values.topics import CreateTopic, DeleteTopic
from lakemq.tables.specs.messages import BODY_SCHEMA
from lakemq.tables.storage.coordination.mailbox import LetterName


def test_a_bad_request_is_refused_in_its_call_and_nothing_of_that_call_is_sent(tmp_path: Path):
    desk = Desk(tmp_path)
    with pytest.raises(InvalidRequest, match="partitions of CreateTopic"):
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


def test_error_says_that_nothing_was_sent(tmp_path: Path):
    desk = Desk(tmp_path, unwritable="mailbox/", code=errno.ENOSPC)
    with pytest.raises(StorageError, match="nothing was sent"):
        desk.ask()
    desk.files.unwritable = ""
    desk.ask()
    assert desk.letters == [("c2", 1, 1)]


def test_a_full_mailbox_costs_no_number(tmp_path: Path):
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


def test_empty_reply_is_no_answer(tmp_path: Path):
    desk = Desk(tmp_path)
    desk.silent = 1
    desk.mailbox.reply("c1", 1, b"")
    with pytest.raises(RequestTimedOut):
        desk.ask()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_pipe_or_folder_in_place_of_a_reply_is_no_answer(tmp_path: Path, make: Any):
    desk = Desk(tmp_path)
    desk.silent = 1
    (tmp_path / "replies/c1").mkdir(parents=True)
    make(tmp_path / "replies/c1/0000000001")
    with pytest.raises(RequestTimedOut):
        desk.ask()
    assert desk.ask() == ProducerDone(7, 0)


def test_a_request_too_large_for_any_letter_is_its_callers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requester_module, "MAX_REQUEST_BYTES", 1_000)
    desk = Desk(tmp_path)
    with pytest.raises(InvalidRequest, match=r"too large for a letter.*Expected at most 1000"):
        desk.requester.ask(CreateTopic("t" * 1_001, 1))
    with pytest.raises(InvalidRequest, match="too large for a letter"):
        desk.requester.ask(InitProducer(), make_body(["x" * 2_000]))
    desk.ask()
    assert len(desk.letters) == 1


def test_a_large_request_travels_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requester_module, "MAX_BYTES", 1_000)
    desk = Desk(tmp_path)
    requests = [CreateTopic("t" * size, 1) for size in (10, 5_000, 10, 10)]
    for future in desk.requester.submit_all([(request, None) for request in requests]):
        future.result()
    assert desk.letters == [("c1", 1, 1), ("c1", 2, 1), ("c1", 3, 2)]


def test_rows_of_requests_in_one_letter_do_not_mix():
    batch = [PendingRequest.of(InitProducer(), rows) for rows in (make_body(["a", "b"]), None, make_body(["c"]))]
    letter, rows = decode_letter(build_letter("c", 1, batch, 5))
    assert len(letter.requests) == 3
    assert rows is not None
    assert rows.column("value").to_pylist() == [b"a", b"b", b"c"]


def test_closed_requester_sends_nothing_and_leaves_no_reply(tmp_path: Path):
    desk = Desk(tmp_path)
    desk.ask()
    desk.requester.close()
    with pytest.raises(IllegalState, match="closed"):
        desk.ask()
    assert desk.files.folders("replies") == []


def test_a_reply_is_deleted_while_the_next_answer_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a store the deletion is a request. The caller must not wait for it, and neither must the next letter.

    The folder is never empty meanwhile: a gateway to a disk would remove it while the next reply is put.
    """
    desk = Desk(tmp_path)
    events: list[str] = []
    put, delete = desk.files.put, desk.files.delete

    def record_put(path: str, *arguments: Any, **options: Any) -> Any:
        events.append(f"put {path.partition('/')[0]}")
        return put(path, *arguments, **options)

    def record_delete(paths: Any) -> None:
        names = list(paths)
        events.extend(f"delete {name}" for name in names if name.startswith("replies"))
        delete(names)

    monkeypatch.setattr(desk.files, "put", record_put)
    monkeypatch.setattr(desk.files, "delete", record_delete)
    for _ in range(4):
        desk.ask()
    once = ["put mailbox", "put replies"]
    first, second = "delete replies/c1/0000000001", "delete replies/c1/0000000002"
    assert events == [*once, *once, *once, first, *once, second]
    assert desk.files.list("replies/c1") == ["replies/c1/0000000003", "replies/c1/0000000004"]


class SlowLookClock(ManualClock):
    """A clock that records the pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_ms: list[float] = []

    def sleep(self, ms: float) -> None:
        self.pauses_ms.append(ms)
        super().sleep(ms)


def test_looks_for_a_late_answer_take_at_most_half_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first looks follow each other, because the answer is due. Each of them is a request where it takes long."""
    desk, clock, look_ms = Desk(tmp_path), SlowLookClock(), 15
    requester = Requester(desk.mailbox, clock, lambda: "c9", 1_000)

    def look_slowly(*_: Any) -> None:
        ManualClock.sleep(clock, look_ms)

    monkeypatch.setattr(desk.mailbox, "poll_reply", look_slowly)
    monkeypatch.setattr(desk.mailbox, "watch_replies", lambda _: None)
    with pytest.raises(RequestTimedOut):
        requester.ask(InitProducer())
    unseen_ms, *pauses_ms = clock.pauses_ms
    assert unseen_ms == 0
    assert max(pauses_ms[:4]) < 2
    assert len(pauses_ms) > 20
    assert min(pauses_ms[4:-1]) >= look_ms


def refuse_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_error_says_that_the_thread_cannot_start_and_later_requests_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    desk = Desk(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    with pytest.raises(UnknownServerError, match=r"nothing was sent.*can't start new thread"):
        desk.ask()
    monkeypatch.undo()
    assert desk.requester.waited_ms() is None
    assert desk.ask() == ProducerDone(7, 0)
    desk.requester.close()
    assert desk.letters == [("c1", 1, 1)]


def make_body(values: list[str]) -> pa.Table:
    filled: dict[str, Any] = {"topic": "t", "partition": 0, "timestamp": 5}
    columns = [
        [v.encode() for v in values] if f.name == "value" else [filled.get(f.name)] * len(values) for f in BODY_SCHEMA
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, BODY_SCHEMA, strict=True)], schema=BODY_SCHEMA)


def test_a_silence_is_logged_once_over_all_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A producer repeats requests for minutes. Without this message its program would seem to hang."""
    monkeypatch.setattr(requester_module, "_QUIET_MS", 1)
    desk = Desk(tmp_path)
    desk.silent = 2
    for _ in range(2):
        with pytest.raises(RequestTimedOut):
            desk.ask()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "`lakemq serve`" in caplog.text
    desk.ask()
    desk.silent = 1
    with pytest.raises(RequestTimedOut):
        desk.ask()
    assert len(caplog.records) == 2
