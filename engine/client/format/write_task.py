"""The options of Spark's Kafka sink, and the work of the tasks that write rows.

Executors need the store, pyarrow, numpy, xxhash and msgspec: no Delta, no steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from lakemq.tables.storage.object_stores.files import open_files

from ...namespace.data_file import DataFileWriter, WrittenFile
from ...protocol.errors import InvalidConfig, InvalidRecord, InvalidTopic, UnknownTopicOrPartition
from ...protocol.values.state import State
from ..publish.executor import ELSEWHERE, TOPIC, WrittenRun, round_robin_start, write_body, write_rows
from ..rows.arrow_body import build_arrow_body
from ..rows.input_rows import select_message_columns
from ..rows.message_columns import COLUMNS, read_columns
from ..rows.placing import Copy
from ..rows.publication import OnError
from ..rows.routing import Route, find_route
from .option_parser import OptionParser
from .options import READ_OPTIONS, WRITE_OPTIONS, NamespaceLocation

STREAM_OPTIONS = ("path", "topic", "includeHeaders", "onError", "checkpointLocation")


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write.

    Attributes:
        topic: None: each row's is in its column `topic`.
        application: (id, version) of a batch that sets them.
        checkpoint: only of a stream.
    """

    location: NamespaceLocation
    topic: str | None
    includes_headers: bool
    on_error: OnError
    application: tuple[str, int] | None = None
    checkpoint: str | None = None


def parse_batch_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a batch write. Raises InvalidConfig."""
    parser = OptionParser(options, WRITE_OPTIONS, others=READ_OPTIONS)
    app_id, version = parser.get("txnAppId"), parser.count("txnVersion", 0)
    if (app_id is None) != (version is None):
        raise InvalidConfig("txnAppId and txnVersion go together.", expected="both, or none")
    application = None if app_id is None or version is None else (app_id, version)
    return WriteOptions(*_parse_common(parser), application=application)


def parse_stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a stream write. Raises InvalidConfig."""
    parser = OptionParser(options, STREAM_OPTIONS, others=READ_OPTIONS)
    if not parser.get("checkpointLocation"):
        raise InvalidConfig(
            "A stream's batches are known by its checkpoint.", found="no option", expected="checkpointLocation"
        )
    return WriteOptions(*_parse_common(parser), checkpoint=parser.get("checkpointLocation"))


def _parse_common(parser: OptionParser) -> tuple[NamespaceLocation, str | None, bool, OnError]:
    on_error: OnError = parser.word("onError", ("fail", "reject"))  # type: ignore[assignment]
    location = NamespaceLocation(parser.path(), parser.storage_options)
    return location, parser.get("topic"), parser.flag("includeHeaders", True), on_error


@dataclass(frozen=True)
class Routing:
    """The routes of rows, by the topics of one step.

    route: of all rows; state: otherwise, to find the topics that rows name.
    """

    route: Route | None
    state: State | None = None

    def copies(self, name: str) -> tuple[Copy, ...]:
        """Return the destinations of a name; none if no topic receives it."""
        if self.route is not None:
            return self.route.copies
        assert self.state is not None
        try:
            return find_route(self.state, name).copies
        except (InvalidTopic, UnknownTopicOrPartition):
            return ()


class WrittenRows(WriterCommitMessage):
    """The file that a task wrote, if it had rows, and its contents. names: of its destinations, by number."""

    def __init__(self, file: WrittenFile | None, runs: Sequence[WrittenRun], names: Sequence[str]) -> None:
        self.file, self.runs, self.names = file, tuple(runs), tuple(names)


@dataclass(frozen=True)
class WriteTask:
    """A task's part of a write. now_ms: of the batch, the timestamp of rows without one."""

    options: WriteOptions
    routing: Routing
    now_ms: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write the rows. Each attempt writes a new file; files of failed attempts stay unused."""
        names: dict[str, int] = {}
        location = self.options.location

        def write(writer: DataFileWriter, table: pa.Table) -> Iterator[WrittenRun]:
            yield from self._write(writer, select_row_columns(table, self.options), names)

        written = write_rows(open_files(location.path, location.storage_options), batches, write)
        file, runs = written or (None, [])
        return WrittenRows(file, runs, [*names])

    def _write(self, writer: DataFileWriter, table: pa.Table, names: dict[str, int]) -> Iterator[WrittenRun]:
        start = round_robin_start(writer)
        for name, rows in _by_topic(table, self.options.topic):
            body, partitions = build_arrow_body(read_columns(rows), name or "", self.now_ms)
            copies = () if name is None else self.routing.copies(name)
            number = ELSEWHERE if name is None else names.setdefault(name, len(names))
            yield from write_body(writer, number, copies, body, partitions, start)


def _by_topic(table: pa.Table, topic: str | None) -> Iterator[tuple[str | None, pa.Table]]:
    if topic is not None:
        yield topic, table
        return
    named = table.column(TOPIC).cast(pa.string())
    rows = table.drop_columns([TOPIC])
    for name in pc.unique(named).to_pylist():
        yield name, rows.filter(pc.is_null(named) if name is None else pc.equal(named, name))


def select_row_columns(table: pa.Table, options: WriteOptions) -> pa.Table:
    """Return the columns of messages, and the topic's column if it says where rows go. Raises InvalidRecord."""
    table = table.rename_columns([name.lower() for name in table.column_names])
    names = [name for name in COLUMNS if name != "headers" or options.includes_headers]
    if twice := [name for name in (*names, TOPIC) if table.column_names.count(name) > 1]:
        raise InvalidRecord("The table has a column twice.", found=twice[0])
    if "value" not in table.column_names:
        raise InvalidRecord("The table has no column for the value.", found=table.column_names, expected="value")
    chosen = select_message_columns(
        table.select([name for name in names if name in table.column_names]), dict.fromkeys(names)
    )
    if options.topic is not None:
        return chosen
    if TOPIC not in table.column_names or not _is_text(table.column(TOPIC).type):
        expected = "an option topic, or a column of that name with text"
        raise InvalidRecord("Nothing says where rows go.", found=table.column_names, expected=expected)
    return chosen.append_column(TOPIC, table.column(TOPIC))


def _is_text(type: pa.DataType) -> bool:
    return pa.types.is_string(type) or pa.types.is_large_string(type)


def check_columns(schema: pa.Schema, options: WriteOptions) -> None:
    """Check that rows of this schema can be messages. Raises InvalidRecord."""
    chosen = select_row_columns(schema.empty_table(), options)
    read_columns(chosen.select([name for name in chosen.column_names if name != TOPIC]))
