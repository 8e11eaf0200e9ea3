"""Unix sockets at paths of any length.

A socket's address has room for 107 bytes. A longer path goes through the open folder: /proc/self/fd/<number>/<name>.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

_MAX_PATH_BYTES = 107
_BACKLOG = 1024


def listen(path: str) -> socket.socket:
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


def connect(path: str, timeout_s: float) -> socket.socket:
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
