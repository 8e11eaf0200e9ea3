"""A sink on Spark's driver: find the routes of rows, and publish the files of all tasks with one request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lakemq.tables.storage.object_stores.files import open_files

from ...namespace.clock import StoreClock, SystemClock
from ...protocol.errors import IllegalState, InvalidConfig, InvalidRecord, InvalidRequest
from ...protocol.names import is_name
from ...protocol.values.log import ApplicationVersion
from ..publish.executor import ELSEWHERE
from ..publish.spark import Routes, Written, build_files_request, find_routes
from ..rows.publication import Publication, describe_rejected_rows, error_of_rejected_rows
from ..rows.routing import find_route
from .tasks import Routing, WriteOptions, WriteTask, WrittenRows, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..connection import Connection
    from ..rows.receipts import PublishedRows

logger = logging.getLogger("lakemq.format")

BY_COLUMN = "by-column"
"""The destination of a batch whose rows name their topics."""

_METADATA = "metadata"
"""File in a checkpoint with the id that Structured Streaming gave the query."""


def make_write_task(options: WriteOptions, schema: StructType) -> WriteTask:
    """Return the work of tasks. Raises InvalidRecord, UnknownTopicOrPartition, InvalidTopic: they could not do it."""
    check_columns(pa.schema([_arrow_field(field) for field in schema]), options)
    with options.location.connect() as mq:
        state, now_ms = mq.state(), StoreClock(SystemClock(), mq.namespace.files.time_ms).now_ms()
    if options.topic is not None:
        routing = Routing(find_route(state, options.topic))
    else:
        routing = Routing(None, state.without_clients(with_groups=False))
    return WriteTask(options, routing, now_ms)


def _arrow_field(field: StructField) -> pa.Field:
    """Convert a column's type. Raises InvalidRecord: Spark cannot pass such a column to a task."""
    try:
        return to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except PySparkException:
        raise InvalidRecord(
            f"Spark cannot hand over the column {field.name}.",
            found=field.dataType.simpleString(),
            expected="a select without it, or a cast",
        ) from None


def read_stream_id(checkpoint: str, storage_options: Mapping[str, str]) -> str:
    """Return the id of a stream, which lives as long as its checkpoint. Raises InvalidConfig."""
    try:
        files = open_files(checkpoint, storage_options)
        return f"stream-{json.loads(files.get(_METADATA))['id']}"
    except (ValueError, KeyError, OSError) as error:
        raise InvalidConfig(
            f"The id of the stream cannot be read from its checkpoint: {error}",
            found=checkpoint,
            expected="a folder, or a URI that LakeMQ reads",
        ) from error


def checkpoint_of_query(namespace_path: str, query: str) -> str:
    """Return the folder of a query's checkpoint in its namespace. Raises InvalidRequest: the query needs a name."""
    if not is_name(query) or query.startswith("."):
        raise InvalidRequest("The name of the query is not valid.", found=query, expected="a name like a topic's")
    return f"{namespace_path.rstrip('/')}/streams/{query}"


def publish(
    task: WriteTask, messages: Sequence[WriterCommitMessage | None], application: tuple[str, int] | None
) -> None:
    """Publish what the tasks wrote, in their order. Log rejected rows, or raise their error, as onError says.

    application: id and version, which identify a repeat.
    """
    done = [message for message in messages if isinstance(message, WrittenRows)]
    if len(done) < len(messages):
        raise IllegalState("Spark commits, but a task has reported nothing.")
    target = task.options.topic or BY_COLUMN
    version = None if application is None else ApplicationVersion(*application, target)
    publication = Publication(target, task.options.on_error, version)
    routes, written = _route_runs(task.routing, done)
    if not written:
        return
    request = build_files_request(publication, routes, written)
    if request.rejected and task.options.on_error == "fail":
        raise error_of_rejected_rows(request.rejected, advice="The option onError=reject publishes the other rows.")
    with task.options.location.connect() as mq:
        published = mq.spark_publisher().publish_request(publication, routes, request)
    if request.rejected:
        batch = "Batch" if application is None else f"Batch {application[1]} of {application[0]}"
        text = "%s: messages published: %d. %s The table rejected_rows lists them."
        logger.warning(text, batch, published.record_count, describe_rejected_rows(request.rejected))


def publish_batch(
    mq: Connection,
    rows: DataFrame,
    topics: Sequence[str],
    source: str,
    application: tuple[str, int],
    check: Callable[[], None] = lambda: None,
) -> PublishedRows:
    """Publish a batch of a stream to the topics in its column `topic`, all rows together or none.

    source: what `rejected_rows` names. application: id and version, which identify a repeat. check: called when all
    rows are read and none is published; its error ends the publish.

    Raises LakeMQError: the error of a bad row, or what `publish` raises.
    """
    version = ApplicationVersion(*application, source)
    return mq.spark_publisher().publish_by_topic(rows, topics, source, version, on_error="fail", check=check)


def _route_runs(routing: Routing, done: Sequence[WrittenRows]) -> tuple[Routes, list[Written]]:
    """Return the routes, and the written files with destinations numbered by these."""
    if routing.route is not None:
        return Routes((routing.route,)), [(rows.file, rows.runs) for rows in done if rows.file is not None]
    assert routing.state is not None
    names = list(dict.fromkeys(name for rows in done for name in rows.names))
    routes = find_routes(routing.state, names, BY_COLUMN)
    numbers = {destination.name: number for number, destination in enumerate(routes.destinations)}
    written: list[Written] = []
    for rows in done:
        if rows.file is not None:
            each = [*(numbers.get(name, ELSEWHERE) for name in rows.names), ELSEWHERE]  # the last one is ELSEWHERE's
            written.append((rows.file, [run._replace(destination=each[run.destination]) for run in rows.runs]))
    return routes, written
