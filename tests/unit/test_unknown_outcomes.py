"""Callers that repeat requests: after an attempt without an answer, no error says that nothing was sent."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from protocol_harness import Harness
from unit.desk import Desk

from lakemq import errors
from lakemq.engine.client.producer.options import parse_producer_options
from lakemq.engine.client.producer.producer import Producer
from lakemq.engine.client.publish.arrow import ArrowPublisher, KeylessRoundRobin
from lakemq.engine.client.publish.spark import SparkPublisher
from lakemq.engine.client.rows.few_rows import build_body
from lakemq.engine.client.rows.publication import Publication
from lakemq.engine.client.rows.routing import RouteCache
from lakemq.engine.client.transactions.manager import TransactionManager
from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.namespace.namespace import Namespace
from lakemq.engine.protocol.values.log import ApplicationVersion, Produce, Published, Ranges
from lakemq.engine.protocol.values.transactions import TransactionEnded
from lakemq.tables.storage.delta.store import Store

PATIENCE_MS = 5_000


def make_publisher(desk: Desk) -> ArrowPublisher:
    mq = Harness()
    mq.create("t", 1)
    routes = RouteCache(lambda look: look(mq.state))
    return ArrowPublisher(desk.files, desk.requester, routes, desk.clock, lambda: 15, 10_000, KeylessRoundRobin(0))


def publish_a_version(desk: Desk) -> Any:
    body, partitions = build_body(pa.table({"value": ["x"]}), "t", 0)
    desk.result = Published([])
    publication = Publication("t", "fail", ApplicationVersion("app", 1, "t"))
    return make_publisher(desk).send(publication, body, partitions, PATIENCE_MS)


def publish_a_version_with_spark(desk: Desk) -> Any:
    """Send the driver's request. The tasks, which write the files, need a JVM."""
    namespace = Namespace(desk.files.root, "", desk.files, Store(desk.files), desk.mailbox, EngineConfig(), {})
    desk.result = Published([])
    request = Produce([], Ranges(), 0, application=ApplicationVersion("app", 1, "t"))
    return SparkPublisher(namespace, desk.requester, lambda: Harness().state, desk.clock)._ask(request)


def flush(desk: Desk) -> Any:
    options = parse_producer_options({"linger_ms": 0, "delivery_timeout_ms": PATIENCE_MS})
    producer = Producer(make_publisher(desk), desk.requester, desk.clock, options)
    producer.send("t", "x")
    return producer.flush()


def make_manager(desk: Desk) -> TransactionManager:
    return TransactionManager(desk.requester, desk.clock, "etl", 60_000, PATIENCE_MS)


def commit(desk: Desk) -> Any:
    silent, desk.silent = desk.silent, 0
    transactions = make_manager(desk)
    transactions.initialize()
    transactions.begin()
    with transactions.add_part():
        pass
    desk.silent, desk.result = silent, TransactionEnded(7, 0)
    return transactions.commit()


ASKING: dict[str, Callable[[Desk], Any]] = {
    "publish of a version": publish_a_version,
    "publish of a version with Spark": publish_a_version_with_spark,
    "flush": flush,
    "initialize": lambda desk: make_manager(desk).initialize(),
    "commit": commit,
}


class Unsteady(Desk):
    """A desk that does not answer the first letter, and has no room for any letter after it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, code=errno.ENOSPC)
        self.silent = 1

    def _answer(self, path: str) -> None:
        if self.silent and path.startswith("mailbox/"):
            self.files.unwritable = "mailbox/"
        super()._answer(path)


@pytest.mark.slow
@pytest.mark.parametrize("asking", ASKING)
def test_outcome_is_unknown_when_a_repeat_is_not_sent(tmp_path: Path, asking: str):
    with pytest.raises(
        errors.RequestTimedOut, match=r"outcome is unknown.*The last attempt does not clear this up.*No space left"
    ):
        ASKING[asking](Unsteady(tmp_path))


@pytest.mark.parametrize("asking", ASKING)
def test_unsent_request_raises_nothing_was_sent(tmp_path: Path, asking: str):
    desk = Desk(tmp_path, code=errno.ENOSPC)
    desk.files.unwritable = "mailbox/"
    with pytest.raises(errors.StorageError, match="nothing was sent"):
        ASKING[asking](desk)


# -- refusals of a repeat -------------------------------------------------------------------------------


class Refusing(Desk):
    """A desk that does not answer the first letter, and refuses those after it."""

    def __init__(self, folder: Path, error: errors.LakeMQError) -> None:
        super().__init__(folder)
        self.silent, self._error = 1, error

    def _answer(self, path: str) -> None:
        self.result = self._error.refusal()
        super()._answer(path)


VERSIONED = [publish_a_version, publish_a_version_with_spark]


@pytest.mark.parametrize("publish", VERSIONED)
def test_refused_repeat_of_a_publish_leaves_the_outcome_unknown(tmp_path: Path, publish: Callable[[Desk], Any]):
    with pytest.raises(errors.RequestTimedOut, match=r"outcome is unknown.*does not clear this up: FILE_MISSING"):
        publish(Refusing(tmp_path, errors.FileMissing("gone")))


@pytest.mark.parametrize("publish", VERSIONED)
@pytest.mark.parametrize("error", [errors.StaleTopicMetadata, errors.StaleApplicationVersion])
def test_error_that_refuses_all_attempts_of_a_publish_is_raised(
    tmp_path: Path, publish: Callable[[Desk], Any], error: type[errors.LakeMQError]
):
    with pytest.raises(error):
        publish(Refusing(tmp_path, error()))


def test_refused_repeat_of_an_init_is_raised(tmp_path: Path):
    with pytest.raises(errors.InvalidTransactionTimeout):
        make_manager(Refusing(tmp_path, errors.InvalidTransactionTimeout())).initialize()


# -- before anything is sent ----------------------------------------------------------------------------


def test_rows_that_find_no_room_raise_storage_error(tmp_path: Path):
    desk = Desk(tmp_path, code=errno.ENOSPC)
    desk.files.unwritable = f"{15:016x}.parquet"
    body, partitions = build_body(pa.table({"value": ["x" * 20_000]}), "t", 0)
    with pytest.raises(errors.StorageError, match=r"The rows could not be stored\..*No space left"):
        make_publisher(desk).publish(Publication("t"), body, partitions)
    assert desk.letters == []
