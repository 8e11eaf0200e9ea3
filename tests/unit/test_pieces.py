"""The pieces of a fetch are the fetch: no message is lost, doubled or out of order, wherever the cuts fall."""

import random
import re
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch import fetch_result as fetch_result_module
from lakemq.engine.client.fetch import rows as rows_module
from lakemq.engine.client.fetch.plan import FetchPlan
from lakemq.errors import MissingExtra
from lakemq.tables.storage.object_stores.files import Files

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A topic of two partitions in segments of 1 to 9 rows. Some are in letters, some in files of their own."""
    path = tmp_path_factory.mktemp("pieces") / "mq"
    chance = random.Random(7)
    with lakemq.connect(str(path), create=True) as connection, connection.serving():
        connection.topics.create("t", partitions=2)
        for i in range(12):
            size = 40_000 if i == 5 else 10
            rows = [f"{i}-{j}-".ljust(chance.randrange(size), "x") for j in range(chance.randrange(1, 18))]
            connection.publish("t", pa.table({"value": rows, "key": [str(j) for j in range(len(rows))]}))
        yield connection


@pytest.mark.parametrize("first_rows", [1, 7, 1000])
@pytest.mark.parametrize("target_bytes", [1, 500, 1 << 20])
def test_pieces_join_to_the_whole_fetch(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, first_rows: int, target_bytes: int
) -> None:
    monkeypatch.setattr(rows_module, "FIRST_ROWS", first_rows)
    fetched = mq.fetch("t", start={0: 3, 1: 5})
    whole = fetched.to_arrow()
    assert whole.num_rows > 50
    for limit in (None, 0, 13, whole.num_rows + 1):
        pieces = list(fetched.pieces(limit, target_bytes))
        assert all(piece.num_rows for piece in pieces)
        expected = whole if limit is None else whole.slice(0, limit)
        assert pa.concat_tables([whole.slice(0, 0), *pieces]).combine_chunks() == expected.combine_chunks()


def test_pieces_keep_to_the_size_asked_for_and_no_row_group_is_read_twice(
    mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    real = fetch_result_module.fetch_arrow

    def count_read(files: Files, plan: FetchPlan, cache: object = None) -> pa.Table:
        reads.append(plan.record_count)
        return real(files, plan)

    monkeypatch.setattr(fetch_result_module, "fetch_arrow", count_read)
    mq.topics.create("large")
    for _ in range(2):
        mq.publish("large", pa.table({"value": [b"x" * 10_000] * 300}))
    sizes = [piece.num_rows for piece in mq.fetch("large").pieces(target_bytes=100_000)]
    assert sum(sizes) == sum(reads) == 600
    assert max(sizes) <= 10
    assert reads == [300, 300]


def test_progress_bar_counts_the_messages_of_a_fetch(mq: Connection, capsys: pytest.CaptureFixture[str]) -> None:
    fetched = mq.fetch("t")
    assert fetched.to_arrow(progress=True).combine_chunks() == fetched.to_arrow().combine_chunks()
    count = fetched.record_count
    assert re.search(rf"fetch t: 100%.* {count}\.?0*/{count}", capsys.readouterr().err)
    assert sum(piece.num_rows for piece in fetched.pieces(limit=5, progress=True)) == 5
    assert "5.00/5.00" in capsys.readouterr().err
    assert next(fetched.pieces()).num_rows
    assert capsys.readouterr().err == ""


def test_an_empty_fetch_has_no_bar_and_without_tqdm_it_names_the_extra(
    mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.topics.create("none")
    assert mq.fetch("none").to_arrow(progress=True).num_rows == 0
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(MissingExtra, match=r"lakemq\[progress\]"):
        mq.fetch("t").to_arrow(progress=True)


def test_an_empty_fetch_has_no_pieces(mq: Connection) -> None:
    mq.topics.create("empty")
    assert list(mq.fetch("empty").pieces()) == []
