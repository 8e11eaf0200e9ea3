"""Lines over TCP at the leader: who is believed, and that no client holds up another one or the leader."""

import _ssl
import ctypes
import fcntl
import os
import selectors
import socket
import ssl
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clocks import HastyClock
from unit.line_peers import LEASE_MS, PATIENCE_S, LineClient, until
from unit.served import CONFIG, find_lines
from unit.tcp_lines import TcpLeader
from unit.test_direct_line import letter_of

import lakemq
from lakemq.engine.namespace.line_frames import Frame, FrameKind, Hello, compute_proof, decode_address, encode_hello
from lakemq.engine.sequencer.letters import line_acceptor, line_opener, line_table, lines
from lakemq.engine.sequencer.letters.line_table import MAX_HANDSHAKE_BYTES, LineListener, LineTable
from lakemq.engine.sequencer.letters.lines import HELLO_MS, LineServer
from lakemq.engine.sequencer.sequencer import EXPIRY_INTERVAL_MS, Sequencer
from lakemq.tables.storage.coordination import sockets
from lakemq.tables.storage.coordination.sockets import ABANDONED_AFTER_MS, line_name, put_proof, remove_abandoned_proofs
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.testing import MovableClock

LEADER = TcpLeader


# -- who is believed ----------------------------------------------------------------------------------------


def use_others_secret(leader: TcpLeader, hello: Hello) -> Hello:
    """Name the proof of another client, with its secret."""
    _, other = leader.reach("other")
    return msgspec.structs.replace(hello, proof=other.proof, secret=other.secret)


def name_path(leader: TcpLeader, hello: Hello) -> Hello:
    """Name an object outside of the mailbox whose content would be a proof."""
    base_name = os.path.basename(hello.proof)
    leader.files.put(f"steps/{base_name}", compute_proof(hello), durable=False)
    return msgspec.structs.replace(hello, proof=f"mailbox/../steps/{base_name}")


WRONG_PROOFS: dict[str, Callable[[TcpLeader, Hello], Hello]] = {
    "none": lambda _, hello: msgspec.structs.replace(hello, proof="", secret=b""),
    "one that is not there": lambda _, hello: msgspec.structs.replace(hello, proof=f"mailbox/proof-{'0' * 32}"),
    "another secret": lambda _, hello: msgspec.structs.replace(hello, secret=b"guessed"),
    "another client's, with its secret": use_others_secret,
    "an object elsewhere": name_path,
}


@pytest.mark.parametrize("change", WRONG_PROOFS.values(), ids=WRONG_PROOFS)
def test_client_without_a_proof_is_refused_and_removes_nothing(
    leader: TcpLeader, change: Callable[[TcpLeader, Hello], Hello]
) -> None:
    """Reading a namespace must not allow publishing, nor removing what others have put."""
    client, hello = leader.reach()
    wrong = change(leader, hello)
    objects = leader.files.list("mailbox") + leader.files.list("steps")
    client.send(encode_hello(wrong))
    assert client.receive() is None
    assert leader.files.list("mailbox") + leader.files.list("steps") == objects


def test_a_proof_counts_once(leader: TcpLeader) -> None:
    first, hello = leader.reach()
    second, _ = leader.reach()
    first.send(encode_hello(hello))
    assert first.receive() == Frame(FrameKind.WELCOME, b"")
    assert hello.proof not in leader.files.list("mailbox")
    second.send(encode_hello(hello))
    assert second.receive() is None
    leader.serve(first)


def test_a_stranger_that_claims_a_clients_id_closes_no_line_of_it(leader: TcpLeader) -> None:
    client = leader.connect()
    stranger, hello = leader.reach()
    stranger.send(encode_hello(msgspec.structs.replace(hello, secret=b"guessed")))
    assert stranger.receive() is None
    leader.serve(client)


def test_a_frame_before_the_welcome_closes_the_line(leader: TcpLeader) -> None:
    client, hello = leader.reach()
    client.send(encode_hello(hello) + encode_hello(hello))
    assert client.receive() is None


def test_a_leader_that_may_have_been_replaced_welcomes_no_client(leader: TcpLeader) -> None:
    client, hello = leader.reach()
    leader.clock.ahead_ms += LEASE_MS
    with suppress(ConnectionError):
        client.send(encode_hello(hello))
    assert client.receive() is None
    leader.lines.note_step(leader.clock.steady_ms())
    leader.serve(leader.connect())


