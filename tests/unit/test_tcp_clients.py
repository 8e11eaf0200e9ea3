"""Clients of lines over TCP: which leader they trust, when they use the mailbox, and when they try again."""

import itertools
import os
import random
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from obstore.store import LocalStore
from unit.line_peers import PATIENCE_S, until
from unit.tcp_lines import TcpLeader
from unit.test_direct_line import letter_of

from lakemq.engine.client.fetch.fetcher import StepWaiter
from lakemq.engine.client.requests.direct_line import (
    BAD_LINE_MS,
    LONGEST_PAUSE_MS,
    PATIENCE_MS,
    SHORTEST_DIAL_MS,
    DirectLine,
    FollowLine,
    connect_to_leader,
)
from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.namespace.line_frames import (
    FrameKind,
    LineAddress,
    LineSettings,
    decode_address,
    encode_address,
    encode_frame,
    encode_hello,
    read_line_settings,
)
from lakemq.engine.protocol.codec.letter import encode_answer
from lakemq.engine.protocol.errors import InvalidConfig
from lakemq.engine.protocol.values.clients import Answer
from lakemq.engine.protocol.values.producers import ProducerDone
from lakemq.engine.sequencer.letters import line_opener
from lakemq.engine.sequencer.letters.line_opener import open_term_lines
from lakemq.tables.storage.coordination import sockets
from lakemq.tables.storage.coordination.sockets import line_name
from lakemq.tables.storage.object_stores.files import Files, LocalFiles, ObjectFiles
from lakemq.tables.storage.object_stores.objects import Names
from lakemq.testing import MovableClock

# -- settings -----------------------------------------------------------------------------------------------


