"""A reader whose store is away for a moment: it raises an error, and is correct once the store is back."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from clocks import HastyClock
from unit.served import CONFIG

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch import log_reader as reader_module
from lakemq.engine.client.fetch.log_reader import REBASE_MS, Reader
from lakemq.engine.protocol.errors import LakeMQError, NamespaceError, TableDamaged

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config={**CONFIG, "project.interval.ms": 0}) as mq:
        with mq.serving():
            mq.topics.create("t")
            mq.publish("t", pa.table({"value": ["0"]}))
        yield mq


@pytest.mark.parametrize(("missing", "error"), [("segments", NamespaceError), ("steps", TableDamaged)])
def test_failed_load_changes_nothing_and_is_repeated(
    tmp_path: Path, mq: Connection, monkeypatch: pytest.MonkeyPatch, missing: str, error: type[LakeMQError]
) -> None:
    monkeypatch.setattr(reader_module, "_MOST_FOLLOWED", 0)
    clock = HastyClock()
    reader = Reader(mq.namespace.store, clock)
    assert reader.refresh().topic("t").high_watermarks.tolist() == [1]
    with mq.serving():
        mq.publish("t", pa.table({"value": ["1", "2"]}))
    clock.ahead_ms = REBASE_MS + 1
    table = tmp_path / "mq" / missing
    table.rename(tmp_path / missing)
    for _ in range(2):
        with pytest.raises(error, match=missing):
            reader.refresh()
        assert reader.state.topic("t").high_watermarks.tolist() == [1], "as it was"
    (tmp_path / missing).rename(table)
    assert reader.refresh().topic("t").high_watermarks.tolist() == [3]
