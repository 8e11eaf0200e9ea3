"""How commands and jobs end: their exit codes, the line that reports an error, and signals."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

from lakemq.jobs.jars import MissingJars, MissingJava
from lakemq.jobs.output import one_line
from lakemq.jobs.process.streams import TRACE_VARIABLE, StreamError
from lakemq.tables.storage.native_calls import NATIVE_CALLS


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    NOT_LEADER = 4
    DATA_REFUSED = 5
    REPAIRED = 6


MEANINGS = {
    Exit.OK: "success",
    Exit.FAILED: "refused or failed",
    Exit.USAGE: "wrong usage",
    Exit.CONFIGURATION: "bad configuration (a setting, a settings file, or a path that holds no usable namespace)",
    Exit.NOT_LEADER: "another sequencer leads",
    Exit.DATA_REFUSED: "data was refused (all of it, or rows, which `rejected_rows` lists)",
    Exit.REPAIRED: "damage was found and repaired (`lakemq fsck --repair`)",
}

_BY_NAME = {
    "INVALID_CONFIG": Exit.CONFIGURATION,
    "NOT_A_NAMESPACE": Exit.CONFIGURATION,
    "NEWER_FORMAT": Exit.CONFIGURATION,
    "MISSING_EXTRA": Exit.CONFIGURATION,
    "MISSING_JARS": Exit.CONFIGURATION,
    "MISSING_JAVA": Exit.CONFIGURATION,
    "NOT_LEADER": Exit.NOT_LEADER,
    "EXPECTATION_FAILED": Exit.DATA_REFUSED,
    "INVALID_RECORD": Exit.DATA_REFUSED,
    "INVALID_TIMESTAMP": Exit.DATA_REFUSED,
    "MESSAGE_TOO_LARGE": Exit.DATA_REFUSED,
    "SCHEMA_MISMATCH": Exit.DATA_REFUSED,
    "INCOMPATIBLE_SCHEMA": Exit.CONFIGURATION,
}


def all_codes() -> str:
    """Return all codes and their meanings in one sentence."""
    return "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items())


def describe_error(error: Exception) -> str:
    """Return an error as `NAME: message`."""
    # delta-rs quotes Rust's representation of an OS error
    return re.sub(r'Os \{ code: \d+, kind: \w+, message: "(.*?)" \}', r"\1", _describe_error(error))


def _describe_error(error: Exception) -> str:
    from lakemq.engine.namespace.store_errors import damaged_file_error
    from lakemq.errors import LakeMQError, NamespaceError, NewerFormat, StorageError
    from lakemq.tables.storage.delta.store import DamagedFile, NewerTable, NotATable

    if isinstance(error, LakeMQError):
        return str(error)
    if isinstance(error, StreamError):
        return str(error)
    if isinstance(error, MissingJars):
        return f"MISSING_JARS: {error}"
    if isinstance(error, MissingJava):
        return f"MISSING_JAVA: {error}"
    if isinstance(error, DamagedFile):
        return str(damaged_file_error(error))
    if isinstance(error, NotATable):
        return str(NamespaceError(str(error)))
    if isinstance(error, NewerTable):
        return str(NewerFormat(str(error)))
    origin = type(error).__module__.partition(".")[0]
    if origin in ("py4j", "pyspark"):
        return f"SPARK_ERROR: {_first_line_of_spark(error)}"
    text = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return f"{StorageError.name}: {error.strerror}" + (f": {error.filename}" if error.filename else "")
    if isinstance(error, OSError) or origin in ("deltalake", "_internal", "pyarrow"):
        return f"{StorageError.name}: {text}"
    if origin in ("duckdb", "_duckdb"):
        return f"SQL_ERROR: {text}"
    return f"INTERNAL_ERROR: {type(error).__name__}: {text} ({TRACE_VARIABLE}=1 shows the stack trace)"


def _first_line_of_spark(error: Exception) -> str:
    """Return the first line of Spark's message; the others are a plan, or a JVM's stack trace."""
    java = getattr(error, "java_exception", None)
    lines = str(error if java is None else java.getMessage()).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def describe_end(error: BaseException) -> tuple[str, int]:
    """Return the line and the exit code of a process that ends with an error, or by a signal. Raises what is neither.

    A library may turn a signal into an error of its own: that is still the end by the signal.
    """
    number = received_signal() or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
    if number is not None:
        return f"INTERRUPTED: by {signal.Signals(number).name}", 128 + number
    if not isinstance(error, Exception):
        raise error
    line = one_line(describe_error(error))
    return line, _BY_NAME.get(line.partition(":")[0], Exit.FAILED)


# SIGINT, SIGTERM and SIGHUP: a command that gets one ends in good order, or after a grace period at once.
#
# If there is time, it hands over its lease. Otherwise a standby takes over when the lease expires.


GRACE_S = 1.5
"""How long a command may take to end after a signal."""

_LOOK_S = 0.1

_received: list[int] = []


def list_stop_signals() -> list[signal.Signals]:
    """Return the signals that ask this process to end. SIGHUP says that its terminal is gone; `nohup` ignores it."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_ignored else [signal.SIGHUP])]


def install(handler: Callable[[int, FrameType | None], object] | None = None) -> None:
    """Let these signals end this process, or call the handler. Call it in the main thread."""
    for number in list_stop_signals():
        signal.signal(number, handler or on_signal)


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object] | None = None) -> Iterator[None]:
    """Let the signals of `install` end the work inside the block, or call the handler."""
    before = {number: signal.getsignal(number) for number in list_stop_signals()}
    install(handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def on_signal(number: int, _: FrameType | None) -> None:
    """Raise KeyboardInterrupt or SystemExit in the main thread, and end the process after a grace period."""
    _received.append(number)
    end = threading.Timer(GRACE_S, _give_up, [number])
    end.daemon = True
    end.start()
    NATIVE_CALLS.interrupt()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def end_with_jvm() -> None:
    """Send this process SIGTERM when the JVM of spark-submit, which started it, is gone."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        threading.Thread(target=_end_with, args=[os.getppid()], name="lakemq-jvm", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def received_signal() -> int | None:
    """Return the first signal that asked this process to end; None if there was none."""
    return _received[0] if _received else None


def _give_up(number: int) -> None:
    # not through sys.stderr: a hung thread may hold its lock
    text = f"{signal.Signals(number).name}: ended without waiting any longer\n"
    os.write(2, text.encode())
    os._exit(128 + number)
