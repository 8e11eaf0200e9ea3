"""The client's end of a line: it hands letters to the leader without files in between.

A line only saves time. Whatever goes wrong, `exchange` returns None, and the client puts the same letter into the
mailbox, under the same number. The letter's number makes sure that it is decided once.
Rows of docs/architecture.md: publish 6."""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import os
import random
import secrets
import socket
import ssl
import weakref
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from lakemq.tables.storage.coordination import sockets
from lakemq.tables.storage.coordination.sockets import MAX_LINE_BYTES, list_lines, put_proof, remove_proof
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

from ...namespace.clock import Clock
from ...namespace.line_frames import (
    MAX_FRAME_BYTES,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    LineAddress,
    compute_proof,
    decode_address,
    encode_hello,
    encode_letter_frame,
    encode_number_frame,
)
from ...protocol.codec.letter import decode_answer
from ...protocol.values.clients import Answer

log = logging.getLogger(__name__)

# Connect to the leader at the address in its line object: over a Unix socket, or over TCP.
#
# Over TCP a client trusts the leader by the fingerprint of its certificate, before it sends anything, on its own
# machine too: when a leader has died, any user may listen on its port. The leader trusts the client because of a proof
# in the mailbox.


_SECRET_BYTES = 32


class WrongLeader(ValueError):
    """A process listens at the leader's address, and has not shown the leader's certificate."""


_open_lines: weakref.WeakSet[DirectLine | FollowLine] = weakref.WeakSet()
"""Each forked child closes its copy of these, which would else stay open for as long as the child lives."""


def _close_in_child() -> None:
    for line in list(_open_lines):
        with suppress(OSError):
            line.close()


os.register_at_fork(after_in_child=_close_in_child)


def connect_to_leader(
    files: Files, address: LineAddress, client_id: str, unix_timeout_s: float, tcp_timeout_s: float
) -> tuple[socket.socket, Hello] | None:
    """Return a connection and the hello to send; None if the leader cannot be reached from here.

    Args:
        unix_timeout_s, tcp_timeout_s: for connecting by each kind of socket, TLS included.

    Raises:
        OSError, ValueError: the leader does not answer.
        WrongLeader: another process answers. Nothing was sent to it.
    """
    hello = Hello(address.namespace_id, address.epoch, address.token, client_id)
    if address.socket and isinstance(files, LocalFiles):
        try:
            _check_folder(files.root, address)
            return sockets.connect_unix(os.path.join(files.root, address.socket), unix_timeout_s), hello
        except OSError:  # on a network disk the socket may be another machine's
            if not address.port:
                raise
    if not address.port:
        return None
    connection = _connect_by_tcp(address, tcp_timeout_s)
    try:
        hello = replace(hello, secret=secrets.token_bytes(_SECRET_BYTES))
        # the connection comes first: where there is none, no object is left behind
        proof = put_proof(files, compute_proof(hello))
    except BaseException:
        connection.close()
        raise
    return connection, replace(hello, proof=proof)


def _check_folder(root: str, address: LineAddress) -> None:
    """Raise OSError if the socket in this folder was made for another one, whose leader decides for that one only."""
    folder = sockets.identify_folder(root)
    if folder != address.folder:
        raise ConnectionRefusedError(
            f"{address.socket} belongs to a leader of another folder, of which this is a copy:"
            f" found {address.folder}, expected {folder}"
        )


def _connect_by_tcp(address: LineAddress, timeout_s: float) -> socket.socket:
    if not address.fingerprint:
        raise WrongLeader("the address has no fingerprint of a certificate, and nothing is sent without TLS")
    connection = sockets.connect_tcp(address.host, address.port, timeout_s)
    try:
        return _begin_tls(connection, address.fingerprint)
    except BaseException:
        connection.close()
        raise