SETTINGS = {
    "this machine": ({"line.listen": "127.0.0.1:0"}, LineSettings("127.0.0.1", 0, "127.0.0.1", 0)),
    "this machine, IPv6": ({"line.listen": "[::1]:7788"}, LineSettings("::1", 7788, "::1", 0)),
    "a network": ({"line.listen": "10.0.0.5:7788"}, LineSettings("10.0.0.5", 7788, "10.0.0.5", 0)),
    "a name": ({"line.listen": "localhost:1"}, LineSettings("localhost", 1, "localhost", 0)),
    "another address": (
        {"line.listen": "0.0.0.0:7788", "line.advertise": "mq.example.org"},
        LineSettings("0.0.0.0", 7788, "mq.example.org", 0),
    ),
    "a tunnel": (
        {"line.listen": "127.0.0.1:7788", "line.advertise": "[2001:db8::1]:443"},
        LineSettings("127.0.0.1", 7788, "2001:db8::1", 443),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_settings_tell_where_a_leader_listens(settings: dict[str, Any], expected: LineSettings) -> None:
    assert read_line_settings(EngineConfig(settings)) == expected


WRONG_SETTINGS: dict[str, dict[str, Any]] = {
    "no port": {"line.listen": "127.0.0.1"},
    "a large port": {"line.listen": "127.0.0.1:65536"},
    "a URL": {"line.listen": "tcp://127.0.0.1:1"},
    "all addresses": {"line.listen": "0.0.0.0:7788"},
    "all IPv6 addresses": {"line.listen": "[::]:7788"},
    "nothing to advertise": {"line.advertise": "mq.example.org:7788"},
}


@pytest.mark.parametrize("settings", WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_settings_that_lead_nowhere_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        read_line_settings(EngineConfig(settings))


# -- which leader a client trusts ---------------------------------------------------------------------------

LEADER = TcpLeader


def announce(leader: TcpLeader, **changes: Any) -> DirectLine:
    """Put the line object of this leader, changed, and return a client's line."""
    address = msgspec.structs.replace(leader.address, **changes)
    leader.files.put(line_name(address.epoch), encode_address(address), durable=False)
    return DirectLine(leader.files, "ns", MovableClock())


def answer_letters(leader: TcpLeader, count: int) -> threading.Thread:
    def answer() -> None:
        for _ in range(count):
            letter = leader.take()
            name = letter.name
            body = encode_answer(Answer(name.client_id, name.number, 1, [ProducerDone(9, 0)]))
            leader.lines.table.answer(letter, body)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def check_nothing_is_sent(leader: TcpLeader, line: DirectLine) -> None:
    assert line.exchange("c1", 1, letter_of("c1", 1, "t"), 1_000) == (False, None)
    assert leader.files.list("mailbox") == [], "no proof is left"
    leader.drain()
    assert leader.lines.table.client_count == 0


def test_a_client_sends_nothing_to_a_leader_with_another_certificate(leader: TcpLeader) -> None:
    check_nothing_is_sent(leader, announce(leader, fingerprint="0" * 64))


def test_client_sends_nothing_to_who_took_the_port_of_a_dead_leader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Any user of the machine may listen there. The object of the line is still that of the leader that was killed."""
    dead = TcpLeader(tmp_path)
    dead.lines.close()
    received = list[bytes]()
    with sockets.listen_tcp("127.0.0.1", 0) as impostor:

        def pose_as_leader() -> None:
            connection, _ = impostor.accept()
            with connection, suppress(OSError):
                connection.settimeout(PATIENCE_S)
                while data := connection.recv(4096):
                    received.append(data)
                    connection.sendall(encode_frame(FrameKind.WELCOME, b""))

        posing = threading.Thread(target=pose_as_leader)
        posing.start()
        line = announce(dead, port=impostor.getsockname()[1])
        assert line.exchange("the-client", 1, letter_of("the-client", 1, "t"), 1_000) == (False, None)
        posing.join(PATIENCE_S)
    assert b"the-client" not in b"".join(received), "there is no hello, and no letter"
    assert dead.files.list("mailbox") == [], "no proof is left"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "requests go through the mailbox: no TLS is spoken there" in warning
    without_tls = announce_again(dead, fingerprint="")
    assert without_tls.exchange("the-client", 1, letter_of("the-client", 1, "t"), 1_000) == (False, None)


def announce_again(leader: TcpLeader, **changes: Any) -> DirectLine:
    """Replace the line object."""
    leader.files.delete([line_name(leader.address.epoch)])
    return announce(leader, **changes)


def test_a_client_sends_nothing_to_the_leader_of_another_namespace(tmp_path: Path) -> None:
    """The namespace was created again at the same path."""
    leader = TcpLeader(tmp_path, namespace_id="other")
    check_nothing_is_sent(leader, announce(leader))
    leader.lines.close()


def test_an_idle_client_goes_on_with_the_next_leader(tmp_path: Path) -> None:
    """It sees that its line has ended before it sends, so the letter need not wait in the mailbox."""
    first = TcpLeader(tmp_path)
    line = announce(first)
    answering = answer_letters(first, 1)
    assert line.exchange("c1", 1, letter_of("c1", 1, "t"), 30_000)[1] is not None
    answering.join()
    first.lines.close()
    second = TcpLeader(tmp_path)
    second.files.delete([line_name(3)])
    second.files.put(line_name(3), encode_address(second.address), durable=False)
    answering = answer_letters(second, 2)
    for number in (2, 3):
        assert line.exchange("c1", number, letter_of("c1", number, "t"), 30_000)[1] is not None
    answering.join()
    line.close()
    second.lines.close()


def test_a_client_that_is_not_welcomed_takes_its_proof_back(leader: TcpLeader) -> None:
    line = announce(leader, token="stolen elsewhere")
    assert line.exchange("c1", 1, letter_of("c1", 1, "t"), 30_000) == (False, None)
    assert leader.files.list("mailbox") == []


@pytest.mark.slow
@pytest.mark.parametrize("is_unix", [False, True], ids=["TCP", "Unix socket"])
def test_a_stopped_leader_hardly_prolongs_a_short_wait(leader: TcpLeader, is_unix: bool) -> None:
    """Nobody accepts the connection of a consumer that polls with a short timeout."""
    if is_unix:
        (leader.folder / "line").mkdir()
        stopped = sockets.listen_unix(str(leader.folder / "line" / "stopped"))
        folder = sockets.identify_folder(str(leader.folder))
        line = announce(leader, socket="line/stopped", folder=folder, port=0)
    else:
        stopped = sockets.listen_tcp("127.0.0.1", 0)
        line = announce(leader, port=stopped.getsockname()[1])
    follow_line = FollowLine(line, lambda: "follower", leader.clock)
    waiter = StepWaiter(lambda: None, leader.clock, follow_line, lambda: 0, lambda: 0, threading.Event())
    waiter.reset()
    begun_s = time.monotonic()
    waiter.wait(poll_ms=20, most_ms=100)
    assert 0.9 * SHORTEST_DIAL_MS / 1000 < time.monotonic() - begun_s < 0.9 * PATIENCE_MS / 1000
    stopped.close()


def test_a_name_that_is_not_resolved_in_time_holds_up_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, go_on = socket.getaddrinfo, threading.Event()

    def resolve_slowly(host: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            return resolve(host, *arguments, **options)
        go_on.wait(PATIENCE_S)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", resolve_slowly)
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError, match="no address of mq"):
        sockets.connect_tcp("mq.example.org", 7788, 0.2)
    assert time.monotonic() - begun_s < 2
    go_on.set()


# -- a disk -------------------------------------------------------------------------------------------------


def open_lines(files: Files) -> Any:
    """Open the lines of a leader on this machine."""
    clock, settings = MovableClock(), LineSettings("127.0.0.1", 0, "127.0.0.1", 0)
    return open_term_lines(files, "ns", 1, 60_000, clock.steady_ms(), threading.Event(), clock, settings)


def test_clients_of_a_disk_prefer_the_unix_socket_and_other_machines_use_tcp(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    lines = open_lines(files)
    address = decode_address(files.get(line_name(1)))
    reached = connect_to_leader(files, address, "near", 5, 5)
    assert reached is not None
    assert reached[0].family == socket.AF_UNIX
    # where another machine shares the folder, its sockets are there, and nothing listens on them
    os.unlink(tmp_path / address.socket)
    sockets.listen_unix(str(tmp_path / address.socket)).close()
    far = connect_to_leader(files, address, "far", 5, 5)
    assert far is not None
    assert far[0].family == socket.AF_INET
    lines.close()
    assert files.list("line") == []
    for connection, _ in (reached, far):
        connection.close()


def take_port() -> socket.socket:
    """Listen at a port below those that the system gives out, so that nobody else gets it when it is free again."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError):
            return sockets.listen_tcp("127.0.0.1", port)
    raise AssertionError("no port is free")


def test_a_port_that_is_taken_leaves_the_other_lines_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_opener, "AGAIN_S", 0.05)
    files, clock = LocalFiles(str(tmp_path)), MovableClock()
    taken = take_port()
    settings = LineSettings("127.0.0.1", taken.getsockname()[1], "127.0.0.1", 0)
    lines = open_term_lines(files, "ns", 1, 60_000, clock.steady_ms(), threading.Event(), clock, settings)
    assert lines is not None
    address = decode_address(files.get(line_name(1)))
    assert (bool(address.socket), address.port) == (True, 0)
    assert "cannot be used" in caplog.text
    assert "Address already in use" in address.missing[0]
    taken.close()
    until(lambda: has_port(files))
    reached = connect_to_leader(files, replace(read_address(files), socket=""), uuid.uuid4().hex, 1, 5)
    assert reached is not None
    connection, hello = reached
    connection.sendall(encode_hello(hello))
    connection.settimeout(10)
    assert connection.recv(100), "the welcome"
    connection.close()
    address = read_address(files)
    assert (bool(address.socket), address.port, address.missing) == (True, settings.listen_port, ())
    lines.close()
    assert files.list("line") == []
    with pytest.raises(OSError, match="refused"):
        sockets.connect_tcp("127.0.0.1", settings.listen_port, 1)


def read_address(files: Files) -> LineAddress:
    return decode_address(files.get(line_name(1)))


def has_port(files: Files) -> bool:
    """Return whether the address names a port. Its object is removed, and then put with the port."""
    try:
        return bool(read_address(files).port)
    except FileNotFoundError:
        return False


# -- an object store ----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> ObjectFiles:
    """A store in a folder."""
    return ObjectFiles(LocalStore(str(tmp_path)), "s3://bucket/mq")


def test_clients_of_a_store_look_for_a_line_ever_less_often(tmp_path: Path) -> None:
    """A look is a request to the store. `line.listen` may be off for good."""
    looks: list[int] = []
    clock = MovableClock()

    class EmptyStore(ObjectFiles):
        def list(self, prefix: str, limit: int | None = None) -> Names:
            looks.append(clock.steady_ms())
            return []

    line = DirectLine(EmptyStore(LocalStore(str(tmp_path)), "s3://bucket/mq"), "ns", clock)
    for _ in range(12_000):
        assert line.exchange("c1", 1, b"a letter", 1_000) == (False, None)
        clock.ahead_ms += 100
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert BAD_LINE_MS * 0.7 < pauses[0] < BAD_LINE_MS * 1.1
    assert 0.7 * LONGEST_PAUSE_MS < pauses[-1] < 1.1 * LONGEST_PAUSE_MS
    assert max(pauses[8:]) - min(pauses[8:]) > 2_000, "clients must not come all at once"


class ReadOnlyFiles(LocalFiles):
    """Files of a user who may read and not write."""

    def put(self, name: str, *_: Any, **__: Any) -> str:
        raise PermissionError(13, "AccessDenied", name)


def test_client_without_permission_to_write_publishes_nothing(leader: TcpLeader) -> None:
    """It reads the line object with the token, and cannot put its proof."""
    announce(leader).close()
    check_nothing_is_sent(leader, DirectLine(ReadOnlyFiles(str(leader.folder)), "ns", MovableClock()))
