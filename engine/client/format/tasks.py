"""Tasks of the format on executors: they read by a plan, and write rows.

A plan is cut into tasks at row groups, so that no two tasks decode the same one. Tasks are planned on the driver.
Executors need the files, pyarrow, numpy, xxhash and msgspec: no Delta, no steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from operator import eq

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition, WriterCommitMessage

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.object_stores.files import Files, open_files

from ...namespace.data_file import DataFileWriter, WrittenFile, file_name
from ...protocol.errors import FileTruncated, InvalidConfig, InvalidRecord, InvalidTopic, UnknownTopicOrPartition
from ...protocol.values.state import State
from ..fetch.arrow import FETCHED, append_parsed, fetch_arrow
from ..fetch.rows import FetchPlan, read_footers, slice_plan
from ..publish.executor import ELSEWHERE, TOPIC, WrittenRun, round_robin_start, write_body, write_rows
from ..rows.body import build_arrow_body
from ..rows.input_rows import COLUMNS, read_columns, select_message_columns
from ..rows.placing import Copy
from ..rows.publication import OnError
from ..rows.routing import Route, find_route
from ..schemas import SchemaRule
from .options import READ_OPTIONS, WRITE_OPTIONS, NamespaceLocation, OptionParser, ReadOptions

TASK_ROWS, TASK_BYTES = 1 << 18, 64 << 20
"""About the size of a task: large beside its start-up time, and small enough that a few million rows use many cores."""

_CHUNK_ROWS, _CHUNK_BYTES = 1 << 16, 16 << 20
"""Rows that are read at once, unless a row group has more."""

_BATCH_ROWS = 1 << 16
_FILES_AT_ONCE = 16

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """Rows that are read at once: ranges of files, or messages that are in no file yet, as an Arrow stream."""

    content: FetchPlan | bytes
    record_count: int
    size_bytes: int


class MessagesTask(InputPartition):
    """The chunks of one task. They come file by file; within a chunk, messages are by partition and offset."""

    def __init__(self, chunks: Sequence[Chunk], schema: SchemaRule | None = None) -> None:
        """schema: parses values."""
        super().__init__(None)
        self.chunks, self.schema = tuple(chunks), schema

    def __repr__(self) -> str:
        return f"MessagesTask({sum(chunk.record_count for chunk in self.chunks)} messages)"


def read_task(location: NamespaceLocation, include_headers: bool, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task, in the schema of Spark's Kafka source. Raises FileTruncated if any is missing."""
    if not isinstance(task, MessagesTask):  # without tasks, Spark passes one of its own
        return
    files = open_files(location.path, location.storage_options)
    for chunk in task.chunks:
        if isinstance(chunk.content, bytes):
            table = pa.ipc.open_stream(chunk.content).read_all()
        else:
            table = fetch_arrow(files, chunk.content)
        if not include_headers:
            table = table.drop_columns(["headers"])
        if task.schema is not None:
            table = append_parsed(table, task.schema)
        yield from table.to_batches(max_chunksize=_BATCH_ROWS)


