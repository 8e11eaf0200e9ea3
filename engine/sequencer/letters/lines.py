"""Serve the lines of one term: direct connections on which clients send letters and get answers.

Clients also wait on lines for new steps (`Followers`).

One thread accepts connections (`line_acceptor`) and reads. What it shares with the sequencer's thread is in
`line_table`. A client that comes over TCP is welcomed when other threads have read its proof.

A line is a convenience, so anything unusual closes it: the client then uses the mailbox. All lines close when no step
has landed for a whole lease, even if the sequencer's thread hangs: another sequencer may lead by then.
Rows of docs/architecture.md: publish 7.
"""

import hmac
import logging
import os
import selectors
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from lakemq.tables.storage.coordination.mailbox import LetterName
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.clock import Clock
from ...namespace.line_frames import (
    BadFrame,
    Frame,
    FrameKind,
    Hello,
    LineAddress,
    decode_hello,
    decode_letter_frame,
    decode_number,
)
from .answers import Followers
from .line_acceptor import CheckedHello, LineAcceptor, ProofChecker
from .line_table import Line, LineLetter, LineListener, LineTable

log = logging.getLogger("lakemq.serve")

# The reading thread, which serves the lines.


HELLO_MS = 5_000
"""Time until a new connection must have said hello, TLS included, and for reading the proof of a hello."""
TRANSFER_MS = 10_000
"""Time for the rest of a letter that has begun, and for a client to take an answer."""
MAX_BUFFERED_BYTES = 256 << 20
"""Bytes of all letters that are being received or wait. A line whose letter would exceed this is closed."""

_TURN_MS = 250
_RECEIVED_BYTES = 1 << 20
"""More than a socket's buffer has room for, so one read takes all that had arrived."""
_CLOSE_S = 10


