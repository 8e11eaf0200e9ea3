"""The driver's side of a sink: where rows go, and the one request that publishes what the tasks wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lakemq.tables.storage.files import open_files

from ...namespace.clock import SystemClock
from ...protocol.errors import IllegalState, InvalidConfig, InvalidRecord
from ...protocol.values.log import ApplicationVersion
from ..publish.executor import ELSEWHERE
from ..publish.publication import Publication
from ..publish.routing import find_route
from ..publish.spark import Routes, Written, routes_by_name
from .written import Routing, WriteOptions, WriteTask, WrittenRows, check_columns

BY_COLUMN = "by-column"
"""Stands for the destination of a batch whose rows name theirs."""

_METADATA = "metadata"
"""In a checkpoint: the id that Structured Streaming gave the query."""


def task_of(options: WriteOptions, schema: StructType) -> WriteTask:
    """What tasks do. Raises InvalidRecord, UnknownTopicOrPartition, InvalidTopic: they could not."""
    check_columns(pa.schema([_arrow_field(field) for field in schema]), options)
    with options.place.connect() as mq:
        state = mq.state()
    if options.topic is not None:
        routing = Routing(find_route(state, options.topic))
    else:
        routing = Routing(None, state.without_clients(with_groups=False))
    return WriteTask(options, routing, SystemClock().now_ms())


def _arrow_field(field: StructField) -> pa.Field:
    """Raises InvalidRecord: such a column does not reach a task, whether it is one of a message or not."""
    try:
        return to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except PySparkException:
        raise InvalidRecord(
            f"Spark cannot hand over the column {field.name}.",
            found=field.dataType.simpleString(),
            expected="a select without it, or a cast",
        ) from None


def stream_id(options: WriteOptions) -> str:
    """What Structured Streaming calls the query for as long as there is its checkpoint. Raises InvalidConfig."""
    assert options.checkpoint is not None
    try:
        files = open_files(options.checkpoint, options.place.storage_options)
        return f"stream-{json.loads(files.get(_METADATA))['id']}"
    except (ValueError, KeyError, OSError) as error:
        raise InvalidConfig(
            f"The id of the stream is not to be read from its checkpoint: {error}",
            found=options.checkpoint,
            expected="a folder, or a URI that LakeMQ reads",
        ) from error


def publish(
    task: WriteTask, messages: Sequence[WriterCommitMessage | None], application: tuple[str, int] | None
) -> None:
    """What the tasks wrote, in their order. application: id and version, by which a repeat is known."""
    done = [message for message in messages if isinstance(message, WrittenRows)]
    if len(done) < len(messages):
        raise IllegalState("A task has written nothing, and Spark commits.")
    target = task.options.topic or BY_COLUMN
    version = None if application is None else ApplicationVersion(*application, target)
    publication = Publication(target, task.options.on_error, version)
    routes, written = _routed(task.routing, done)
    if not written:
        return
    with task.options.place.connect() as mq:
        mq.spark_publisher().publish_written(publication, routes, written)


def _routed(routing: Routing, done: Sequence[WrittenRows]) -> tuple[Routes, list[Written]]:
    """Where all of it goes, and what was written with destinations numbered by that."""
    if routing.route is not None:
        return Routes((routing.route,)), [(one.file, one.runs) for one in done if one.file is not None]
    assert routing.state is not None
    names = list(dict.fromkeys(name for one in done for name in one.names))
    routes = routes_by_name(routing.state, names, BY_COLUMN)
    numbers = {destination.name: number for number, destination in enumerate(routes.destinations)}
    written: list[Written] = []
    for one in done:
        if one.file is not None:
            each = [*(numbers.get(name, ELSEWHERE) for name in one.names), ELSEWHERE]  # the last one is ELSEWHERE's
            written.append((one.file, [run._replace(destination=each[run.destination]) for run in one.runs]))
    return routes, written
