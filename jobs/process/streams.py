"""The standard streams of a command, also closed or full ones, and a reader of stdout that leaves; and its log."""

import errno
import io
import logging
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from lakemq.jobs.output import one_line, to_json


class StreamError(OSError):
    """A standard stream cannot be read or written. Its text is a line `NAME: message`."""


class _StandardStream(io.FileIO):
    """A standard stream, whose errors say so: without that they would be taken for errors of the store."""

    def readinto(self, buffer: Any) -> int | None:
        with _named_errors("INPUT_ERROR: Standard input", "read"):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with _named_errors("INPUT_ERROR: Standard input", "read"):
            return super().readall()

    def write(self, data: Any) -> int:
        with _named_errors("OUTPUT_ERROR: Standard output", "written"):
            return super().write(data)


@contextmanager
def _named_errors(stream: str, verb: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = "is closed." if error.errno == errno.EBADF else f"cannot be {verb}: {error.strerror}."
        raise StreamError(f"{stream} {reason}") from None


def open_standard_streams() -> None:
    """Let stdin and stdout raise StreamError, and write UTF-8 in every locale.

    Descriptors of streams that the parent process closed are taken. Otherwise the next file that is opened, perhaps a
    table's, would get what is printed. Reading a closed stdin or writing a closed stdout fails; what is written to a
    closed stderr is dropped.
    """
    source = _StandardStream(_find_descriptor(sys.stdin, os.O_WRONLY), closefd=False)
    sink = _StandardStream(_find_descriptor(sys.stdout, os.O_RDONLY), "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_find_descriptor(None, os.O_WRONLY), "w")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")
    is_unbuffered = bool(getattr(sys.stdout, "write_through", False))
    buffer: Any = sink if is_unbuffered else io.BufferedWriter(sink)
    options: dict[str, Any] = {"line_buffering": sink.isatty(), "write_through": is_unbuffered}
    sys.stdin = io.TextIOWrapper(io.BufferedReader(source), "utf-8")
    sys.stdout = io.TextIOWrapper(buffer, "utf-8", "backslashreplace", **options)


def _find_descriptor(stream: TextIO | None, flags: int) -> int:
    """Return the descriptor of a stream; of one that is closed, one that was opened to take its place."""
    return os.open(os.devnull, flags) if stream is None else stream.fileno()


@contextmanager
def end_with_reader() -> Iterator[None]:
    """Raise SystemExit in the block when the process that reads stdout has ended. Call it in the main thread.

    A command that waits for messages may write nothing for hours, and only a write would notice.
    """
    descriptor = _find_pipe()
    if descriptor is None:
        yield
        return
    ended, end = os.pipe()
    is_gone = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        # A line to a sequencer that has ended raises the signal, too. Its write gets the error.
        if is_gone.is_set():
            raise SystemExit(128 + number)

    def watch() -> None:
        if _waits_for_reader(descriptor, ended):
            is_gone.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)

    before = signal.signal(signal.SIGPIPE, on_signal)
    watcher = threading.Thread(target=watch, name="lakemq-reader", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        signal.signal(signal.SIGPIPE, before)
        os.close(ended)


def _find_pipe() -> int | None:
    """Return the descriptor of stdout if it is a pipe or a socket, whose reader may leave."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # it is not a file, as in a test
        return None
    mode = os.fstat(descriptor).st_mode
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def _waits_for_reader(descriptor: int, ended: int) -> bool:
    """Wait until the reader is gone, or the other end of `ended` is closed. Return whether the reader is gone."""
    poll = select.poll()
    poll.register(descriptor, 0)
    poll.register(ended, 0)
    return descriptor in {ready for ready, _ in poll.poll()}


# Log to stderr, one line per record with the time in UTC: text for the command, JSON for jobs.


TRACE_VARIABLE = "LAKEMQ_TRACE"
"""If it is set to anything, errors are reported with their stack trace."""

_ENGINE = "lakemq"


class _Lines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        if os.environ.get(TRACE_VARIABLE):
            return super().format(record)
        plain = logging.makeLogRecord({**vars(record), "exc_info": None, "exc_text": None, "stack_info": None})
        return one_line(super().format(plain))


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object. Values of `extra` named in `FIELDS` are fields of it."""

    FIELDS = ("step", "batch", "query", "requests", "letters", "records", "rejected")

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "job": self._job,
            "message": one_line(record.getMessage()),
        }
        line |= {name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)}
        if record.exc_info and os.environ.get(TRACE_VARIABLE):
            line["trace"] = self.formatException(record.exc_info)
        return to_json(line)


@contextmanager
def log_to_stderr(level: int = logging.WARNING, lines: logging.Formatter | None = None) -> Iterator[None]:
    """Log the engine's records at this level or above to stderr, and nowhere else, inside the block."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines or _Lines())
    logger = logging.getLogger(_ENGINE)
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
