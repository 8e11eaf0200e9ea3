"""Data files that were changed after they were written: never delivered, named in errors, and without offsets."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from unit.served import new_topic, until, values

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.namespace.data_file import BODY, file_name, new_file_id, read_file_facts, write_data_file
from lakemq.engine.namespace.data_file_reader import open_data_file, verify_files
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.protocol.values.log import DataFile, Produce, Published, Ranges
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.errors import FileMissing, FileTruncated
from lakemq.jobs.doctor.namespace import check_data_files
from lakemq.tables.specs.messages import BODY_SCHEMA, MESSAGES, file_stem
from lakemq.tables.storage.object_stores.files import LocalFiles

pytestmark = [pytest.mark.slow, pytest.mark.extended]

SERVED_WITH = {"project.interval.ms": 0}
ROWS = 500
FEW, FINE = 0, 1
"""Ids of data files."""
_ids = itertools.count(100)


def create_filled_topic(mq: Connection) -> tuple[str, Path]:
    """Create a topic, and return it with the one file of its messages."""
    topic = new_topic(mq)
    mq.publish(topic, pa.table({"value": [f"message {i:06}" for i in range(ROWS)]}))
    (file_id,) = set(mq.fetch(topic).plan.segments["file_id"].to_pylist())
    return topic, Path(mq.namespace.files.root, file_name(file_id))


# -- ids and names ---------------------------------------------------------------------------------------


def test_rows_of_files_with_neighbouring_ids_do_not_mix(mq: Connection) -> None:
    """Rows and segments are joined by the sum of id and partition, which is the same for some of these files."""
    topic = new_topic(mq, 3)
    for file_id, partition in ((FEW, 2), (FEW + 1, 1), (FEW + 2, 0)):
        publish(mq, topic, write_file(mq, 4, file_id, partition), partition)
    query = f"SELECT m.partition, m.offset, decode(m.value) FROM log AS m WHERE m.topic = '{topic}' ORDER BY 1, 2"
    until(lambda: read_watermark(mq.namespace.store).step >= mq.state().step)
    assert list(run_query(mq.namespace, query)[1]) == [
        (p, o, file_stem(FEW + 2 - p)) for p in range(3) for o in range(4)
    ]


# -- damage to a file -----------------------------------------------------------------------------------


def rewrite_with_a_tool(file: Path) -> None:
    """Change the values with a tool that keeps everything else."""
    table = pq.read_table(file)
    forged = pa.array([b"forged!" for _ in range(ROWS)])
    file.unlink()
    pq.write_table(table.set_column(table.column_names.index("value"), "value", forged), file)


def rewrite_with_our_writer(file: Path) -> None:
    """Change the values with our own writer, under the same name and with the same lengths."""
    forged = pq.read_table(file).to_pandas().assign(value=[f"Message {i:06}".encode() for i in range(ROWS)])
    file.unlink()
    body = pa.Table.from_pandas(forged, MESSAGES.stored_schema, preserve_index=False).select(BODY)
    size = write_data_file(LocalFiles(str(file.parent.parent)), int(file.stem, 16), body).size_bytes
    assert size == file.stat().st_size


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def replace_by_another_file(file: Path) -> None:
    """Replace the file by a valid file of message rows that has another name."""
    files = LocalFiles(str(file.parent.parent))
    other = write_data_file(files, new_file_id(), pq.read_table(file).select(BODY))
    file.write_bytes(Path(files.root, file_name(other.file_id)).read_bytes())


MISHAPS = [rewrite_with_a_tool, rewrite_with_our_writer, cut_short, replace_by_another_file, Path.unlink]


@pytest.mark.parametrize("mishap", MISHAPS, ids=lambda mishap: mishap.__name__)
def test_changed_file_is_not_delivered(mq: Connection, mishap: Callable[[Path], None]) -> None:
    topic, file = create_filled_topic(mq)
    other, _ = create_filled_topic(mq)
    before = file.read_bytes()
    mishap(file)
    with pytest.raises(FileTruncated, match=f"{topic}.*{file.stem}.*lakemq doctor") as error_info:
        mq.fetch(topic).to_arrow()
    assert not error_info.value.retriable
    with pytest.raises(FileTruncated, match=file.stem):
        list(mq.fetch(topic, start=10, end=20))
    assert len(values(mq, other)) == ROWS
    finding = check_data_files(mq)
    assert not finding.ok
    assert file.stem in finding.found
    file.unlink(missing_ok=True)
    file.write_bytes(before)
    assert len(values(mq, topic)) == ROWS
    assert check_data_files(mq).ok


def test_data_file_with_a_changed_byte_is_refused(tmp_path: Path) -> None:
    """A bit of another byte is flipped in each of 1,200 copies. Some are in facts of a page that no reader uses.

    Arrow trusts a footer: one flipped bit can end the process. So its hash is compared before it is parsed.
    """
    files = LocalFiles(str(tmp_path))
    columns = {"partition": 0, "timestamp": 3, "key": b"key", "value": bytes(range(256)) * 2}
    rows = pa.table([pa.array([columns.get(f.name)] * 3, f.type) for f in BODY_SCHEMA], BODY_SCHEMA)
    written = write_data_file(files, FINE, rows)
    path = tmp_path / file_name(FINE)
    content = path.read_bytes()
    footer = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    refused = 0
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            with open_data_file(files, FINE, written.footer_hash) as file:
                assert place < footer
                assert file.read(BODY).cast(BODY_SCHEMA).equals(rows), place
        except FileTruncated:
            refused += place < footer
        facts = read_file_facts(files, FINE, written.footer_hash)
        assert place < footer or (facts is not None and facts.flaw)
    assert refused > footer / 2
    assert list(verify_files(files, {FINE: written.footer_hash})) == [FINE]
    path.write_bytes(content)
    assert verify_files(files, {FINE: written.footer_hash}) == verify_files(files, {}) == {}


# -- files in requests ----------------------------------------------------------------------------------


def publish(mq: Connection, topic: str, file: DataFile, partition: int = 0) -> Published:
    result = mq.requester.ask(build_request(mq, topic, file, partition))
    assert isinstance(result, Published)
    return result


def build_request(mq: Connection, topic: str, file: DataFile, partition: int = 0) -> Produce:
    info = mq.topics.describe(topic)
    ranges = Ranges([0], [partition], [0], [0], [file.record_count], [0], [0])
    return Produce([TopicRef(topic, info.topic_id, info.partitions)], ranges, mq.state().step, [file])


def write_file(mq: Connection, rows: int, file_id: int | None = None, partition: int = 0) -> DataFile:
    file_id = next(_ids) if file_id is None else file_id
    values_by_column = {"partition": partition, "timestamp": 0, "value": file_stem(file_id).encode()}
    body = pa.table([pa.array([values_by_column.get(f.name)] * rows, f.type) for f in BODY_SCHEMA], BODY_SCHEMA)
    return DataFile(*write_data_file(mq.namespace.files, file_id, body))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, not a Parquet file"),
        (b"PAR1" + b"x" * 92 + b"PAR1", "100 bytes, not a Parquet file"),
        (b"junk" * 25, "100 bytes, not a Parquet file"),
    ],
)
def test_file_that_is_no_parquet_gets_no_offsets(mq: Connection, content: bytes, message: str) -> None:
    topic = new_topic(mq)
    file_id = next(_ids)
    mq.namespace.files.put(file_name(file_id), content)
    with pytest.raises(FileMissing, match=message):
        publish(mq, topic, DataFile(file_id, len(content), 5, 0, 0, 0))
    assert mq.end_offsets(topic) == {0: 0}


def test_a_file_of_other_rows_gets_no_offsets(mq: Connection) -> None:
    topic, sink = new_topic(mq), pa.BufferOutputStream()
    pq.write_table(pa.table({"value": [b"x"] * 5}), sink)
    file_id = next(_ids)
    mq.namespace.files.put(file_name(file_id), sink.getvalue())
    facts = read_file_facts(mq.namespace.files, file_id)
    assert facts is not None
    with pytest.raises(FileMissing, match="no file of message rows"):
        publish(mq, topic, DataFile(file_id, facts.size_bytes, 5, 0, 0, facts.footer_hash))


def test_a_file_with_fewer_rows_than_said_gets_no_offsets(mq: Connection) -> None:
    topic, file = new_topic(mq), write_file(mq, 3)
    more = DataFile(file.file_id, file.size_bytes, 4, 0, 0, file.footer_hash)
    with pytest.raises(FileMissing, match=r"3 rows.*Expected.*4 rows"):
        publish(mq, topic, more)
    assert publish(mq, topic, file).units[0].record_count == 3
    assert mq.end_offsets(topic) == {0: 3}


def test_a_wrong_footer_in_one_request_does_not_refuse_another(mq: Connection) -> None:
    """Both travel in one letter, and their files are inspected once."""
    topic, file = new_topic(mq), write_file(mq, 3)
    wrong = replace(file, footer_hash=file.footer_hash ^ 1)
    requests = [(build_request(mq, topic, named), None) for named in (wrong, file, wrong)]
    errors = [future.exception() for future in mq.requester.submit_all(requests)]
    assert [type(error) for error in errors] == [FileMissing, type(None), FileMissing]
    with pytest.raises(FileMissing, match="rewritten or damaged"):
        publish(mq, topic, wrong)
    assert mq.end_offsets(topic) == {0: 3}