def test_abandoned_proofs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    old, new = (put_proof(files, b"digest") for _ in range(2))
    letter = "mailbox/1700000000000-client-0000000001"
    files.put(letter, b"a letter", durable=False)
    long_ago_s = time.time() - ABANDONED_AFTER_MS / 1000 - 60
    for name in (old, letter):
        os.utime(tmp_path / name, (long_ago_s, long_ago_s))
    remove_abandoned_proofs(files)
    assert sorted(files.list("mailbox")) == sorted([letter, new])


# -- nobody waits for anybody -------------------------------------------------------------------------------


def hold_no_hello(leader: TcpLeader) -> LineClient:
    return leader.reach("slow")[0]


def hold_no_byte(leader: TcpLeader) -> LineClient:
    return leader.connect_without_tls()


def hold_half_a_handshake(leader: TcpLeader) -> LineClient:
    client = leader.connect_without_tls()
    client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
    return client


SLOW_CLIENTS = {"no hello": hold_no_hello, "no byte": hold_no_byte, "half a handshake": hold_half_a_handshake}


@pytest.mark.parametrize("connect_slowly", SLOW_CLIENTS.values(), ids=SLOW_CLIENTS)
def test_slow_client_delays_no_other_and_is_closed_after_five_seconds(
    leader: TcpLeader, connect_slowly: Callable[[TcpLeader], LineClient]
) -> None:
    slow = connect_slowly(leader)
    client = leader.connect()
    leader.serve(client)
    assert len(leader.lines.table) == 2
    leader.clock.ahead_ms += HELLO_MS + 500
    assert slow.receive() is None
    leader.serve(client, number=2)


def test_a_connection_that_ends_before_it_is_accepted_keeps_no_other_out(tmp_path: Path) -> None:
    context, _ = line_opener.make_tls_context()
    with sockets.listen_tcp("127.0.0.1", 0) as listening, selectors.DefaultSelector() as selector:
        listener, clock, address = LineListener(listening, True, context), MovableClock(), listening.getsockname()
        acceptor = line_acceptor.LineAcceptor([listener], selector, LineTable(clock, lambda: None), clock)
        hasty = socket.create_connection(address)
        hasty.send(b"\x16")
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hasty.close()  # with a reset
        acceptor.accept(listener)
        with socket.create_connection(address):
            assert [key.data for key, _ in selector.select(PATIENCE_S)] == [listener]
            line = acceptor.accept(listener)
            assert line is not None
            line.connection.close()