def _begin_tls(connection: socket.socket, fingerprint: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # no authority knows the certificate, and its name says nothing: the fingerprint is compared instead
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        encrypted = context.wrap_socket(connection)
    except ssl.SSLEOFError:  # a leader that ends
        raise
    except ssl.SSLError as error:
        raise WrongLeader(f"no TLS is spoken there ({error})") from error
    certificate = encrypted.getpeercert(binary_form=True) or b""
    presented = hashlib.sha256(certificate).hexdigest()
    if not hmac.compare_digest(presented, fingerprint):
        encrypted.close()
        raise WrongLeader(f"found a certificate with fingerprint {presented}, expected {fingerprint}")
    return encrypted


PATIENCE_MS = 2_000
"""Time after which a letter without an answer also goes into the mailbox: the leader's process may be stopped."""
GREETING_MS = 1_000
FIND_LEADER_INTERVAL_MS = 200
"""Time between two searches for a leader that listens."""
BAD_LINE_MS = 2_000
"""Time until the next try after a line has failed. The leader may be gone, and the next one not there yet."""
LONGEST_PAUSE_MS = 60_000
"""Longest time until the next try where a try costs requests to a store. The time doubles with each failed try."""

_RECEIVED_BYTES = 64 << 10
_MOST_ADDRESSES = 3
"""Most objects that a client reads to find the leader's. Each costs a request, and there is usually one."""


class DirectLine:
    """A client's line to the leader, opened when it is needed. For one thread."""

    def __init__(self, files: Files, namespace_id: str, clock: Clock) -> None:
        self._files, self._namespace_id, self._clock = files, namespace_id, clock
        self._connection: socket.socket | None = None
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._client_id = ""
        self._next_try_ms: float = clock.steady_ms()
        self._failures = 0
        """Tries in a row without a line, where each costs requests to a store."""
        self._was_wrong = False
        """At the last try another process answered, which was logged."""
        _open_lines.add(self)

    def exchange(
        self, client_id: str, number: int, body: bytes, timeout_ms: float, sent: Callable[[], None] = lambda: None
    ) -> tuple[bool, Answer | None]:
        """Send a letter, and wait for its answer.

        Args:
            client_id, number, body: the letter.
            timeout_ms: for the whole request. The line gets at most half of it.
            sent: called when the letter is on its way.

        Returns:
            Whether anything may have been sent, and the answer. None: the letter must go through the mailbox.
        """
        # Half of the time is for the mailbox: another leader may answer there.
        deadline_ms = self._clock.steady_ms() + min(timeout_ms / 2, PATIENCE_MS)
        try:
            connection = self._open(client_id, deadline_ms)
        except (OSError, ValueError) as error:
            self._give_up_opening(error)
            return False, None
        if connection is None:
            return False, None
        try:
            connection.settimeout(self._seconds_until(deadline_ms))
            connection.sendall(encode_letter_frame(number, body))
            sent()
            answer = decode_answer(self._receive(FrameKind.ANSWER, deadline_ms).content)
            if (answer.client_id, answer.number) != (client_id, number):
                raise ValueError(f"the answer to {answer.client_id}/{answer.number}, expected {client_id}/{number}")
        except (OSError, ValueError) as error:
            log.debug("The direct connection to the sequencer has failed: %s", error)
            self._give_up()
            return True, None
        self._failures = 0
        return True, answer

    def dial(self, client_id: str, timeout_ms: float) -> tuple[socket.socket, FrameReader] | None:
        """Open a line and hand it over: its connection, and the reader of what has come on it already.

        None: no leader listens where this process can connect, or it does not answer in time.
        """
        try:
            connection = self._open(client_id, self._clock.steady_ms() + timeout_ms)
        except (OSError, ValueError) as error:
            self._give_up_opening(error)
            return None
        if connection is None:
            return None
        self._connection, self._failures = None, 0
        return connection, self._reader

    def close(self) -> None:
        """Close the line. The leader drops what it has not read yet."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _give_up_opening(self, error: Exception) -> None:
        is_wrong = isinstance(error, WrongLeader)
        level = logging.WARNING if is_wrong and not self._was_wrong else logging.DEBUG
        self._was_wrong = is_wrong
        log.log(level, "No direct connection to the sequencer; requests go through the mailbox: %s", error)
        self._give_up()

    def _give_up(self) -> None:
        self.close()
        self._next_try_ms = self._clock.steady_ms() + self._next_pause_ms(BAD_LINE_MS)

    def _next_pause_ms(self, on_disk_ms: int) -> float:
        """Count a failed try, and return the time until the next. on_disk_ms: where tries are free."""
        if isinstance(self._files, LocalFiles):
            return on_disk_ms
        pause_ms = min(LONGEST_PAUSE_MS, BAD_LINE_MS << min(self._failures, 16))
        self._failures += 1
        return pause_ms * random.uniform(0.75, 1)  # clients of a leader that has ended must not come all at once

    def _open(self, client_id: str, deadline_ms: float) -> socket.socket | None:
        """Return the open line of this client; None if no leader listens where this process can connect."""
        if self._connection is not None and self._client_id == client_id and not _has_ended(self._connection):
            return self._connection
        self.close()
        now_ms = self._clock.steady_ms()
        if now_ms < self._next_try_ms:
            return None
        address = self._find_leader()
        if address is None:
            self._next_try_ms = now_ms + self._next_pause_ms(FIND_LEADER_INTERVAL_MS)
            return None
        timeout_s = self._seconds_until(deadline_ms)
        unix_timeout_s = min(timeout_s, GREETING_MS / 1000)
        reached = connect_to_leader(self._files, address, client_id, unix_timeout_s, timeout_s)
        if reached is None:
            self._next_try_ms = now_ms + self._next_pause_ms(BAD_LINE_MS)
            return None
        self._connection, hello = reached
        self._client_id, self._reader = client_id, FrameReader(MAX_FRAME_BYTES)
        self._greet(self._connection, hello, deadline_ms if hello.proof else min(deadline_ms, now_ms + GREETING_MS))
        return self._connection

    def _find_leader(self) -> LineAddress | None:
        """Return the address of the newest leader; None if no leader listens.

        Objects of other namespaces are skipped. A namespace that was here before may have left one, with a higher epoch
        than the present leader has.

        Raises:
            OSError: the store failed, or the object is gone.
            ValueError: there are only objects of others.
        """
        failure: ValueError | None = None
        for name in list_lines(self._files)[:_MOST_ADDRESSES]:
            try:
                return self._read_address(name)
            except ValueError as error:
                failure = error
        if failure is not None:
            raise failure
        return None

    def _read_address(self, name: str) -> LineAddress:
        try:
            address = decode_address(self._files.get(name, MAX_LINE_BYTES))
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise ValueError(f"{name} is too large for an address") from error
        if address.namespace_id != self._namespace_id:
            raise ValueError(f"the leader of the namespace {address.namespace_id}, expected {self._namespace_id}")
        return address

    def _greet(self, connection: socket.socket, hello: Hello, deadline_ms: float) -> None:
        try:
            connection.settimeout(self._seconds_until(deadline_ms))
            connection.sendall(encode_hello(hello))
            self._receive(FrameKind.WELCOME, deadline_ms)
        except BaseException:
            if hello.proof:
                with suppress(OSError):
                    remove_proof(self._files, hello.proof)
            raise

    def _seconds_until(self, deadline_ms: float) -> float:
        """Return the time until the deadline, or the shortest timeout if it has passed."""
        return max(1, deadline_ms - self._clock.steady_ms()) / 1000

    def _receive(self, kind: FrameKind, deadline_ms: float) -> Frame:
        assert self._connection is not None
        return _receive_frame(self._connection, self._reader, kind, deadline_ms, self._clock)


def _receive_frame(
    connection: socket.socket, reader: FrameReader, kind: FrameKind, deadline_ms: float, clock: Clock
) -> Frame:
    """Return the next frame, which must be of this kind. Raises OSError, ValueError."""
    while True:
        for frame in reader.frames():
            if frame.kind != kind:
                raise ValueError(f"frame {frame.kind}, expected {kind}")
            return frame
        # This process may have been stopped since the last look. So take what has arrived, also after the deadline.
        connection.settimeout(max(0.0, deadline_ms - clock.steady_ms()) / 1000)
        data = connection.recv(_RECEIVED_BYTES)
        if not data:
            raise ConnectionError("the sequencer has closed the line")
        reader.add(data)


def _has_ended(connection: socket.socket) -> bool:
    """Return whether the other end has closed. A letter sent now would have to go through the mailbox as well."""
    connection.settimeout(0)
    try:
        # below TLS, which cannot look without taking
        return not socket.socket.recv(connection, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


# A client's end of a line that carries no letters: it waits for new steps.
#
# Such a line only saves time and requests. Without one, a waiting consumer polls the store.


REDIAL_MS = 1_000
"""Time between two tries to reach a leader."""
SHORTEST_DIAL_MS = 500
"""Least time for a leader to answer, also if a wait is shorter. Over TCP, a line takes five requests to a store."""

_SEND_S = 1.0


class FollowLine:
    """A line to the leader, opened when it is needed. For one thread."""

    def __init__(self, dialer: DirectLine, new_id: Callable[[], str], clock: Clock) -> None:
        """dialer: opens connections, and is used for nothing else."""
        self._dialer, self._new_id, self._clock = dialer, new_id, clock
        self._connection: socket.socket | None = None
        self._reader = FrameReader(0)
        self._dial_at_ms = clock.steady_ms()
        self._awaited_step: int | None = None
        """The leader was asked to tell of a step after this one, and has not done so."""
        _open_lines.add(self)

    def open(self, timeout_ms: float = PATIENCE_MS) -> bool:
        """Open the line if it is not open. Return whether it is. timeout_ms: for the leader to answer."""
        if self._connection is not None:
            return True
        now_ms = self._clock.steady_ms()
        if now_ms < self._dial_at_ms:
            return False
        self._dial_at_ms = now_ms + REDIAL_MS
        dialled = self._dialer.dial(self._new_id(), timeout_ms)
        if dialled is None:
            return False
        self._connection, self._reader = dialled
        return True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._awaited_step = None
        if connection is not None:
            connection.close()

    def await_step(self, step: int, most_ms: float | None = None) -> bool:
        """Ask the leader for a hint when there is a step after this one. Return False if there is no line.

        most_ms: how long the caller waits at most. Opening the line takes no longer, except for SHORTEST_DIAL_MS.
        """
        if not self.open(PATIENCE_MS if most_ms is None else min(PATIENCE_MS, max(most_ms, SHORTEST_DIAL_MS))):
            return False
        if self._awaited_step != step:
            self._awaited_step = step
            return self._send(encode_number_frame(FrameKind.AWAIT_STEP, step))
        return True

    def wait_for_hint(self, timeout_ms: float) -> bool:
        """Wait for the leader's hint. Return True if it has come or the line is lost, False if the time is over."""
        has_come = self._receive(timeout_ms)
        if has_come:
            self._awaited_step = None
        return has_come or self._connection is None

    def owes_hint(self) -> bool:
        """Return whether the leader was asked for a hint that has not come. This neither waits nor opens the line."""
        return self._awaited_step is not None and not self.wait_for_hint(0)

    def _send(self, frame: bytes) -> bool:
        assert self._connection is not None
        try:
            self._connection.settimeout(_SEND_S)
            self._connection.sendall(frame)
        except OSError as error:
            self._lose(error)
            return False
        return True

    def _receive(self, timeout_ms: float) -> bool:
        """Return whether a hint has come. False: none came, or the line is lost."""
        if self._connection is None:
            return False
        deadline_ms = self._clock.steady_ms() + timeout_ms
        try:
            _receive_frame(self._connection, self._reader, FrameKind.STEP, deadline_ms, self._clock)
            return True
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            pass
        except (OSError, ValueError) as error:
            self._lose(error)
        return False

    def _lose(self, error: Exception) -> None:
        log.debug("A line for steps has ended: %s", error)
        self.close()
