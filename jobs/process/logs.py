"""Log to stderr, one line per record with the time in UTC: text for the command, JSON for jobs."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lakemq.jobs.output import one_line, to_json

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