NONSENSE = {
    "a hello without TLS": encode_hello(Hello("ns", 3, "token", "client")),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "noise": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_in_place_of_tls_closes_its_line_and_no_other(leader: TcpLeader, data: bytes) -> None:
    client, hostile = leader.connect(), leader.connect_without_tls()
    hostile.send(data)
    while frame_bytes := hostile.socket.recv(4096):
        assert frame_bytes[0] == 0x15, "only TLS's alert"
    leader.serve(client)


def test_a_handshake_without_an_end_is_bounded(leader: TcpLeader) -> None:
    """A hello of TLS that says it has 120 KiB, which OpenSSL alone would wait for."""
    client, hostile = leader.connect(), leader.connect_without_tls()
    hostile.socket.settimeout(HELLO_MS / 2000)
    record = b"\x01" + (120 << 10).to_bytes(3, "big") + bytes(16_000)
    with suppress(ConnectionError):
        for _ in range(MAX_HANDSHAKE_BYTES // 16_000 + 1):
            hostile.send(b"\x16\x03\x01" + struct.pack(">H", len(record)) + record)
            record = bytes(16_000)
    assert hostile.receive() is None
    leader.serve(client)


def make_key_updates(hostile: socket.socket, count: int) -> bytes:
    """Shake hands, and return records that change keys: they hold nothing for the line. Python has no call for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls: Any = context.wrap_bio(incoming, outgoing)
    while True:
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            break
        hostile.sendall(outgoing.read())
        incoming.write(hostile.recv(1 << 16))
    # behind the head of the object and its reference to a socket
    pointer = ctypes.c_void_p.from_address(id(tls._sslobj) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p))
    openssl = ctypes.CDLL(_ssl.__file__)
    for _ in range(count):
        assert openssl.SSL_key_update(pointer, 0) == 1
        assert openssl.SSL_do_handshake(pointer) == 1
    return outgoing.read()


@pytest.mark.extended
@pytest.mark.slow
def test_stranger_that_changes_its_keys_without_end_holds_up_no_line(
    leader: TcpLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL alone would go on as long as bytes come."""
    monkeypatch.setattr(lines, "_RECEIVED_BYTES", 1 << 14)
    monkeypatch.setattr(lines, "HELLO_MS", 1000 * PATIENCE_S)  # to make the flood takes seconds
    client, hostile = leader.connect(), leader.connect_without_tls().socket
    flood = make_key_updates(hostile, 100_000)

    def send_flood() -> None:
        with suppress(OSError):
            hostile.sendall(flood)

    def count_untaken() -> int:
        """Return how many bytes of the flood have no room yet at the leader."""
        return int.from_bytes(fcntl.ioctl(hostile, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    sender = threading.Thread(target=send_flood)
    sender.start()
    until(lambda: count_untaken() > 0)
    leader.serve(client)
    assert count_untaken() > 0
    leader.lines.close()
    sender.join(PATIENCE_S)


@pytest.mark.slow
def test_sending_never_waits_for_a_client_that_stops_reading(leader: TcpLeader) -> None:
    slow, client = leader.connect("slow"), leader.connect()
    slow.send_letter(1, b"")
    letter, answer = leader.take(), os.urandom(30 << 20)
    begun_s = time.monotonic()
    leader.lines.table.answer(letter, answer)
    assert time.monotonic() - begun_s < 5, "it waits"
    leader.serve(client)
    reader = threading.Thread(target=lambda: frames.append(slow.receive()))
    frames: list[Frame | None] = []
    reader.start()
    reader.join(PATIENCE_S)
    assert frames == [Frame(FrameKind.ANSWER, answer)], "the reading thread sends the rest"


@pytest.mark.slow
def test_answers_that_no_client_takes_are_bounded_together(leader: TcpLeader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_table, "MAX_OUTPUT_BYTES", 40 << 20)
    clients = [leader.connect(f"c{n}") for n in range(2)]
    for client in clients:
        client.send_letter(1, b"")
        leader.lines.table.answer(leader.take(), bytes(30 << 20))
    until(lambda: len(leader.lines.table) == 1)
    assert leader.lines.table.client_count == 1


def test_connections_without_a_welcome_are_bounded(leader: TcpLeader) -> None:
    client = leader.connect()
    strangers = [leader.connect_without_tls() for _ in range(line_acceptor.MAX_STRANGERS_OF_HOST)]
    until(lambda: len(leader.lines.table) == line_acceptor.MAX_STRANGERS_OF_HOST + 1)
    assert leader.connect_without_tls().receive() is None
    leader.serve(client)
    strangers[0].socket.close()
    until(lambda: len(leader.lines.table) == line_acceptor.MAX_STRANGERS_OF_HOST)
    leader.serve(leader.connect("another"))


class SlowFiles(LocalFiles):
    """Files whose objects come only when the test says so."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.may_answer = threading.Event()

    def get(self, name: str, limit: int | None = None) -> bytes:
        assert self.may_answer.wait(6 * PATIENCE_S)
        return super().get(name, limit)


@pytest.mark.slow
def test_a_store_that_takes_its_time_holds_up_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_acceptor, "MAX_WAITING", 3)
    files = SlowFiles(str(tmp_path))
    leader = TcpLeader(tmp_path, files=files)
    files.may_answer.set()
    client = leader.connect()
    files.may_answer.clear()
    waiting = [leader.reach(f"c{n}") for n in range(4)]
    waiting[3][0].socket.settimeout(HELLO_MS / 2000)
    for stranger, hello in waiting:
        stranger.send(encode_hello(hello))
        time.sleep(0.05)
    assert waiting[3][0].receive() is None, "too many wait"
    leader.drain()
    leader.serve(client)
    leader.clock.ahead_ms += HELLO_MS + 500
    assert waiting[0][0].receive() is None, "it has waited for too long"
    files.may_answer.set()
    leader.serve(client, number=2)
    until(lambda: leader.lines._proofs._waiting_count == 0)
    leader.serve(leader.connect("c0"))
    leader.lines.close()


def test_a_forked_child_keeps_no_tcp_line_open(leader: TcpLeader) -> None:
    """The client must see that its leader has ended, though a child of it lives on."""
    client = leader.connect()
    go_on, begun = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        is_closed = all(line.connection.fileno() == -1 for line in leader.lines.table.lines_unlocked())
        os.write(begun[1], b"closed" if is_closed else b"open")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        assert os.read(begun[0], 6) == b"closed"
        leader.serve(client)
        leader.lines.close()
        assert client.receive() is None
        with pytest.raises(ConnectionError):
            leader.connect_without_tls()
    finally:
        os.write(go_on[1], b".")
        os.waitpid(child, 0)
        for end in (*go_on, *begun):
            os.close(end)


# Attacks on the lines of a leader: what a hostile client repeats, leaves behind or asks for gains it nothing.


def test_an_older_version_of_tls_is_refused(leader: TcpLeader) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    connection = socket.create_connection(("127.0.0.1", leader.port), PATIENCE_S)
    with connection, pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
        context.wrap_socket(connection)
    leader.serve(leader.connect())


def open_lines(files: LocalFiles) -> LineServer:
    clock = MovableClock()
    lines = line_opener.open_term_lines(files, "ns", 1, LEASE_MS, clock.steady_ms(), threading.Event(), clock)
    assert lines is not None
    return lines


def test_a_socket_that_cannot_be_made_is_reported_and_made_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_opener, "AGAIN_S", 0.05)
    obstacle = tmp_path / "line"
    obstacle.touch()
    files = LocalFiles(str(tmp_path))
    lines = open_lines(files)
    assert [record.levelname for record in caplog.records if "no socket can be made" in record.message] == ["WARNING"]
    obstacle.unlink()
    until(lambda: line_name(1) in files.list("line"))
    address = decode_address(files.get(line_name(1)))
    sockets.connect_unix(str(tmp_path / address.socket), 1).close()
    lines.close()
    assert list(obstacle.iterdir()) == []


# Deadlines of a stepped_leader with lines: they pass, and never before a letter that was sent in time.

EXPIRATION_MS = 60_000


class SteppedLeader:
    """A sequencer with lines, which does one step when it is told to, and knows the client `c1`."""

    def __init__(self, mq: lakemq.Connection) -> None:
        self.clock = HastyClock()
        ids = iter(range(1, 1000)).__next__
        self.sequencer = Sequencer(mq.namespace, "stepped_leader", self.clock, ids, has_lines=True)
        assert self.sequencer.try_lead()
        self.lines = find_lines(self.sequencer)
        self.sequencer.step()  # a term begins with a look for what has expired
        mq.namespace.mailbox.put("c1", 1, letter_of("c1", 1, "t"), 0)
        self.sequencer.step()
        assert self.knows_client

    @property
    def knows_client(self) -> bool:
        return "c1" in self.sequencer.state.clients

    def wait_for_drain(self) -> None:
        until(lambda: self.lines._drained_at_ms is not None)


@pytest.fixture
def stepped_leader(tmp_path: Path) -> Iterator[SteppedLeader]:
    config = {**CONFIG, "client.expiration.ms": EXPIRATION_MS}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq:
        stepped_leader = SteppedLeader(mq)
        yield stepped_leader
        stepped_leader.sequencer.resign()


@pytest.mark.parametrize("pause_ms", [0, 5_000], ids=["short steps", "steps that take seconds"])
def test_expired_client_is_forgotten_after_a_drain(stepped_leader: SteppedLeader, pause_ms: int) -> None:
    stepped_leader.clock.ahead_ms += EXPIRATION_MS + 1_000
    stepped_leader.sequencer.step()
    assert stepped_leader.knows_client, "a letter may have come that is not read yet"
    stepped_leader.wait_for_drain()
    stepped_leader.clock.ahead_ms += pause_ms
    stepped_leader.sequencer.step()
    assert not stepped_leader.knows_client


def test_client_that_was_not_overdue_at_the_drain_does_not_expire(stepped_leader: SteppedLeader) -> None:
    """The stepped_leader's process may have been stopped since. A letter may have come meanwhile, in time."""
    stepped_leader.lines.request_drain()
    stepped_leader.wait_for_drain()
    stepped_leader.clock.ahead_ms += EXPIRATION_MS + 1_000
    stepped_leader.sequencer.step()
    assert stepped_leader.knows_client
    stepped_leader.clock.ahead_ms += EXPIRY_INTERVAL_MS
    stepped_leader.lines.request_drain()
    stepped_leader.wait_for_drain()
    stepped_leader.sequencer.step()
    assert not stepped_leader.knows_client
