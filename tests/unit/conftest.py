"""What most tests of clients work on: a namespace for the module, and names of the test's own in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.served import new_name, new_topic, served

from lakemq.engine.client.connection import Connection


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A namespace for all tests of the module, with a sequencer that leads; each test makes its own topics."""
    with served(tmp_path_factory.mktemp("served")) as connection:
        yield connection


@pytest.fixture
def topic(mq: Connection) -> str:
    """A new topic of one partition."""
    return new_topic(mq)


@pytest.fixture
def group() -> str:
    """A group that nobody has used."""
    return new_name("group")
