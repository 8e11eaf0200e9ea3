"""A standalone cluster on this machine: a master and two workers with one core and 1 GiB each, on different hosts."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

CHECKOUT = Path(__file__).parents[1]
HOME = Path(pyspark.__file__).parent
MASTER_HOST = "127.0.0.1"
# A speculative attempt runs on another host than the first: the loopback network has many.
WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")
PATIENCE_S = 90


@dataclass(frozen=True)
class Cluster:
    """A running cluster. url: the value for `--master`."""

    url: str
    workers: list[subprocess.Popen[bytes]]
    archive: Path
    jobs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The file with all that the jobs wrote to stderr."""
        return self.archive.with_name("jobs.log")

    def submit(
        self, job: Path, *arguments: str, environment: Mapping[str, str] | None = None, **settings: str
    ) -> subprocess.Popen[str]:
        """Start spark-submit for a job, with the shipped defaults and the zip of this checkout, from another folder.

        environment: variables of the driver, which the workers do not have.
        """
        all_settings = {
            "spark.driver.host": MASTER_HOST,
            "spark.executor.memory": "512m",
            "spark.driver.memory": "1g",
        } | {key.replace("_", "."): value for key, value in settings.items()}
        command = [str(HOME / "bin" / "spark-submit"), "--master", self.url]
        command += ["--properties-file", str(CHECKOUT / "conf" / "spark-defaults.conf")]
        command += ["--py-files", str(self.archive)]
        for key, value in all_settings.items():
            command += ["--conf", f"{key}={value}"]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, str(job), *arguments],
                cwd=self.archive.parent,
                env=_environment() | dict(environment or {}),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.jobs.append(process)
        return process

    def end_jobs(self) -> None:
        """End the jobs, whether their test has passed or failed."""
        for job in self.jobs:
            _end(job)
        self.jobs.clear()


@contextmanager
def standalone_cluster(folder: Path, archive: Path) -> Iterator[Cluster]:
    """Run a cluster on free ports until the block ends."""
    with ExitStack() as stack:
        log_path = folder / "master.log"
        stack.enter_context(_daemon("master.Master", log_path, "--host", MASTER_HOST))
        url = _wait_for_log(log_path, r"Starting Spark master at (spark://\S+)")
        workers = []
        for number, host in enumerate(WORKER_HOSTS):
            log_path, work = folder / f"worker{number}.log", folder / f"work{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(work)]
            workers.append(stack.enter_context(_daemon("worker.Worker", log_path, "--host", host, *size, url)))
        for number in range(len(workers)):
            _wait_for_log(folder / f"worker{number}.log", r"(Successfully registered)")
        yield Cluster(url, workers, archive)


@contextmanager
def _daemon(name: str, log_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--port", "0", "--webui-port", "0"]
    with log_path.open("wb") as log:
        # the process leads a group, which its executors join
        process = subprocess.Popen(
            [*command, *arguments], env=_environment(), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process with its whole group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment() -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    return inherited | {
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }


def _wait_for_log(log_path: Path, pattern: str) -> str:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (match := re.search(pattern, log_path.read_text())):
        assert time.monotonic() < deadline_s, log_path.read_text()[-2000:]
        time.sleep(0.1)
    return match[1]
