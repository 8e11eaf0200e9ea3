"""A real Airflow with a new namespace, for all tests of this folder (`make test-airflow`)."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_airflow import AIRFLOW_BIN, CHECKOUT, Airflow, environment_of

import lakemq
from lakemq.engine.client.connection import Connection


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Airflow:
    """An Airflow with a database, the shipped DAGs in its folder, and connections to a new namespace."""
    if not (AIRFLOW_BIN / "airflow").exists():
        pytest.skip("no Airflow: make test-airflow")
    home = tmp_path_factory.mktemp("airflow")
    deployed, path = home / "lakemq", home / "mq"
    (deployed / "dist").mkdir(parents=True)
    shutil.copy(wheel, deployed / "dist" / "lakemq.zip")
    for folder in ("jobs", "conf"):
        shutil.copytree(CHECKOUT / folder, deployed / folder)
    (home / "dags").mkdir()
    shipped = (CHECKOUT / "jobs" / "dags" / "lakemq_dag.py").read_text()
    quick = shipped.replace("timedelta(seconds=30)", "timedelta(seconds=1)")  # tests do not wait for retries
    (home / "dags" / "lakemq_dag.py").write_text(quick)
    settings = home / "lakemq.yaml"
    settings.write_text("lease.ms: 2000\n")
    with lakemq.connect(str(path), create=True):
        pass
    prepared = Airflow(home, path, environment_of(home, path, deployed, settings))
    migration = prepared.run("db", "migrate")
    assert migration.returncode == 0, migration.stdout[-3000:]
    return prepared


@pytest.fixture
def mq(airflow: Airflow) -> Iterator[Connection]:
    # Airflow takes half a minute to start a task on a busy machine.
    with lakemq.connect(str(airflow.path), config={"request.timeout.ms": 120_000}) as mq:
        yield mq
