"""Accept lines: as many as a process can have, few at a time from unknown clients, and over TCP only with a proof."""

import hmac
import logging
import resource
import selectors
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lakemq.tables.storage.coordination.sockets import read_proof, remove_abandoned_proofs, remove_proof
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.clock import Clock
from ...namespace.line_frames import BadFrame, Hello, compute_proof
from .line_table import Line, LineListener, LineTable

log = logging.getLogger("lakemq.serve")

MAX_STRANGERS, MAX_STRANGERS_OF_HOST = 256, 64
"""Connections over TCP, in total and from one host, whose clients have not been welcomed yet."""

_MAX_LINES = 4096
_PAUSE_MS = 1_000
"""Pause after a connection could not be accepted, such as for lack of descriptors."""


def max_lines() -> int:
    """Return how many lines a process may have. They take at most half of its descriptors: steps need some, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_LINES if soft == resource.RLIM_INFINITY else min(_MAX_LINES, soft // 2)


class LineAcceptor:
    """The listening sockets of one term. For the thread that reads lines."""

    def __init__(
        self, listeners: Sequence[LineListener], selector: selectors.BaseSelector, table: LineTable, clock: Clock
    ) -> None:
        self.listeners: list[LineListener] = []
        self._selector, self._table, self._clock = selector, table, clock
        self._max_lines, self._was_full = max_lines(), False
        self._paused: dict[LineListener, int] = {}
        """Until when each listener is left alone, by the steady clock."""
        for listener in listeners:
            self.add(listener)

    def add(self, listener: LineListener) -> None:
        """Accept lines on one more socket."""
        self.listeners.append(listener)
        listener.listening_socket.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def accept(self, listener: LineListener) -> Line | None:
        """Return a new line, which is in the table; None if there is none, or no room for it."""
        try:
            connection, host = listener.accept()
        except OSError as error:
            if isinstance(error, BlockingIOError | ConnectionError):
                return None
            log.warning("A direct connection could not be accepted: %s", error)
            self._selector.unregister(listener)
            self._paused[listener] = self._clock.steady_ms() + _PAUSE_MS
            return None
        if self._is_full() or (listener.is_tcp and self._has_too_many_strangers(host)):
            connection.close()
            return None
        line = Line(connection, self._clock.steady_ms(), host=host, is_tcp=listener.is_tcp)
        self._table.add(line)
        return line

    def _is_full(self) -> bool:
        """Return whether there is no room for one more line, and log when the room ends."""
        was_full, self._was_full = self._was_full, len(self._table) >= self._max_lines
        if self._was_full and not was_full:
            text = "All %d direct connections are in use. Further clients go on with the mailbox. See ulimit -n."
            log.warning(text, self._max_lines)
        return self._was_full

    def _has_too_many_strangers(self, host: str) -> bool:
        hosts = [line.host for line in self._table.lines() if line.is_tcp and not line.client_id]
        return len(hosts) >= MAX_STRANGERS or hosts.count(host) >= MAX_STRANGERS_OF_HOST

    def resume_if_due(self, now_ms: int) -> None:
        """Accept again on listeners whose pause is over."""
        for listener in [listener for listener, until_ms in self._paused.items() if now_ms >= until_ms]:
            del self._paused[listener]
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def close(self) -> None:
        """Accept nothing more."""
        for listener in self.listeners:
            with suppress(KeyError, ValueError):
                self._selector.unregister(listener)
            listener.listening_socket.close()


# Check that clients of a TCP line may write to the namespace.
#
# A client has put a proof into the mailbox: an object that it can put only with write permission. The store may take
# its time to return it, so threads of their own read it. The thread that reads lines takes the outcome when it is
# there.


MAX_WAITING = 64
"""Proofs that are being read or wait to be read. Each may cost the store a request."""
_THREADS = 4
_CLEANING_MS = 60_000


@dataclass(frozen=True)
class CheckedHello:
    """The outcome for one line. failure: why the client is not believed; empty: it may write to the namespace."""

    line: Line
    hello: Hello
    failure: str


class ProofChecker:
    """Checks the hellos of one term. `submit` and `take_checked` are for the thread that reads lines."""

    def __init__(self, files: Files, clock: Clock, wake_reader: Callable[[], None]) -> None:
        """wake_reader: called when a hello has been checked."""
        self._files, self._clock, self._wake_reader = files, clock, wake_reader
        self._workers = Workers(_THREADS, "lakemq-proofs")
        self._checked: deque[CheckedHello] = deque()
        self._waiting_count = 0
        self._lock = threading.Lock()
        self._checking_counts: Counter[str] = Counter()
        """Name of a proof -> how many threads check a hello that names it."""
        self._accepted_proofs: set[str] = set()
        """Names of proofs that were accepted, while a thread may still have read them before their removal."""
        self._clean_at_ms = clock.steady_ms()

    def submit(self, line: Line, hello: Hello) -> None:
        """Check a hello in another thread. Raises BadFrame if too many wait."""
        if self._waiting_count >= MAX_WAITING:
            raise BadFrame(f"{MAX_WAITING} clients wait already until the store gives their proofs")
        self._waiting_count += 1
        try:
            self._workers.submit(self._check, line, hello)
        except RuntimeError as error:  # the system gives no thread
            self._waiting_count -= 1
            raise BadFrame(f"the proof cannot be read: {error}") from error

    def take_checked(self) -> list[CheckedHello]:
        """Return the outcomes since the last call."""
        checked = []
        while self._checked:
            checked.append(self._checked.popleft())
        self._waiting_count -= len(checked)
        return checked

    def close(self) -> None:
        """Check nothing more. It does not wait for the store."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _check(self, line: Line, hello: Hello) -> None:
        failure = "the check has failed"
        try:
            failure = "the line is closed" if line.is_closed else self._find_failure(hello)
        except (OSError, ValueError) as error:
            failure = str(error)
        finally:
            self._checked.append(CheckedHello(line, hello, failure))
            self._wake_reader()
        self._clean_if_due()

    def _find_failure(self, hello: Hello) -> str:
        with self._hold_name(hello.proof):
            return self._accept_proof(hello)

    def _accept_proof(self, hello: Hello) -> str:
        proof = read_proof(self._files, hello.proof)
        if proof is None:
            return f"there is no proof {hello.proof}"
        # Only an accepted proof is removed. Others may belong to a client whose proof a stranger has named.
        if not hmac.compare_digest(proof, compute_proof(hello)):
            return f"the proof {hello.proof} does not fit"
        # Two threads may have read the proof before one of them removes it. It counts for the first one only.
        with self._lock:
            if hello.proof in self._accepted_proofs:
                return f"the proof {hello.proof} has counted already"
            self._accepted_proofs.add(hello.proof)
        remove_proof(self._files, hello.proof)
        return ""

    @contextmanager
    def _hold_name(self, proof_name: str) -> Iterator[None]:
        """Remember that this proof was accepted for as long as any thread may have read it before."""
        with self._lock:
            self._checking_counts[proof_name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._checking_counts[proof_name] -= 1
                if not self._checking_counts[proof_name]:
                    del self._checking_counts[proof_name]
                    self._accepted_proofs.discard(proof_name)

    def _clean_if_due(self) -> None:
        """Remove abandoned proofs from time to time. Two threads may do it at once, which does no harm."""
        now_ms = self._clock.steady_ms()
        if now_ms < self._clean_at_ms:
            return
        self._clean_at_ms = now_ms + _CLEANING_MS
        try:
            remove_abandoned_proofs(self._files)
        except OSError as error:
            log.debug("Abandoned proofs stay in the mailbox: %s", error)
