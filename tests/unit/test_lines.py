"""The leader's end of lines: what counts, what is dropped, and that no client holds up another one or the leader."""

from __future__ import annotations

import resource
import struct
import threading
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from unit.line_peers import LEASE_MS, PATIENCE_S, LineClient, LineLeader, until

from lakemq.engine.namespace.line_frames import (
    BadFrame,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    LineAddress,
    decode_address,
    encode_address,
    encode_frame,
    encode_hello,
    encode_letter_frame,
)
from lakemq.engine.sequencer.letters import lines as lines_module
from lakemq.engine.sequencer.letters.line_table import LineListener
from lakemq.engine.sequencer.letters.lines import HELLO_MS, TRANSFER_MS
from lakemq.tables.storage.coordination import sockets

ADDRESS = LineAddress("ns", 3, "secret", "line.sock")
HELLO = Hello("ns", 3, "secret", "client")


class Client(LineClient):
    """A client's end over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__(sockets.connect_unix(path, PATIENCE_S))

    def greet(self, hello: Hello = HELLO) -> Client:
        self.send(encode_hello(hello))
        assert self.receive() == Frame(FrameKind.WELCOME, b"")
        return self


class Leader(LineLeader):
    """A leader on a Unix socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "line.sock")
        super().__init__(folder, LineListener(sockets.listen_unix(self.path)), ADDRESS)

    def connect(self) -> Client:
        return Client(self.path)


LEADER = Leader
WRONG_HELLOS = {
    "another namespace": Hello("other", 3, "secret", "client"),
    "another epoch": Hello("ns", 2, "secret", "client"),
    "a wrong token": Hello("ns", 3, "Secret", "client"),
    "a token that is not ASCII": Hello("ns", 3, "sécret", "client"),
    "no client": Hello("ns", 3, "secret", ""),
    "a client that is a path": Hello("ns", 3, "secret", "../../steps/1"),
}


@pytest.mark.parametrize("hello", WRONG_HELLOS.values(), ids=WRONG_HELLOS)
def test_a_wrong_hello_closes_the_line(leader: Leader, hello: Hello) -> None:
    client = leader.connect()
    client.send(encode_hello(hello))
    assert client.receive() is None


