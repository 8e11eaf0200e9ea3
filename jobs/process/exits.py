"""The exit codes of the command and of jobs, and the line that reports an error."""

from __future__ import annotations

import re
from enum import IntEnum

from lakemq.jobs.jars import MissingJars, MissingJava
from lakemq.jobs.process.logs import TRACE_VARIABLE
from lakemq.jobs.process.streams import StreamError


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    NOT_LEADER = 4
    DATA_REFUSED = 5


MEANINGS = {
    Exit.OK: "success",
    Exit.FAILED: "refused or failed",
    Exit.USAGE: "wrong usage",
    Exit.CONFIGURATION: "bad configuration (a setting, a settings file, or a path that holds no usable namespace)",
    Exit.NOT_LEADER: "another sequencer leads",
    Exit.DATA_REFUSED: "data was refused (all of it, or rows, which `rejected_rows` lists)",
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


def exit_code_of(line: str) -> Exit:
    """Return the exit code for an error line `NAME: message`."""
    return _BY_NAME.get(line.partition(":")[0], Exit.FAILED)


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
    from lakemq.tables.storage.delta.datasets import DamagedFile
    from lakemq.tables.storage.delta.store import NewerTable, NotATable

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
