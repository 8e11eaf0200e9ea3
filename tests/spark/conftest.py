"""All tests of this folder share a Spark session and a served namespace. Each test has a topic name of its own."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.load import read_watermark
from lakemq.spark import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # it tries a task three times, as a cluster does: test_publish.py
    connect = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",
    }
    session = spark_session(app_name="lakemq tests", master="local[2,3]", extra=connect)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def remote(spark: SparkSession) -> str:
    """Address of the Connect server in the JVM of the shared session."""
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")  # type: ignore[union-attr]
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the shared namespace. Its last part is the name of the database."""
    return tmp_path_factory.mktemp("shared") / "mq"


@pytest.fixture(scope="session")
def mq(spark: SparkSession, path: Path) -> Iterator[Connection]:
    """The shared namespace, served, with its tables and views in the session's database `mq`."""
    with lakemq.connect(str(path), spark=spark, create=True) as connection, connection.serving():
        yield connection


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def wait_for_projection(mq: Connection) -> Callable[[], None]:
    """A function that waits until the tables hold all decisions so far."""

    def wait() -> None:
        step = mq.state().step
        until(lambda: read_watermark(mq.namespace.store).step >= step)

    return wait
