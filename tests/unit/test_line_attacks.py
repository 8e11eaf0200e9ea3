"""Attacks on the lines of a leader: what a hostile client repeats, leaves behind or asks for gains it nothing."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import AheadClock
from unit.line_peers import LEASE_MS, PATIENCE_S, until
from unit.tcp_lines import TcpLeader

from lakemq.engine.namespace.follow_frames import FollowFrameKind, LineBeat, encode_beat_frame
from lakemq.engine.namespace.line_frames import (
    Frame,
    FrameKind,
    decode_address,
    encode_hello,
)
from lakemq.engine.protocol.codec.beat import MemberBeat, encode_beat
from lakemq.engine.sequencer.letters import line_beats, line_opener
from lakemq.engine.sequencer.letters.lines import LineServer
from lakemq.tables.storage.coordination import unix_sockets
from lakemq.tables.storage.coordination.line_objects import line_name
from lakemq.tables.storage.object_stores.files import LocalFiles

WELCOME = Frame(FrameKind.WELCOME, b"")


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[TcpLeader]:
    leader = TcpLeader(tmp_path)
    yield leader
    leader.lines.close()


class PairedReads(LocalFiles):
    """Files whose proofs are returned when two threads have read them."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.both_have_read = threading.Barrier(2)

    def get(self, name: str, limit: int | None = None) -> bytes:
        content = super().get(name, limit)
        self.both_have_read.wait(PATIENCE_S)
        return content


def test_a_proof_that_two_threads_have_read_counts_once(tmp_path: Path) -> None:
    leader = TcpLeader(tmp_path, files=PairedReads(str(tmp_path)))
    (first, hello), (second, _) = leader.reach(), leader.reach()
    for client in (first, second):
        client.send(encode_hello(hello))
    # the client that is refused is the one whose line is closed, whichever thread was first
    frames = [client.receive() for client in (first, second)]
    assert sorted(frames, key=str) == sorted([WELCOME, None], key=str)
    leader.serve(first if frames[0] == WELCOME else second)
    checker = leader.lines._proofs
    until(lambda: not checker._checking_counts)
    assert not checker._accepted_proofs, "names of proofs do not pile up"
    leader.lines.close()


def leave_beat(leader: TcpLeader, beats_id: str, size_bytes: int) -> None:
    """Send a heartbeat on a line, and close the line when it has counted."""
    client = leader.connect(f"client-{beats_id}")
    client.send(encode_beat_frame(LineBeat(beats_id, 1, encode_beat([MemberBeat("g", "x" * size_bytes, 0)]))))
    assert client.receive() == Frame(FollowFrameKind.BEAT_SEEN, (1).to_bytes(8, "big"))
    client.socket.close()
    until(lambda: not leader.lines.beats.list_newest())


def test_beats_of_closed_lines_are_bounded_together(leader: TcpLeader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that beats, closes its line and opens another one must not fill the leader's memory."""
    monkeypatch.setattr(line_beats, "MAX_BYTES", 25_000)
    for beats_id in "abcd":
        leave_beat(leader, beats_id, 10_000)
    leave_beat(leader, "a", 11_000)  # takes the place of the one before
    beats = leader.lines.beats.read_all()
    assert [beat.beats_id for beat in beats] == ["a", "b"]
    assert sum(beat.size_bytes for beat in beats) <= 25_000
    leave_beat(leader, "c", 10_000)
    assert [beat.beats_id for beat in leader.lines.beats.read_all()] == ["c"], "there is room again"


def test_an_older_version_of_tls_is_refused(leader: TcpLeader) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    connection = socket.create_connection(("127.0.0.1", leader.port), PATIENCE_S)
    with connection, pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
        context.wrap_socket(connection)
    leader.serve(leader.connect())


def test_closed_clients_leave_no_descriptor_and_no_object(leader: TcpLeader) -> None:
    def count_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    leader.connect().socket.close()
    until(lambda: len(leader.lines.table) == 0)
    descriptors, threads = count_descriptors(), threading.active_count()
    for number in range(50):
        leader.connect(f"c{number}").socket.close()
    until(lambda: len(leader.lines.table) == 0)
    # What earlier tests left to the garbage collector may be closed meanwhile.
    assert count_descriptors() <= descriptors
    assert threading.active_count() <= threads + 3, "there are four threads for proofs, of which one was there"
    assert leader.files.list("mailbox") == []


class FailingFiles(LocalFiles):
    """Files of which the first puts fail. Later ones wait until they may succeed."""

    def __init__(self, root: str, failures: int) -> None:
        super().__init__(root)
        self.failures = failures
        self.is_putting, self.may_put = threading.Event(), threading.Event()

    def put(self, name: str, body: bytes, *, durable: bool = True) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("503 Slow Down")
        self.is_putting.set()
        assert self.may_put.wait(PATIENCE_S)
        super().put(name, body, durable=durable)


def open_lines(files: LocalFiles) -> LineServer:
    clock = AheadClock()
    lines = line_opener.open_term_lines(files, "ns", 1, LEASE_MS, clock.steady_ms(), threading.Event(), clock)
    assert lines is not None
    return lines


def test_a_line_that_could_not_be_announced_is_announced_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed request at the take-over must not leave clients with the mailbox for the whole term."""
    monkeypatch.setattr(line_opener, "AGAIN_S", 0.01)
    files = FailingFiles(str(tmp_path), failures=3)
    files.may_put.set()
    lines = open_lines(files)
    until(lambda: line_name(1) in files.list("line"))
    lines.close()
    assert files.list("line") == []


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
    unix_sockets.connect(str(tmp_path / address.socket), 1).close()
    lines.close()
    assert list(obstacle.iterdir()) == []


def test_a_line_that_is_announced_while_its_term_ends_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_opener, "AGAIN_S", 0.01)
    files = FailingFiles(str(tmp_path), failures=1)
    lines = open_lines(files)
    assert files.is_putting.wait(PATIENCE_S)
    lines.close()
    files.may_put.set()
    until(lambda: not any(thread.name == "lakemq-line-opener" for thread in threading.enumerate()))
    assert files.list("line") == []
