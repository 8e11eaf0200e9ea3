"""Where the leader listens for lines, how a client proves that it may use one, and sockets over TCP and on a machine.

The leader writes its object, `line/<20 digits>`, after the step of its take-over has landed. The next leader removes
it, or the leader itself at its end. On a disk the folder also has the leader's Unix socket. Reading a namespace does
not allow publishing: a client of the socket needs permission to write to it, and a client of a TCP address puts a proof
(`put_proof`).
"""

import os
import queue
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ..object_stores.files import Files
from .mailbox import LETTERS, PROOF_NAME

LINES_FOLDER = "line"
_DIGITS = 20
_LINE = re.compile(rf"{LINES_FOLDER}/[0-9]{{{_DIGITS}}}")

MAX_LINE_BYTES = 64 << 10
"""A larger object is not a leader's. An address takes half a kilobyte."""


def line_name(epoch: int) -> str:
    """Return the name of the object of this epoch's leader."""
    return f"{LINES_FOLDER}/{epoch:0{_DIGITS}d}"


def list_lines(files: Files) -> list[str]:
    """Return the names of the leaders' objects, the newest leader first. Usually there is one, or none."""
    names = [name for name in files.list(LINES_FOLDER) if _LINE.fullmatch(name)]
    return names[::-1]


def remove_older_lines(files: Files, epoch: int) -> None:
    """Remove the objects and sockets of leaders before this epoch. Call it only when this epoch's take-over landed."""
    newest = line_name(epoch)
    files.delete(name for name in files.list(LINES_FOLDER) if name < newest)


# The objects `mailbox/proof-<random>`: a client shows with one that it may write to the namespace.
#
# Clients that may put a letter may put a proof, no others. A proof is the digest of a secret, so reading it does not
# help another client. The leader removes a proof that it has accepted, and proofs that their clients have left behind.


MAX_PROOF_BYTES = 64
ABANDONED_AFTER_MS = 600_000
"""Age at which a proof belongs to no greeting any more. A greeting takes seconds."""

_MOST_REMOVED = 1_000


def put_proof(files: Files, digest: bytes) -> str:
    """Put a proof, and return its name. Raises OSError."""
    name = f"{LETTERS}/proof-{secrets.token_hex(16)}"
    files.put(name, digest, durable=False)
    return name


def read_proof(files: Files, name: str) -> bytes | None:
    """Return the digest; None if there is no such proof.

    Raises ValueError if the name is not one of a proof: strangers send names.
    """
    _check_name(name)
    try:
        return files.get(name, MAX_PROOF_BYTES)
    except FileNotFoundError:
        return None


def remove_proof(files: Files, name: str) -> None:
    """Remove a proof. Raises OSError; ValueError if the name is not one of a proof."""
    _check_name(name)
    files.delete([name])


def remove_abandoned_proofs(files: Files) -> None:
    """Remove proofs of clients that ended in the middle of a greeting. Raises OSError."""
    proofs = [name for name in files.list(LETTERS) if PROOF_NAME.fullmatch(name.rpartition("/")[2])][:_MOST_REMOVED]
    if proofs:
        limit_ms = files.time_ms() - ABANDONED_AFTER_MS
        written_ms = {name: files.modified_ms(name) for name in proofs}
        files.delete(name for name, at_ms in written_ms.items() if at_ms is not None and at_ms < limit_ms)


def _check_name(name: str) -> None:
    folder, _, base_name = name.partition("/")
    if folder != LETTERS or not PROOF_NAME.fullmatch(base_name):
        raise ValueError(f"name of a proof: found {name!r}, expected {LETTERS}/{PROOF_NAME.pattern}")


# TCP sockets for lines: they send small frames at once, and end by themselves when the other machine is gone.


_BACKLOG = 1024
_RECEIVE_BUFFER_BYTES = 256 << 10
"""A fixed size, which the system doubles. Otherwise the buffer of a connection grows, up to several MB, and one read
would no longer take all that had arrived."""

_IDLE_S, _PROBE_S, _PROBES = 15, 5, 3
"""A machine that is gone is noticed after half a minute."""
_UNANSWERED_MS = 10_000
"""Time after which data that the other machine does not confirm ends the connection."""
_LEAST_S = 0.001
"""A timeout of 0 would mean not to wait at all."""


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address of the machine. Port 0: any free one. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # the term before may have had the same port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # connections inherit it; it must be set before they begin
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to this address. Raises OSError.

    timeout_s: for finding the address and connecting together. The socket's own timeout is the rest of it.
    """
    deadline_s = time.monotonic() + timeout_s
    failure: OSError = TimeoutError(f"no address of {host} was found in {timeout_s:.1f} s")
    for family, kind, protocol, _, address in _resolve(host, port, timeout_s):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
            connection.connect(address)
            configure(connection)
            connection.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
            return connection
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


def configure(connection: socket.socket) -> None:
    """Let a connection send small frames at once, and end when the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def _resolve(host: str, port: int, timeout_s: float) -> list[Any]:
    """Return the addresses of a host; none in time: an empty list.

    The system's resolver has no time limit of its own, so a thread asks it.
    """
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask_system() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:  # a label that is too long for a name of the network
            answers.put(OSError(f"{host!r} is no name of a host: {error}"))

    try:
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except OSError:
        threading.Thread(target=ask_system, name="lakemq-resolver", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        return []
    if isinstance(answer, OSError):
        raise answer
    return answer


# Unix sockets at paths of any length.
#
# A socket's address has room for 107 bytes. A longer path goes through the open folder: /proc/self/fd/<number>/<name>.


_MAX_PATH_BYTES = 107


def listen_unix(path: str) -> socket.socket:
    """Return a socket that listens at `path`. Raises OSError.

    Who may connect is decided as for a new file: by the umask, and by the folder's access list.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _at_short_path(path, listener.bind)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_unix(path: str, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to the one at `path`. Raises OSError.

    timeout_s: for this and for all later calls of the socket.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        _at_short_path(path, connection.connect)
    except BaseException:
        connection.close()
        raise
    return connection


def identify_folder(root: str) -> str:
    """Return what tells the folder of lines of this namespace from every other folder of the machine. Raises OSError.

    A copy by hard links has the same sockets in other folders, since a folder cannot be linked.
    """
    status = os.stat(os.path.join(root, LINES_FOLDER))
    return f"{status.st_dev}:{status.st_ino}"


def _at_short_path(path: str, call: Callable[[str], object]) -> None:
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        call(path)
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        call(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
