"""Fixtures that most tests of clients share: one namespace per module, and new names for each test."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import Result
from unit.busy_namespace import BusyNamespace, open_busy_namespace
from unit.line_peers import LineLeader
from unit.served import new_name, new_topic, run_lakemq, send, served

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch import log_reader


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A namespace for all tests of the module, with a sequencer that leads. Each test creates its own topics.

    A module may have settings of its own, SERVED_WITH.
    """
    with served(tmp_path_factory.mktemp("served"), **getattr(request.module, "SERVED_WITH", {})) as connection:
        yield connection


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyNamespace]:
    with open_busy_namespace(tmp_path_factory.mktemp("busy")) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def leaderless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a namespace that nobody serves, with a message in the topic `t`."""
    with served(tmp_path_factory.mktemp("leaderless")) as mq:
        mq.topics.create("t")
        send(mq, "t", "there")
    return mq.namespace.path


@pytest.fixture
def quick_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make readers look only twice for a table that is gone, instead of for a second."""
    monkeypatch.setattr(log_reader, "_ATTEMPTS", 2)


@pytest.fixture
def leader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LineLeader]:
    """A leader with lines, of the class LEADER of the module."""
    line_leader = request.module.LEADER(tmp_path)
    yield line_leader
    line_leader.lines.close()


@pytest.fixture
def topic(mq: Connection) -> str:
    """A new topic of one partition."""
    return new_topic(mq)


@pytest.fixture
def group() -> str:
    """The name of a group that no test has used before."""
    return new_name("group")


@pytest.fixture
def lake(mq: Connection) -> Callable[..., Result]:
    """The command on the module's namespace. It must end with the exit code `code`."""

    return partial(run_lakemq, mq.namespace.path)