def cut_into_tasks(files: Files, plans: Sequence[FetchPlan], options: ReadOptions) -> list[MessagesTask]:
    """Cut the plans into tasks, each message in one. Raises FileTruncated: a file is gone, or not as it was written."""
    total = sum(plan.record_count for plan in plans)
    most = min(TASK_ROWS, max(1, -(-total // options.min_tasks)), options.max_task_rows or TASK_ROWS)
    tasks: list[MessagesTask] = []
    chunks: list[Chunk] = []
    rows = size_bytes = 0
    for chunk in (chunk for plan in plans for chunk in _cut_into_chunks(files, plan, most)):
        if chunks and (rows + chunk.record_count > most or size_bytes + chunk.size_bytes > TASK_BYTES):
            tasks.append(MessagesTask(chunks, options.schema))
            chunks, rows, size_bytes = [], 0, 0
        chunks.append(chunk)
        rows, size_bytes = rows + chunk.record_count, size_bytes + chunk.size_bytes
    return [*tasks, MessagesTask(chunks, options.schema)] if chunks else tasks


def _cut_into_chunks(files: Files, plan: FetchPlan, most_rows: int) -> Iterator[Chunk]:
    """Yield chunks of at most so many rows."""
    unwritten = [file_id for file_id in plan.step_rows if files.size(file_name(file_id)) is None]
    is_unwritten = pc.is_in(plan.segments.column("file_id"), pa.array(unwritten, pa.int64()))
    in_files = plan.segments.filter(pc.invert(is_unwritten))
    if in_files.num_rows:
        yield from _cut_files(files, replace(plan, segments=in_files, step_rows={}, ranges=()), most_rows)
    if in_files.num_rows < plan.segments.num_rows:  # messages that are in no file yet came last
        messages = fetch_arrow(files, replace(plan, segments=plan.segments.filter(is_unwritten)))
        for first in range(0, messages.num_rows, most_rows):
            part = messages.slice(first, most_rows)
            yield Chunk(_to_stream(part), part.num_rows, part.nbytes)


def _to_stream(messages: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, FETCHED) as writer:
        writer.write_table(messages)
    return bytes(sink.getvalue())


def _cut_files(files: Files, plan: FetchPlan, most_rows: int) -> Iterator[Chunk]:
    plan = replace(plan, segments=_order_by_file(plan.segments))
    ends = np.cumsum(plan.segments.column("record_count").to_numpy())
    begins, row_bytes = _find_row_groups(plan.segments, ends, read_footers(files, plan), most_rows)
    counts = np.diff(begins, append=ends[-1])
    sizes = counts * row_bytes
    first = 0
    for last in range(1, len(begins) + 1):
        rows, size_bytes = int(counts[first:last].sum()), int(sizes[first:last].sum())
        is_last = last == len(begins)
        most = min(most_rows, _CHUNK_ROWS)
        if is_last or rows + counts[last] > most or size_bytes + sizes[last] > _CHUNK_BYTES:
            part = slice_plan(plan, ends, int(begins[first]), int(ends[-1] if is_last else begins[last]))
            ordered = part.segments.sort_by([("partition", "ascending"), ("base_offset", "ascending")])
            yield Chunk(replace(part, segments=ordered), rows, size_bytes)
            first = last


def _order_by_file(segments: pa.Table) -> pa.Table:
    """Return segments file by file, by row; files in the order in which their messages follow each other in the log.

    Files whose messages alternate come in the order of their first segments.
    """
    file_ids, partitions = (segments.column(name).to_pylist() for name in ("file_id", "partition"))
    before: dict[int, set[int]] = {file_id: set() for file_id in file_ids}
    for first, second, same_log in zip(file_ids, file_ids[1:], map(eq, partitions, partitions[1:]), strict=False):
        if same_log and first != second:
            before[second].add(first)
    try:
        ordered = list(TopologicalSorter(before).static_order())
    except CycleError:
        ordered = list(before)
    rank_by_file = {file_id: rank for rank, file_id in enumerate(ordered)}
    rank = np.array([rank_by_file[file_id] for file_id in file_ids], np.int64)
    return segments.take(pa.array(np.lexsort((segments.column("first_row").to_numpy(), rank))))


def _find_row_groups(
    segments: pa.Table, ends: Numbers, footers: Mapping[int, pq.FileMetaData], most_rows: int
) -> tuple[Numbers, npt.NDArray[np.float64]]:
    """Return where row groups begin, counted in messages of the plan, and the bytes per row of each.

    segments: by file and row. A group with more than most_rows of these rows counts as several.
    """
    begins: list[int] = []
    row_bytes: list[float] = []
    before: tuple[int, int] | None = None
    columns = (segments.column(name).to_pylist() for name in ("file_id", "first_row", "record_count"))
    starts: dict[int, Numbers] = {}
    for file_id, first_row, count, end in zip(*columns, ends.tolist(), strict=True):
        footer = footers[file_id]
        if file_id not in starts:
            groups = range(footer.num_row_groups)
            starts[file_id] = np.cumsum([0, *(footer.row_group(i).num_rows for i in groups)])
        bounds = starts[file_id]
        if first_row + count > bounds[-1]:
            raise FileTruncated(f"Data file {file_stem(file_id)} is damaged: its rows are not where they were.")
        row = first_row
        while row < first_row + count:
            group = int(np.searchsorted(bounds, row, side="right")) - 1
            number = end - count + row - first_row
            if before != (file_id, group) or number - begins[-1] >= most_rows:
                begins.append(number)
                metadata = footer.row_group(group)
                row_bytes.append(metadata.total_byte_size / max(1, metadata.num_rows))
                before = file_id, group
            row = min(int(bounds[group + 1]), first_row + count, row + most_rows - (number - begins[-1]))
    return np.array(begins, np.int64), np.array(row_bytes)


# The options of Spark's Kafka sink, and the work of the tasks that write rows.


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
        expected = "an option topic, or a column of this name with text"
        raise InvalidRecord("Nothing says where rows go.", found=table.column_names, expected=expected)
    return chosen.append_column(TOPIC, table.column(TOPIC))


def _is_text(type: pa.DataType) -> bool:
    return pa.types.is_string(type) or pa.types.is_large_string(type)


def check_columns(schema: pa.Schema, options: WriteOptions) -> None:
    """Check that rows of this schema can be messages. Raises InvalidRecord."""
    chosen = select_row_columns(schema.empty_table(), options)
    read_columns(chosen.select([name for name in chosen.column_names if name != TOPIC]))
