"""Followers on lines: each is told once of a step that is decided, however slow it is, and nobody else waits for it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from targets import extended_but
from unit.line_peers import PATIENCE_S
from unit.served import CONFIG, new_name, new_topic, send
from unit.test_lines import Client, Leader

import lakemq
from lakemq.engine.client.fetch import fetcher
from lakemq.engine.client.fetch.fetcher import Fetcher
from lakemq.engine.client.fetch.log_reader import Reader
from lakemq.engine.client.requests.direct_line import DirectLine, FollowLine
from lakemq.engine.namespace.line_frames import Frame, FrameKind, Hello, encode_number_frame
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.testing import MovableClock

FAR_MS = 20_000
"""A pause between looks that no test waits for."""
SOON_S = 4

LEADER = Leader


def await_step(client: Client, step: int) -> None:
    client.send(encode_number_frame(FrameKind.AWAIT_STEP, step))


def hint(step: int) -> Frame:
    return Frame(FrameKind.STEP, step.to_bytes(8, "big"))


def has_nothing(client: Client) -> bool:
    """Return whether nothing more comes, and the line is open: an answer to a letter is the next thing that arrives."""
    client.socket.settimeout(0.1)
    try:
        client.socket.recv(1)
    except TimeoutError:
        return True
    finally:
        client.socket.settimeout(PATIENCE_S)
    return False


def announce(leader: Leader, step: int) -> None:
    leader.lines.note_step(leader.clock.steady_ms())
    leader.lines.followers.note_step(step)
    leader.lines.followers.announce()


def test_follower_gets_one_hint_for_the_step_it_waits_for(leader: Leader) -> None:
    client = leader.connect().greet()
    announce(leader, 7)
    await_step(client, 7)
    leader.drain()
    assert has_nothing(client)
    announce(leader, 8)
    assert client.receive() == hint(8)
    announce(leader, 9)
    assert has_nothing(client), "it has not asked again"


def test_follower_that_is_behind_gets_a_hint_at_once(leader: Leader) -> None:
    client = leader.connect().greet()
    announce(leader, 7)
    await_step(client, 5)
    assert client.receive() == hint(7)


def test_a_follower_that_does_not_read_gets_one_hint_and_holds_up_nobody(leader: Leader) -> None:
    slow, quick = leader.connect().greet(), Client(leader.path)
    quick.greet(Hello("ns", 3, "secret", "quick"))
    await_step(slow, 0)
    leader.drain()
    for step in range(1, 2_001):
        announce(leader, step)
    await_step(quick, 1_999)
    assert quick.receive() == hint(2_000)
    frame = slow.receive()
    assert frame is not None
    assert frame.kind == FrameKind.STEP
    assert has_nothing(slow)


# -- a real sequencer ---------------------------------------------------------------------------------------


class Following:
    """A namespace with a sequencer that a test steps, and a line that waits for steps."""

    def __init__(self, mq: lakemq.Connection) -> None:
        self.mq = mq
        self.clock = MovableClock()
        ids = iter(range(1, 1000)).__next__
        self.sequencer = Sequencer(mq.namespace, "leader", self.clock, ids, has_lines=True)
        assert self.sequencer.try_lead()
        self.sequencer.step()
        self.line = FollowLine(self._dialer(), lambda: "follower", self.clock)

    def _dialer(self) -> DirectLine:
        return DirectLine(self.mq.namespace.files, self.mq.namespace.namespace_id, self.clock)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        following = Following(mq)
        yield following
        following.line.close()
        following.sequencer.resign()


def test_no_hint_is_sent_for_a_renewed_lease(following: Following) -> None:
    step = following.sequencer.state.step
    assert following.line.await_step(step)
    following.clock.ahead_ms += following.mq.namespace.config["lease.ms"] // 2
    following.sequencer.step()
    assert following.sequencer.state.step > step
    assert not following.line.wait_for_hint(50)


# -- waiting ------------------------------------------------------------------------------------------------


@pytest.fixture
def without_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fetcher, "watch_steps", lambda self: None)


@pytest.mark.slow
@pytest.mark.parametrize("ends_on", ["a hint of the leader", "a notification of the file system"])
def test_poll_ends_when_a_message_comes(mq: lakemq.Connection, monkeypatch: pytest.MonkeyPatch, ends_on: str) -> None:
    if ends_on == "a hint of the leader":
        monkeypatch.setattr(Fetcher, "watch_steps", lambda self: None)
    else:
        monkeypatch.setattr(FollowLine, "open", lambda self: False)
    topic = new_topic(mq)
    with mq.consumer(new_name("g"), assign=[topic]) as consumer:
        consumer.poll()
        sender = threading.Timer(0.2, lambda: send(mq, topic, "1"))
        sender.start()
        began_s = time.monotonic()
        batch = consumer.poll(timeout_ms=FAR_MS, poll_ms=FAR_MS)
        assert time.monotonic() - began_s < SOON_S
        assert [message.value for message in batch] == [b"1"]
        sender.join()


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    refresh, looks = Reader.refresh, []

    def refresh_and_count(reader: Reader) -> object:
        looks.append(time.monotonic())
        return refresh(reader)

    monkeypatch.setattr(Reader, "refresh", refresh_and_count)
    return looks


def open_consumer(mq: lakemq.Connection, topic: str, protocol: str | None) -> Any:
    if protocol is None:
        return mq.consumer(new_name("g"), assign=[topic])
    return mq.consumer(new_name("g"), topics=[topic], protocol=protocol)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", extended_but(["queue"], [None, "queue"]))
def test_polls_do_not_look_while_the_leader_owes_a_hint(
    mq: lakemq.Connection, protocol: str | None, without_inotify: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(mq)
    looks = count_looks(monkeypatch)
    with open_consumer(mq, topic, protocol) as consumer:
        for _ in range(3):
            consumer.poll(timeout_ms=200)  # it takes what the group decides, and asks the leader for a hint
        del looks[:]
        for _ in range(5):
            assert len(consumer.poll(timeout_ms=200)) == 0
        assert len(looks) <= 2, "for steps that other tests have caused"
        send(mq, topic, "1")
        assert [message.value for message in consumer.poll(timeout_ms=FAR_MS)] == [b"1"]


@pytest.mark.slow
def test_polls_find_a_step_without_a_hint(
    mq: lakemq.Connection, without_inotify: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll is shorter than the time between two looks."""
    topic = new_topic(mq)
    monkeypatch.setattr(fetcher, "find_line_look_ms", lambda lease_ms: 300)
    with mq.consumer(new_name("g"), assign=[topic]) as consumer:
        consumer.poll(timeout_ms=200)
        line = consumer._parts.waiter._line  # type: ignore[attr-defined]
        stopped = line._connection
        monkeypatch.setattr(line, "wait_for_hint", lambda timeout_ms: bool(time.sleep(timeout_ms / 1000)))
        send(mq, topic, "1")
        end_s = time.monotonic() + SOON_S
        while not (batch := consumer.poll(timeout_ms=200)) and time.monotonic() < end_s:
            pass
        assert [message.value for message in batch] == [b"1"]
        assert stopped is not None
        assert line._connection is None