NONSENSE = {
    "a letter before the hello": encode_letter_frame(1, b"x"),
    "a frame without an end": b"\xff" * 100,
    "a large hello": encode_frame(FrameKind.HELLO, b"x" * 5000),
    "an unknown kind": encode_frame(9, b""),  # type: ignore[arg-type]
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_closes_its_line_and_no_other(leader: Leader, data: bytes) -> None:
    good, bad = leader.connect().greet(), leader.connect()
    bad.send(data)
    assert bad.receive() is None
    good.send(encode_letter_frame(1, b"good"))
    assert leader.take().body == b"good"


@pytest.mark.parametrize(
    "data",
    [encode_hello(HELLO), encode_letter_frame(2, b"second"), encode_frame(FrameKind.ANSWER, b""), b"\xff" * 20],
    ids=["a second hello", "a second letter", "an answer", "a frame that is too large"],
)
def test_a_bad_frame_after_a_letter_drops_the_letter_too(leader: Leader, data: bytes) -> None:
    """The client must not be in doubt about half of what it sent: all of it comes again, through the mailbox."""
    client = leader.connect().greet()
    client.send(encode_letter_frame(1, b"first") + data)
    assert client.receive() is None
    leader.drain()
    assert leader.lines.table.take_letter() is None


def test_new_line_of_a_client_closes_its_older_line(leader: Leader) -> None:
    before = leader.connect().greet()
    before.send(encode_letter_frame(1, b"by the old line"))
    leader.drain()
    after = leader.connect().greet()
    assert before.receive() is None
    after.send(encode_letter_frame(1, b"by the new line"))
    assert leader.take().body == b"by the new line"
    leader.drain()
    assert leader.lines.table.take_letter() is None


def test_letters_of_a_dropped_client_are_not_taken(leader: Leader) -> None:
    waiting, on_its_way = leader.connect().greet(), leader.connect().greet(Hello("ns", 3, "secret", "other"))
    waiting.send(encode_letter_frame(1, b"waits"))
    leader.drain()
    on_its_way.send(encode_letter_frame(1, b"may not have been read"))
    for client_id in ("client", "other", "unknown"):
        leader.lines.table.drop_client(client_id)
    leader.drain()
    assert leader.lines.table.take_letter() is None
    assert waiting.receive() is on_its_way.receive() is None


def test_a_client_that_takes_no_answer_is_left_after_a_while(leader: Leader) -> None:
    client = leader.connect().greet()
    client.send(encode_letter_frame(1, b""))
    leader.lines.table.answer(leader.take(), b"x" * (5 << 20))
    leader.clock.ahead_ms += TRANSFER_MS + 1000
    until(lambda: not len(leader.lines.table))


def test_a_silent_connection_and_a_letter_without_an_end_are_left_after_a_while(leader: Leader) -> None:
    idle = leader.connect().greet(Hello("ns", 3, "secret", "idle"))
    silent, endless = leader.connect(), leader.connect().greet()
    endless.send(encode_letter_frame(1, b"x" * 100)[:50])
    until(lambda: any(line.reader.size_bytes for line in leader.lines.table.lines()))
    leader.clock.ahead_ms += max(HELLO_MS, TRANSFER_MS) + 1000
    assert silent.receive() is endless.receive() is None
    until(lambda: len(leader.lines.table) == 1)  # a client may be idle for as long as it wants
    idle.send(encode_letter_frame(1, b"after all"))
    assert leader.take().body == b"after all"


def test_lines_close_when_no_step_lands_for_a_lease_and_come_back_after_one(leader: Leader) -> None:
    """Even if the thread of the sequencer hangs: another one may lead by then."""
    client = leader.connect().greet()
    leader.clock.ahead_ms += LEASE_MS
    assert client.receive() is None
    refused = leader.connect()
    refused.send(encode_hello(HELLO))
    assert refused.receive() is None
    leader.lines.note_step(leader.clock.steady_ms())
    leader.connect().greet()


def test_many_short_letters_are_bounded_like_a_long_one(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_BUFFERED_BYTES", 1 << 20)
    clients = [leader.connect().greet(Hello("ns", 3, "secret", f"c{n}")) for n in range(15)]
    for client in clients:
        client.send(encode_letter_frame(1, b"x" * 100_000))
    until(lambda: len(leader.lines.table) == 10)
    letters = [leader.lines.table.take_letter() for _ in range(11)]
    assert [letter is not None for letter in letters] == [True] * 10 + [False]
    last = leader.connect().greet(Hello("ns", 3, "secret", "last"))
    last.send(encode_letter_frame(1, b"x" * 1_000_000))
    assert leader.take().name.client_id == "last", "there is room again"


def test_connections_beyond_the_bound_are_closed_and_the_others_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        leader = Leader(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    clients = [leader.connect().greet(Hello("ns", 3, "secret", f"c{n}")) for n in range(128)]
    assert [leader.connect().receive() for _ in range(2)] == [None, None]
    assert caplog.text.count("All 128 direct connections are in use") == 1
    clients[0].send(encode_letter_frame(1, b"served"))
    assert leader.take().body == b"served"
    clients[1].socket.close()
    until(lambda: len(leader.lines.table) == 127)
    leader.connect().greet()
    leader.lines.close()


def test_drain_reads_all_that_was_sent_before_and_ends_though_clients_send(leader: Leader) -> None:
    """Deadlines pass only after a drain, so clients that are busy for ever must not stop it."""
    stop = threading.Event()
    busy = [leader.connect().greet(Hello("ns", 3, "secret", f"busy{n}")) for n in range(8)]

    def be_busy() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for client in busy:
                client.send(encode_letter_frame(number, b"x" * 100))
            for _ in busy:
                leader.lines.table.answer(leader.take(), b"")

    # the letters of the busy clients are taken and answered by this thread alone
    worker = threading.Thread(target=be_busy)
    worker.start()
    for _ in range(50):
        leader.drain()
    stop.set()
    worker.join()
    quiet = leader.connect().greet()
    for number in range(1, 21):
        quiet.send(encode_letter_frame(number, b"x" * (150_000 if number % 2 else 10)))  # or it fills the buffers
        leader.drain()
        letter = leader.lines.table.take_letter()
        assert letter is not None, "it was sent before the drain"
        leader.lines.table.answer(letter, b"")
        assert quiet.receive() is not None


def test_a_closed_leader_leaves_no_connection_and_no_thread(leader: Leader) -> None:
    client = leader.connect().greet()
    client.send(encode_letter_frame(1, b"not decided"))
    leader.lines.close()
    assert client.receive() is None
    assert leader.lines.table.take_letter() is None
    assert not leader.lines._thread.is_alive()
    with pytest.raises(ConnectionError):
        leader.connect()


def test_a_path_that_is_too_long_for_a_socket_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    leader = Leader(folder)
    leader.connect().greet()
    leader.lines.close()


# Frames on a line: cut anywhere they are the same, and nothing that a peer sends makes a reader hold too much.


@examples()
@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_frames_are_read_whole_from_any_pieces(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(FrameKind.LETTER, content) for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = FrameReader(40)
    frames = []
    for piece in pieces:
        reader.add(piece)
        frames += reader.frames()
    assert frames == [Frame(FrameKind.LETTER, content) for content in contents]
    assert reader.size_bytes == 0


def test_a_frame_that_is_too_large_is_refused_by_its_header() -> None:
    reader = FrameReader(100)
    reader.add(struct.pack(">IB", 101, FrameKind.LETTER))
    with pytest.raises(BadFrame, match="101 bytes, expected at most 100"):
        list(reader.frames())


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"namespace_id":1}', b"\xff" * 9, b'{"x":' + b"[" * 100_000])
def test_invalid_address_of_a_line_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not an address"):
        decode_address(body)


@pytest.mark.parametrize("name", ["/run/other.sock", "line/../other.sock", "other.sock", "line/", "line"])
def test_an_address_leads_to_no_socket_of_another_program(name: str) -> None:
    body = encode_address(LineAddress("ns", 1, "token", name))
    with pytest.raises(ValueError, match="socket"):
        decode_address(body)
