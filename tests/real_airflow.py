"""A real Airflow in an environment of its own (`make test-airflow`). It submits jobs to the Spark of this
environment.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark
from fetched_programs import find_free_port

CHECKOUT = Path(__file__).parents[1]
AIRFLOW_BIN = Path(os.environ.get("LAKEMQ_AIRFLOW", CHECKOUT / ".venv-airflow")) / "bin"
PATIENCE_S = 600
"""The limit of every wait. What is waited for takes up to 20 seconds on an idle machine."""

PORTS = ("AIRFLOW__API__PORT", "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT", "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT")


@dataclass(frozen=True)
class Airflow:
    """A configured Airflow. home: $AIRFLOW_HOME; path: the namespace."""

    home: Path
    path: Path
    environment: dict[str, str]

    def run(self, *arguments: str, program: str = "airflow", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(AIRFLOW_BIN / program), *arguments],
            env=self.environment | environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def test_dag(self, dag_id: str, *options: str, **environment: str) -> tuple[str, str]:
        """Run a DAG as `airflow dags test` does, and return the state of the run and its output."""
        output = self.run("dags", "test", dag_id, *options, **environment).stdout
        (state,) = re.findall(rf"DagRun Finished: dag_id={dag_id}.* state=(\w+)", output) or [output[-3000:]]
        return state, output

    @contextmanager
    def run_standalone(self) -> Iterator[None]:
        """Run the scheduler, the triggerer and all other processes until the block ends."""
        log_path = self.home / "standalone.log"
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [str(AIRFLOW_BIN / "airflow"), "standalone"],
                env=self.environment,
                cwd=self.home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):  # children may outlive it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def environment_of(home: Path, path: Path, deployed: Path, settings: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "AIRFLOW", "PYTHON"))}
    port = {name: str(find_free_port()) for name in PORTS}
    extra = {"home": str(deployed), "conf": str(settings)}
    connection = {"conn_type": "lakemq", "host": str(path), "extra": extra}
    return (
        inherited
        | port
        | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # one process per worker that may be needed: by default the scheduler starts 32 of them
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port[PORTS[0]]}/execution/",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW_CONN_LAKEMQ_DEFAULT": json.dumps(connection),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
            "PATH": os.pathsep.join([str(AIRFLOW_BIN), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
        }
    )
