"""Name a process so that another process of the same machine can tell whether it still runs.

A process id is not enough: ids are reused after a while, exist once per container, and start again after a reboot. So
the identity also has what changes in these cases:

- the boot id, which is random per boot, so that no other machine and no earlier boot has it;
- the pid namespace and time namespace, because ids and start times only compare within these;
- the start time of the process, because a reused id has another one.

A process is gone for certain only if all of these match and the system has no such process, or one with another start
time, or a zombie. In every other case, callers go by time alone. Only Linux gives these facts; elsewhere the identity
is empty.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import uuid
from contextlib import suppress

_STATE, _THREADS, _STARTED = 0, 17, 19
"""Places of these fields in `/proc/<pid>/stat`, after the command, which is in brackets and may contain spaces."""

_NO_NAME = re.compile(r"[^A-Za-z0-9.]+")
_MAX_NAME = 40
"""Characters of a user's or host's name in the id of a client, which is part of file names."""


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex


def new_client_id() -> str:
    """Return an id of a client that names its user, host and process, and is random after that.

    The journal keeps it with each decision, so it says who asked.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = f"uid{os.getuid()}"
    names = [_NO_NAME.sub("_", name).strip("_.")[:_MAX_NAME] for name in (user, socket.gethostname())]
    return "-".join([*filter(None, names), str(os.getpid()), new_id()[:16]])


def read_own_identity() -> str:
    """Return `boot/pid namespace/time namespace/pid/start time` of this process, or "" where that is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        pid_namespace = _read_namespace("pid")
        with open("/proc/self/stat", "rb") as file:
            pid = int(file.read().split(b" ", 1)[0])
        stat = _read_stat(pid)
    except (OSError, ValueError):
        return ""
    # /proc may be mounted for another pid namespace than this process's own
    if not boot or not pid_namespace or stat is None or pid != os.getpid():
        return ""
    with suppress(OSError):
        return f"{boot}/{pid_namespace}/{_read_namespace('time')}/{pid}/{stat[_STARTED]}"
    return f"{boot}/{pid_namespace}//{pid}/{stat[_STARTED]}"


def is_process_gone(identity: str, own: str) -> bool:
    """Return whether the process with this identity has certainly ended. False where that cannot be known.

    own: the identity of the calling process.
    """
    machine, pid, started = _parse_identity(identity)
    if not machine or machine != _parse_identity(own)[0]:
        return False
    try:
        # /proc may be mounted so that it hides other users' processes; this call finds them
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's process: it exists
        pass
    try:
        stat = _read_stat(pid)
    except (OSError, ValueError):
        return False
    if stat is None:
        return False
    # a killed process is a zombie until its parent has waited for it
    is_zombie = stat[_STATE] in ("Z", "X") and int(stat[_THREADS]) <= 1
    return is_zombie or stat[_STARTED] != started


def _parse_identity(identity: str) -> tuple[str, int, str]:
    """Return (machine with its namespaces, pid, start time), or ("", 0, "") for an invalid identity."""
    parts = identity.split("/")
    if len(parts) != 5 or not parts[3].isdecimal() or not 0 < int(parts[3]) < 2**31:
        return "", 0, ""
    return "/".join(parts[:3]), int(parts[3]), parts[4]


def _read_namespace(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{kind}")


def _read_stat(pid: int) -> list[str] | None:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].decode("ascii").split()
    return fields if len(fields) > _STARTED else None
