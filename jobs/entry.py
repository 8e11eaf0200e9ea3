"""How every job of spark-submit begins and ends: options that all have, its log, its exit code, its last line.

What is logged is JSON, a line each, on stderr: time, level, logger, message, job, and where there is one the step, the
batch, the requests; never a key or a value of a message. The last line on stdout is JSON, too: the job, its exit code,
the counts or the error. (spark-submit itself sends both streams of a job to its own stdout.)
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lakemq.jobs import interrupts
from lakemq.jobs.exits import Exit, all_codes, exit_of, told
from lakemq.jobs.logs import TRACE_VARIABLE, JsonLines, told_on_stderr
from lakemq.jobs.output import one_line, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakemq.engine.client.connection import Connection

Counts = Mapping[str, Any]

PATH_VARIABLE = "LAKEMQ_PATH"

log = logging.getLogger("lakemq.job")


def arguments_of(name: str, does: str, examples: str) -> argparse.ArgumentParser:
    """A parser with what every job takes. examples: arguments, a line for each."""
    indented = "\n".join(f"  spark-submit ... jobs/{name}.py {line}" for line in examples.strip().splitlines())
    parser = argparse.ArgumentParser(
        prog=name,
        description=does,
        epilog=f"examples:\n{indented}\n\nexit codes: {all_codes()}; 128 + n ended by signal n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--path", default=os.environ.get(PATH_VARIABLE), help=f"the namespace (else ${PATH_VARIABLE})")
    parser.add_argument("--conf", metavar="FILE", help="a settings file (else $LAKEMQ_CONF)")
    parser.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="passed to the object store; secrets belong in the environment, as everybody sees arguments",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def whole(text: str) -> int:
    """A number of milliseconds or of things, for `type=`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number, 0 or more, is expected, found {text!r}")
    return int(text)


def parsed(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """The arguments; ends with a usage message where there is no namespace among them."""
    given = parser.parse_args(arguments)
    if not given.path:
        parser.error(f"give --path, or set {PATH_VARIABLE}")
    return given


def connected(given: argparse.Namespace, spark: SparkSession | None = None, create: bool = False) -> Connection:
    """The namespace that the arguments name."""
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.namespace.config import load_config
    from lakemq.engine.namespace.namespace import open_namespace

    # not lakemq.connect: registering tables and views takes longer than many a micro-batch, and nobody asks here
    options = storage_options(given.storage_option)
    return Connection(open_namespace(given.path, load_config(given.conf), options, create=create), spark)


def storage_options(pairs: list[str]) -> dict[str, str]:
    """Their values may be secrets, so that none is ever shown. Raises InvalidConfig."""
    from lakemq.errors import InvalidConfig  # the command's help does without what that loads

    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidConfig("A storage option is written KEY=VALUE.")
        if key in options:
            raise InvalidConfig("A storage option stands twice.", found=key)
        options[key] = value
    return options


def run(name: str, given: argparse.Namespace, work: Callable[[], Counts]) -> int:
    """Do the work; returns the exit code. What goes wrong is told in one line, and in the last one.

    The work ends by itself when the first SIGTERM or SIGINT comes, or raises; so it does when the JVM is gone that
    started this process, as nobody would stop it any more.
    """
    level, begun_s = logging.getLevelName(given.log_level.upper()), time.monotonic()
    end: dict[str, Any] = {"job": name}
    with interrupts.installed(), told_on_stderr(level, JsonLines(name)):
        interrupts.follow_jvm()
        try:
            code, more = Exit.OK.value, work()
        except BaseException as error:
            code, more = _ended_by(error)
    end |= {"exit_code": code, "took_ms": round(1000 * (time.monotonic() - begun_s)), **more}
    print(to_json(end), flush=True)
    return code


def _ended_by(error: BaseException) -> tuple[int, Counts]:
    # whatever a library made of a signal, it is one
    number = interrupts.received() or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
    if number is not None:
        line, code = f"INTERRUPTED: by {signal.Signals(number).name}", 128 + number
    elif isinstance(error, Exception):
        line = one_line(told(error))
        code = exit_of(line).value
    else:
        raise error
    log.error(line, exc_info=error if os.environ.get(TRACE_VARIABLE) else None)
    refusal, _, message = line.partition(": ")
    return code, {"error": refusal, "message": message}


def started(job: Callable[[list[str]], int]) -> None:
    """The end of a job's file."""
    sys.exit(job(sys.argv[1:]))
