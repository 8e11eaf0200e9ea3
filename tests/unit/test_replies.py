"""Replies: one that cannot be written delays no other, and none stays forever."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from clocks import ManualClock
from faulty_files import FaultyFiles
from stateful.world import Background

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.clients import Client
from lakemq.engine.protocol.values.state import State
from lakemq.engine.sequencer.letters.replies import MAX_TRIES, SWEEP_MS, UNFETCHED_MS, Replies
from lakemq.tables.storage.coordination.mailbox import Mailbox


class Counter:
    """The sequencer's side that writes replies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, FaultyFiles(str(folder))
        self.mailbox, self.clock, self.background = Mailbox(self.files), ManualClock(), Background()
        self.replies = Replies(self.mailbox, self.clock, self.background)
        self.state = State()

    def send(self, *client_ids: str) -> None:
        for client_id in client_ids:
            self.state.clients[client_id] = Client(1, [Done()], 0)
        self.replies.send(1, [(client_id, 1, [Done()]) for client_id in client_ids])

    def seconds_pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.sleep(1_000)
            self.replies.retry_replies(self.state)

    def sweep(self) -> list[str]:
        self.replies.sweep_if_due(self.state)
        self.background.run()
        return self.mailbox.list_answered_clients()

    def grow_old(self, client_id: str) -> None:
        for path in (self.folder / "replies" / client_id).iterdir():
            at_s = path.stat().st_mtime - UNFETCHED_MS // 1_000 - 1
            os.utime(path, (at_s, at_s))


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path)


def test_a_reply_that_cannot_be_given_is_tried_again_for_a_while(
    counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    counter.files.unwritable = "replies/b"
    with caplog.at_level(logging.ERROR):
        counter.send("a", "b", "c")
        assert counter.mailbox.list_answered_clients() == ["a", "c"]
        counter.seconds_pass(3)
        counter.files.unwritable = ""
        counter.seconds_pass(5)
    assert counter.mailbox.poll_reply("b", 1) is not None
    assert len(caplog.records) == 1
    puts = len(counter.files.puts)
    counter.seconds_pass(100)
    assert len(counter.files.puts) == puts


def test_reply_is_tried_a_bounded_number_of_times(counter: Counter) -> None:
    counter.files.unwritable = "replies/b"
    counter.send("b")
    counter.seconds_pass(1_000)
    assert len(counter.files.puts) == MAX_TRIES


def test_only_the_last_answer_is_tried_again(counter: Counter) -> None:
    counter.files.unwritable = "replies/b"
    counter.send("b")
    counter.state.clients["b"] = Client(2, [Done()], 0)
    counter.files.unwritable = ""
    counter.seconds_pass(100)
    assert counter.mailbox.list_answered_clients() == []


@pytest.mark.parametrize("kind", ["a folder", "a file for its folder"])
def test_obstacle_in_place_of_a_reply_blocks_no_other(counter: Counter, tmp_path: Path, kind: str) -> None:
    """The obstacle is real, not simulated."""
    place = tmp_path / "replies/b"
    if kind == "a folder":
        (place / "0000000001").mkdir(parents=True)
    else:
        place.parent.mkdir()
        place.touch()
    counter.send("a", "b", "c")
    assert counter.mailbox.poll_reply("c", 1) is not None
    counter.seconds_pass(100)
    assert counter.mailbox.poll_reply("a", 1) is not None


# -- replies that no client fetches -------------------------------------------------------------------------


def test_old_replies_to_clients_nobody_knows_are_swept(counter: Counter) -> None:
    counter.send("known", "left-a-gap", "new")
    for client_id in ("left-a-gap", "new"):
        del counter.state.clients[client_id]
    for client_id in ("known", "left-a-gap"):
        counter.grow_old(client_id)
    assert counter.sweep() == ["known", "new"]


def test_a_sweep_is_made_at_once_and_then_every_hour(counter: Counter) -> None:
    counter.sweep()
    counter.replies.sweep_if_due(counter.state)
    assert not counter.background.waiting
    counter.clock.sleep(SWEEP_MS)
    counter.replies.sweep_if_due(counter.state)
    assert counter.background.waiting


def test_replies_that_cannot_be_deleted_do_not_keep_the_others(
    counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    counter.send("a", "b", "c")
    counter.files.undeletable = "replies/b"
    with caplog.at_level(logging.WARNING):
        counter.replies.forget(["a", "b", "c"])
        counter.background.run()
    assert counter.mailbox.list_answered_clients() == ["b"]
    assert len(caplog.records) == 1
