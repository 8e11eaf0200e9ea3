"""Messages that retention deletes before a group reads them: who is named, where, and before what."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app
from lakemq.jobs.doctor.namespace import check_losses
from lakemq.jobs.status import OutlookReader

pytestmark = pytest.mark.slow

OLD = datetime(2024, 1, 1, tzinfo=UTC)
ASKED = "With these settings, retention of topic 't' deletes unread messages of slow (8)?"


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    """A namespace with ten old messages, of which the group `slow` has read two and `fast` all."""
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq, mq.serving():
        mq.topics.create("t", config={"retention.ms": -1})
        mq.publish(
            "t",
            pa.table(
                {"value": [str(n) for n in range(10)], "timestamp": pa.array([OLD] * 10, pa.timestamp("us", "UTC"))}
            ),
        )
        for group, read in (("slow", 2), ("fast", 10)):
            with mq.consumer(group, assign=["t"]) as consumer:
                consumer.commit({("t", 0): read})
        mq.sql("SELECT 1", wait_ms=60_000)  # retention reads the tables
        yield mq


def alter(mq: Connection, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["--path", mq.namespace.path, "topics", "alter", "t", *arguments])
    return done.exit_code, done.stderr


@pytest.mark.extended
def test_alter_that_deletes_unread_messages_says_whose_and_how_many(mq: Connection) -> None:
    code, text = alter(mq, "--config", "retention.ms=1000")
    assert code == 2
    assert f"CONFIRMATION_REQUIRED: {ASKED}" in text
    assert mq.topics.describe("t").config == {"retention.ms": -1}
    for harmless in (["retention.ms=1000", "retention.waits.for.groups=true"], ["max.message.bytes=5000"]):
        assert alter(mq, *(word for setting in harmless for word in ("--config", setting)))[0] == 0


def test_loss_is_a_finding_until_group_reads_on(mq: Connection) -> None:
    observer = mq.observer()
    assert check_losses(mq, observer).ok
    mq.topics.delete_records("t", {0: 6})
    until(lambda: mq.groups.lag("slow")[0].deleted == 4)
    finding = check_losses(mq, observer)
    assert (finding.ok, finding.found) == (False, "slow has lost 4 of t")
    assert finding.commands == [["topics", "alter", "t", "--config", "retention.waits.for.groups=true"]]
    assert finding in OutlookReader(mq, observer).read().findings, "status shows it too"
    with mq.consumer("slow", assign=["t"]) as consumer:
        consumer.commit({("t", 0): 7})
    until(lambda: check_losses(mq, observer).ok)
    assert "offsets deleted before a group read them: 4" in check_losses(mq, observer).found