class LineServer:
    """The lines of one term. The sequencer's thread calls the methods; a thread of its own reads.

    Attributes:
        table: the lines and the letters that have come on them.
        followers: the lines whose clients wait for a step.
    """

    def __init__(
        self,
        listeners: Sequence[LineListener],
        files: Files,
        address: LineAddress,
        lease_ms: int,
        step_began_ms: int,
        news: threading.Event,
        clock: Clock,
        withdraw: Callable[[], None] = lambda: None,
    ) -> None:
        """Start to accept connections.

        Args:
            listeners: listening sockets, which belong to this object from now on.
            files: of the namespace, where clients put their proofs.
            address: what a hello must repeat.
            step_began_ms: when the last step began that has landed, by the steady clock.
            news: is set when a letter has come, or a drain has ended.
            withdraw: called at the end, to remove what leads clients here.
        """
        self._withdraw = withdraw
        self._address, self._lease_ms = address, lease_ms
        self._news, self._clock = news, clock
        self.table = LineTable(clock, self._wake)
        self._proofs = ProofChecker(files, clock, self._wake)
        self.followers = Followers(self.table.send, self._wake)
        self._step_began_ms, self._looked_at_ms = step_began_ms, clock.steady_ms()
        self._is_drain_requested = self._is_closing = self._is_over = False
        self._drained_at_ms: int | None = None
        self._new_listeners: deque[LineListener] = deque()
        """Sockets that the reading thread shall accept on, too."""
        self._waker, self._wake_end = socket.socketpair()
        for end in (self._waker, self._wake_end):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._acceptor = LineAcceptor(listeners, self._selector, self.table, clock)
        self._selector.register(self._wake_end, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="lakemq-lines", daemon=True)
        self._thread.start()
        _open_lines.add(self)

    # -- the sequencer's thread -------------------------------------------------------------------------

    def note_step(self, began_ms: int) -> None:
        """Note that a step has landed, which began at this time of the steady clock."""
        self._step_began_ms = began_ms

    def request_drain(self) -> None:
        """Have everything read that has arrived. `news` is set when it is done; then `take_drain` returns its time."""
        self._is_drain_requested = True
        self._wake()

    def take_drain(self) -> int | None:
        """Return the time of the drain that has ended since the last call, by the steady clock; None if none has.

        All letters that had arrived before that time can be taken now.
        """
        if self._is_over:  # no letter can come any more
            return self._clock.steady_ms()
        drained_at_ms = self._drained_at_ms
        if drained_at_ms is not None:  # a drain that ends while this reads None must stay for the next call
            self._drained_at_ms = None
        return drained_at_ms

    def close(self) -> None:
        """Close all lines. When this returns, no letter comes any more."""
        self._is_closing = True
        self._wake()
        self._thread.join(_CLOSE_S)
        self.table.drop_all()
        self._withdraw()

    def add_listener(self, listener: LineListener) -> None:
        """Accept on one more socket, which belongs to this object from now on. Any thread may call this."""
        self._new_listeners.append(listener)
        self._wake()
        if self._is_over:
            self._drop_new_listeners()

    def _drop_new_listeners(self) -> None:
        with suppress(IndexError):
            while True:
                self._new_listeners.popleft().listening_socket.close()

    # -- the reading thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._serve_events()
                self._close_overdue()
        except Exception as error:
            log.error("Lines to clients have ended; letters come through the mailbox: %s", error, exc_info=error)
        finally:
            self._end()

    def _serve_events(self) -> None:
        is_drain = self._is_drain_requested
        if is_drain:  # a request that comes between these two lines is served, too: everything is read after them
            self._is_drain_requested = False
        begun_ms = self._clock.steady_ms()
        for key, mask in self._selector.select(0 if is_drain else _TURN_MS / 1000):
            if isinstance(key.data, Line):
                self._serve_line(key.data, mask)
            elif isinstance(key.data, LineListener):
                self._accept(key.data)
            else:
                self._take_wake_ups()
        if is_drain:
            self._drained_at_ms = begun_ms
            self._news.set()

    def _take_wake_ups(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_end.recv(4096):
                pass
        while self._new_listeners:
            self._acceptor.add(self._new_listeners.popleft())
        for checked in self._proofs.take_checked():
            self._welcome_if_proven(checked)
        self.followers.send_hints()
        for line in self.table.lines():
            if line.output and not line.is_closed:
                self._watch(line, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _watch(self, line: Line, events: int) -> None:
        """Wait for these events on the line from now on. It closes if the system refuses that."""
        try:
            if line.is_watched:
                self._selector.modify(line.connection, events, line)
            else:
                self._selector.register(line.connection, events, line)
                line.is_watched = True
        except OSError as error:
            log.warning("A direct connection is closed, because the system cannot watch it: %s", error)
            self._remove(line)

    def _accept(self, listener: LineListener) -> None:
        line = self._acceptor.accept(listener)
        if line is not None:
            self._watch(line, selectors.EVENT_READ)

    def _serve_line(self, line: Line, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE and self.table.send_output(line):
                self._watch(line, selectors.EVENT_READ)
            if mask & selectors.EVENT_READ:
                self._receive(line)
        except BadFrame as error:
            level = logging.WARNING if line.client_id else logging.DEBUG  # anybody may connect and say nonsense
            log.log(level, "A direct connection of %s is closed: %s", line.client_id or "an unknown client", error)
            self._remove(line)
        except Exception as error:  # one client must not end the lines of the others
            log.debug("A direct connection of %s has ended: %s", line.client_id or "an unknown client", error)
            self._remove(line)

    def _receive(self, line: Line) -> None:
        try:
            data = line.connection.recv(_RECEIVED_BYTES)
        except BlockingIOError:
            return
        if not data or line.is_closed:
            self._remove(line)
            return
        # before the welcome, the time limit counts from the beginning of the connection
        if line.client_id and not line.reader.size_bytes:
            line.transfer_began_ms = self._clock.steady_ms()
        line.reader.add(data)
        for frame in line.reader.frames():
            self._take_frame(line, frame)
        if self.table.update_buffered_bytes(line) > MAX_BUFFERED_BYTES:
            raise BadFrame(f"all letters that are arriving or wait have more than {MAX_BUFFERED_BYTES} bytes")

    def _take_frame(self, line: Line, frame: Frame) -> None:
        if line.is_checked and not line.client_id:
            raise BadFrame("a frame before the welcome")
        elif not line.client_id:
            self._greet(line, frame)
        elif frame.kind == FrameKind.AWAIT_STEP:
            if line.output:
                raise BadFrame("a follower that has not taken the frame before")
            self.followers.add(line, decode_number(frame.content))
        elif frame.kind != FrameKind.LETTER or line.is_busy:
            raise BadFrame(f"frame {frame.kind} where a letter was expected, or a second letter at once")
        else:
            number, body = decode_letter_frame(frame.content)
            self.table.add_letter(LineLetter(_check_name(line.client_id, number, self._clock.now_ms()), body, line))
            self._news.set()

    def _greet(self, line: Line, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise BadFrame(f"frame {frame.kind} where a hello was expected")
        hello, address = decode_hello(frame.content), self._address
        expected = address.namespace_id, address.epoch
        if (hello.namespace_id, hello.epoch) != expected or not _is_same_token(hello.token, address.token):
            raise BadFrame("a hello for another leader")
        _check_name(hello.client_id, 1)
        if line.is_tcp:
            line.is_checked, line.transfer_began_ms = True, self._clock.steady_ms()
            self._proofs.submit(line, hello)
        else:
            self._welcome(line, hello)

    def _welcome_if_proven(self, checked: CheckedHello) -> None:
        if checked.line.is_closed:
            return
        try:
            if checked.failure:
                raise BadFrame(checked.failure)
            self._welcome(checked.line, checked.hello)
        except BadFrame as error:
            log.debug("A client at %s is refused: %s", checked.line.host, error)
            self._remove(checked.line)

    def _welcome(self, line: Line, hello: Hello) -> None:
        if self._is_silent():
            raise BadFrame("no step lands at present")
        self.table.welcome(line, hello.client_id)

    def _is_silent(self) -> bool:
        return self._clock.steady_ms() - self._step_began_ms >= self._lease_ms

    def _close_overdue(self) -> None:
        now_ms = self._clock.steady_ms()
        if now_ms - self._looked_at_ms < _TURN_MS:
            return
        self._looked_at_ms = now_ms
        self._acceptor.resume_if_due(now_ms)
        is_silent = self._is_silent()
        for line in self.table.lines():
            limit_ms = TRANSFER_MS if line.client_id else HELLO_MS
            is_late = bool(line.output or line.reader.size_bytes or not line.client_id)
            if line.is_closed or is_silent or (is_late and now_ms - line.transfer_began_ms > limit_ms):
                self._remove(line)

    def _remove(self, line: Line) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(line.connection)
        self.followers.forget(line)
        self.table.remove(line)

    def _end(self) -> None:
        for line in self.table.lines():
            self._remove(line)
        self._proofs.close()
        self._acceptor.close()
        self._selector.close()
        for end in (self._waker, self._wake_end):
            end.close()
        self._is_over = True
        self._drop_new_listeners()
        self._news.set()
        _open_lines.discard(self)

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b".")

    def close_descriptors(self) -> None:
        """Close the descriptors in a forked child, where no thread uses them. The parent's lines stay as they are."""
        listening = [listener.listening_socket for listener in (*self._acceptor.listeners, *self._new_listeners)]
        connections = [line.connection for line in self.table.lines_unlocked()]
        for end in (*listening, self._waker, self._wake_end, *connections):
            with suppress(OSError):
                os.close(end.detach())
        self._selector.close()


def _is_same_token(token: str, expected: str) -> bool:
    return hmac.compare_digest(token.encode(), expected.encode())


def _check_name(client_id: str, number: int, now_ms: int = 0) -> LetterName:
    try:
        return LetterName.of(client_id, number, now_ms)
    except ValueError as error:
        raise BadFrame(str(error)) from error


_open_lines: weakref.WeakSet[LineServer] = weakref.WeakSet()


def _close_in_child() -> None:
    for lines in list(_open_lines):
        lines.close_descriptors()
    _open_lines.clear()


os.register_at_fork(after_in_child=_close_in_child)
