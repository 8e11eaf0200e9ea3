"""The frame of every job: common options, the log, the exit code and the last line.

The log goes to stderr, one JSON object per line: time, level, logger, message, job and, where known, step, batch and
requests. It never holds a key or a value of a message. The last line on stdout is JSON, too: the job, its exit code,
and its counts or its error. (spark-submit sends both streams of a job to its own stdout.)
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lakemq.jobs.output import to_json
from lakemq.jobs.process import exits
from lakemq.jobs.process.exits import Exit, all_codes, describe_end
from lakemq.jobs.process.streams import TRACE_VARIABLE, JsonLines, log_to_stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakemq.engine.client.connection import Connection

log = logging.getLogger("lakemq.job")

Counts = Mapping[str, Any]

PATH_VARIABLE = "LAKEMQ_PATH"


def make_job_parser(name: str, does: str, examples: str, needs_spark: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the options that all jobs share. examples: arguments, one line per example."""
    command = "spark-submit ..." if needs_spark else "python"
    indented = "\n".join(f"  {command} jobs/{name}.py {line}" for line in examples.strip().splitlines())
    parser = argparse.ArgumentParser(
        prog=name,
        description=does,
        epilog=f"examples:\n{indented}\n\nexit codes: {all_codes()}; 128 + n if ended by signal n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--path", default=os.environ.get(PATH_VARIABLE), help=f"the namespace (default: ${PATH_VARIABLE})"
    )
    parser.add_argument("--conf", metavar="FILE", help="a settings file (default: $LAKEMQ_CONF)")
    parser.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="option for the object store; KEY alone takes the environment's value, for secrets: arguments can be seen",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def whole_number(text: str) -> int:
    """Parse a whole number, for `type=`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number, 0 or more")
    return int(text)


def parse_arguments(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments. Exits with a usage message if they name no namespace."""
    options = parser.parse_args(arguments)
    if not options.path:
        parser.error(f"give --path, or set {PATH_VARIABLE}")
    return options


def connect_namespace(
    options: argparse.Namespace, spark: SparkSession | None = None, create: bool = False
) -> Connection:
    """Connect to the namespace that the arguments name."""
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.namespace.config import load_config
    from lakemq.engine.namespace.namespace import open_namespace

    # not lakemq.connect: registering tables and views takes longer than a micro-batch, and jobs need no SQL
    storage = storage_options(options.storage_option)
    return Connection(open_namespace(options.path, load_config(options.conf), storage, create=create), spark)


def storage_options(pairs: list[str]) -> dict[str, str]:
    """Parse KEY=VALUE pairs. A KEY alone takes its value from the environment, because all users see arguments.

    Values may be secrets, so no error shows them. Raises InvalidConfig.
    """
    from lakemq.errors import InvalidConfig  # imported late, because `lakemq --help` must stay fast

    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            value = os.environ.get(key, "")
            if not value:
                raise InvalidConfig(
                    "A storage option is written KEY=VALUE, or KEY alone if the environment has a variable KEY."
                )
        if key in options:
            raise InvalidConfig("A storage option occurs twice.", found=key)
        options[key] = value
    return options


def run(name: str, options: argparse.Namespace, work: Callable[[], Counts]) -> int:
    """Do the work and return the exit code. An error is logged as one line and reported in the last line.

    The first SIGTERM or SIGINT raises in the work, or the work handles it and ends. The same happens when the JVM that
    started this process is gone, since nothing would stop the process any more.
    """
    level, begun_s = logging.getLevelName(options.log_level.upper()), time.monotonic()
    end: dict[str, Any] = {"job": name}
    with exits.handle_signals(), log_to_stderr(level, JsonLines(name)):
        exits.end_with_jvm()
        try:
            code, more = Exit.OK.value, work()
        except BaseException as error:
            code, more = _ended_by(error)
    end |= {"exit_code": code, "took_ms": round(1000 * (time.monotonic() - begun_s)), **more}
    print(to_json(end), flush=True)
    return code


def _ended_by(error: BaseException) -> tuple[int, Counts]:
    line, code = describe_end(error)
    log.error(line, exc_info=error if os.environ.get(TRACE_VARIABLE) else None)
    refusal, _, message = line.partition(": ")
    return int(code), {"error": refusal, "message": message}


def run_as_script(job: Callable[[list[str]], int]) -> None:
    """Run a job with the process's arguments and exit with its code."""
    sys.exit(job(sys.argv[1:]))
