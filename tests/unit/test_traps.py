"""Small traps: times without a zone, `exist_ok` with other settings, existing folders, `~`, access denied."""

import errno
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from unit.served import new_name, new_topic, now_ms, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.clock import StoreClock, SystemClock
from lakemq.engine.namespace.config import load_config
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.namespace.store_errors import store_errors
from lakemq.errors import (
    InvalidConfig,
    InvalidTimestamp,
    LakeMQError,
    NamespaceError,
    StorageAccessDenied,
    StorageError,
    TopicAlreadyExists,
)
from lakemq.testing import MovableClock

# -- times ----------------------------------------------------------------------------------------------


def test_delivery_time_without_a_zone_is_refused(mq: Connection, topic: str) -> None:
    later = datetime.now() + timedelta(hours=1)
    with mq.producer() as producer:
        with pytest.raises(InvalidTimestamp, match="no time zone"):
            producer.send(topic, "v", deliver_at=later)
        with pytest.raises(InvalidTimestamp, match="no time zone"):
            mq.delayed.schedule(topic, "v", deliver_at=later)
        deliver_at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        for same in (
            deliver_at,
            deliver_at.astimezone(timezone(timedelta(hours=5))),
            int(deliver_at.timestamp() * 1000),
        ):
            assert producer.send(topic, "v", deliver_at=same).result().deliver_at_ms == int(
                deliver_at.timestamp() * 1000
            )


def test_a_time_in_seconds_is_refused(mq: Connection, topic: str) -> None:
    """It would be in 1970: delivered at once, or deleted at the next look of retention."""
    seconds, refusal = 1_900_000_000, r"seconds\. Found 1900000000.*such as 1900000000000"
    with mq.producer() as producer:
        for send in (producer.send, mq.delayed.schedule):
            with pytest.raises(InvalidTimestamp, match=refusal):
                send(topic, "v", deliver_at=seconds)
        with pytest.raises(InvalidTimestamp, match=refusal):
            producer.send(topic, "v", timestamp_ms=seconds)
        by_header = producer.send(topic, "v", headers={"DELIVER_AT": str(seconds).encode()})
        with pytest.raises(InvalidTimestamp, match="looks like seconds"):
            by_header.result(10)
    rows = pa.table({"value": ["v"]})
    with pytest.raises(InvalidTimestamp, match="seconds"):
        mq.publish(topic, rows, deliver_at=seconds)
    in_seconds = pa.array([seconds])
    tables = (
        rows.append_column("deliver_at", in_seconds),
        rows.append_column("timestamp", in_seconds.cast(pa.timestamp("ms", "UTC"))),
    )
    for table in tables:
        with pytest.raises(InvalidTimestamp, match="looks like seconds"):
            mq.publish(topic, table, on_error="fail")
    for unit in ("us", "ns"):  # as pd.to_datetime(seconds) reads them
        read_so = pa.array([seconds if unit == "ns" else seconds // 1000], pa.int64()).cast(pa.timestamp(unit, "UTC"))
        with pytest.raises(InvalidTimestamp, match="looks like seconds"):
            mq.publish(topic, rows.append_column("deliver_at", read_so), on_error="fail")
    mq.publish(topic, rows, deliver_at=0)  # at once
    assert values(mq, topic) == ["v"]


# -- times that retention does not allow for -----------------------------------------------------------------

DAY_MS = 86_400_000


def rows_of_days_ago(*days: float) -> pa.Table:
    now_ms = int(time.time() * 1000)
    stamps = pa.array([now_ms - round(day * DAY_MS) for day in days], pa.timestamp("ms", "UTC"))
    return pa.table({"value": ["v"] * len(days), "partition": [0] * len(days), "timestamp": stamps})


def test_a_publish_warns_of_messages_that_retention_deletes(
    mq: Connection, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = rows_of_days_ago(8, 400)
    published = mq.publish(topic, old)
    (warning,) = published.warnings
    assert warning.startswith(f"2 messages are older than topic {topic} keeps: retention.ms is 604800000.")
    assert [record.message for record in caplog.records if record.name == "lakemq.publish"] == [warning]
    assert published.record_count == 2
    with pytest.raises(InvalidTimestamp, match=r"Nothing was published\. 2 messages are older"):
        mq.publish(topic, old, on_error="fail")
    with mq.transaction(new_name("tx")) as txn:
        assert txn.publish(topic, old).warnings == published.warnings
    assert mq.fetch(topic).record_count == 4
    assert mq.publish(topic, rows_of_days_ago(6, 400)).warnings == [], "its newest message keeps the segment"
    mq.topics.alter(topic, config={"retention.ms": 9 * DAY_MS})
    assert mq.publish(topic, rows_of_days_ago(8), on_error="fail").warnings == [], "the setting was raised"


def test_a_publish_warns_of_times_ahead_that_hold_retention_back(mq: Connection, topic: str) -> None:
    ahead = rows_of_days_ago(0, -365.02)
    (warning,) = mq.publish(topic, ahead).warnings
    assert warning.startswith(f"Messages for topic {topic} have times up to 8760 hours ahead.")
    with pytest.raises(InvalidTimestamp, match="hours ahead"):
        mq.publish(topic, ahead, on_error="fail")
    assert mq.publish(topic, rows_of_days_ago(-0.04)).warnings == [], "Kafka allows clocks to differ by an hour, too"


def test_no_publish_warns_where_retention_ignores_its_times(mq: Connection, topic: str) -> None:
    for config in ({"retention.ms": -1}, {"message.timestamp.type": "LogAppendTime"}):
        name = new_name("t")
        mq.topics.create(name, config=config)
        assert mq.publish(name, rows_of_days_ago(400), on_error="fail").warnings == []
        assert mq.publish(name, rows_of_days_ago(-400), on_error="fail").warnings == []
    assert mq.publish(topic, rows_of_days_ago(400), delay_ms=0, on_error="fail").warnings == [], "it ages from now on"


# -- wrong clocks of clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [DAY_MS // 4, -DAY_MS // 4])
def test_a_wrong_clock_of_a_client_changes_no_delay_and_lets_retention_delete_nothing(
    mq: Connection, ahead_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock, topic = MovableClock(), new_name("t")
    clock.ahead_ms = ahead_ms
    mq.topics.create(topic, config={"retention.ms": DAY_MS // 24})
    begun_ms = now_ms() - 20  # a disk's clock stands still for some milliseconds
    with Connection(mq.namespace, clock=clock) as client, client.producer() as producer:
        due_ms = producer.send(topic, "late", delay_ms=2_000).result(30).deliver_at_ms
        assert begun_ms + 2_000 <= due_ms
        producer.send(topic, "now").result(30)
        assert client.publish(topic, pa.table({"value": ["now"]}), on_error="fail").warnings == []
        assert client.publish(topic, rows_of_days_ago(0.1)).warnings != [], "its own times may be old"
    ended_ms = now_ms() + 1_000  # a store may give whole seconds
    assert due_ms <= ended_ms + 3_000
    stamps = [message.timestamp.timestamp() * 1000 for message in mq.fetch(topic)][:2]
    assert all(begun_ms <= stamp <= ended_ms for stamp in stamps)
    (warning,) = [record.message for record in caplog.records if record.name == "lakemq.clock"]
    where = "ahead of" if ahead_ms > 0 else "behind"
    assert f" s {where} that of the store. Messages get the store's time" in warning


def test_the_stores_time_replaces_that_of_a_clock_that_is_off_or_was_set() -> None:
    class Steps(SystemClock):
        own_ms, steady = 1_000_123, 0

        def now_ms(self) -> int:
            return self.own_ms

        def steady_ms(self) -> int:
            return self.steady

        def run(self, ms: int, is_set_by_ms: int = 0) -> None:
            self.own_ms, self.steady = self.own_ms + ms + is_set_by_ms, self.steady + ms

    looks: list[int | OSError] = [1_002_000, 1_005_123, OSError("gone"), 1_065_000, 4_665_001]
    own = Steps()

    def read_store_ms() -> int:
        look = looks.pop(0)
        if isinstance(look, OSError):
            raise look
        return look

    clock = StoreClock(own, read_store_ms)
    assert clock.now_ms() == 1_000_123, "less than two seconds off"
    own.run(3_000)
    assert (clock.now_ms(), len(looks)) == (1_003_123, 4), "no second look"
    own.run(2_000, is_set_by_ms=-60_000)
    assert clock.now_ms() == 1_005_123, "it was set: the store's time"
    own.run(500)
    assert clock.now_ms() == 1_005_623
    own.run(0, is_set_by_ms=10_000)
    assert clock.now_ms() == own.own_ms, "the store does not answer"
    own.run(StoreClock.RETRY_MS + 1)
    assert clock.now_ms() == 1_065_999, "a minute later; a whole second may be almost over"
    own.run(StoreClock.LOOK_MS + 1)
    assert (clock.now_ms(), looks) == (4_665_001, []), "an hour later"


def test_a_producer_warns_once_per_destination_of_messages_that_retention_deletes(
    mq: Connection, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mq.producer(on_error="fail") as producer:
        for _ in range(3):
            producer.send(topic, "v", timestamp_ms=1_000).result(10)
    assert [record.message[:19] for record in caplog.records if record.name == "lakemq.publish"] == [
        "1 message is older "
    ]


# -- exist_ok -------------------------------------------------------------------------------------------


def test_exist_ok_names_the_settings_that_differ(mq: Connection) -> None:
    name = new_name("t")
    config = {"retention.ms": 5, "delay.levels": "5s 10s"}
    created = mq.topics.create(name, 2, config, ["flights/>", "trains"])
    for settings in (config, {"retention.ms": "5"}, {}, {"ttl.ms": -1}):
        assert mq.topics.create(name, 2, settings, exist_ok=True) == created
    assert mq.topics.create(name, 2, subscriptions=["trains", "flights/>"], exist_ok=True) == created
    for options, reason in (
        ({"partitions": 3, "config": config}, "another value of partitions"),
        ({"partitions": 2, "config": {"retention.ms": 6}}, r"of retention\.ms\. Found .*: 5.*: 6"),
        ({"partitions": 2, "config": {"ttl.ms": 1, "delay.levels": [5000]}}, r"of ttl\.ms, delay\.levels"),
        ({"partitions": 2, "subscriptions": ["trains"]}, "of subscriptions"),
    ):
        with pytest.raises(TopicAlreadyExists, match=reason):
            mq.topics.create(name, exist_ok=True, **options)  # type: ignore[arg-type]


# -- places ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_namespace_is_not_created_in_a_folder_with_other_content(tmp_path: Path) -> None:
    open_namespace(str(tmp_path / "a"), create=True)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "photos").mkdir()
    with pytest.raises(NamespaceError) as refused:
        lakemq.connect(str(tmp_path), create=True)
    assert "Found 'the namespace a/, photos/, notes.txt'" in str(refused.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "notes.txt", "photos"]
    for number in range(10):
        (tmp_path / f"z{number}").write_text("")
    with pytest.raises(NamespaceError, match="and 8 more"):
        lakemq.connect(str(tmp_path), create=True)


@pytest.mark.slow
def test_namespace_is_created_beside_hidden_files_and_rests_of_a_creation(tmp_path: Path) -> None:
    (tmp_path / ".gitkeep").write_text("")
    for name in ("lost+found", "mailbox", "leaders"):
        (tmp_path / name).mkdir()
    lakemq.connect(str(tmp_path), create=True).close()
    lakemq.connect(str(tmp_path), create=True).close()


@pytest.mark.slow
def test_tilde_is_the_home_folder_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("lease.ms: 1234")
    with lakemq.connect("~/mq", create=True, conf="~/mine.yaml") as mq:
        assert mq.namespace.path == str(tmp_path / "mq")
        assert mq.namespace.config["lease.ms"] == 1234
    monkeypatch.setenv("LAKEMQ_CONF", "~/none.yaml")
    with pytest.raises(InvalidConfig, match=str(tmp_path)):
        load_config()


# -- access ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), StorageAccessDenied),
        (OSError("Generic LocalFileSystem error: Permission denied (os error 13)"), StorageAccessDenied),
        (OSError("AccessDenied: 403"), StorageAccessDenied),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
        (OSError(errno.EROFS, "Read-only file system"), StorageError),
    ],
    ids=str,
)
def test_denied_access_has_another_error_than_a_failing_store(error: OSError, kind: type[LakeMQError]) -> None:
    with pytest.raises(StorageError) as refused, store_errors():
        raise error
    assert type(refused.value) is kind
    assert ("Retrying may help." in str(refused.value)) is (kind is StorageError)


# Arguments of a call: right ones become plain Python, wrong ones are refused with `found` and `expected`.


# -- Mistakes of a first hour: the answer says what was found, and what was expected ---------------------


def test_uri_with_one_slash_is_not_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("", "s3:/bucket/mq", "dbfs:/mq", "hdfs:/mq"):
        with pytest.raises(NamespaceError, match=r"expected a path or a URI.*\. Expected"):
            lakemq.connect(path, create=True)
    assert not list(tmp_path.iterdir())


MISTAKES: list[tuple[Callable[[Connection, str], object], str]] = [
    (
        lambda mq, topic: mq.publish(topic, pa.table({"id": [1], "vlaue": ["a"]})),
        r"no column for the value. Found \['id', 'vlaue'\]. Expected value, or value=.",
    ),
    (lambda mq, topic: mq.publish(topic, pd.DataFrame([[1, 2]])), r"no column for the value. Found \['0', '1'\]"),
    (
        lambda mq, topic: mq.publish(topic, pa.table({"value": [1]})),
        r"value is not usable: neither text nor bytes. Found 'int64'. Expected string or binary.",
    ),
    (
        lambda mq, topic: mq.publish(topic, pd.DataFrame({"value": ["a", 1]})),
        r"Arrow: Conversion failed for column value with type object: Expected bytes, got a 'int' object. Found",
    ),
    (lambda mq, topic: mq.fetch(topic, partitions=[9]).to_arrow(), "no such partition. Found 9. Expected 0 to 1."),
    (
        lambda mq, topic: mq.publish(topic, pa.table({"value": ["a"], "partition": [9]}), on_error="fail"),
        r"The topic has no such partition. Expected 0 to 1.",
    ),
    (
        lambda mq, topic: mq.publish(topic, pa.table({"value": ["a" * 1_048_589]}), on_error="fail"),
        r"larger than the topic's max.message.bytes. Expected at most 1048588 bytes.",
    ),
    (lambda mq, topic: mq.consumer("g", assign=[(topic, 9)]).poll(), "no such partition. Found 9. Expected 0 to 1."),
    (lambda mq, topic: mq.topics.create("new", config={"ttl.ms": None}), "ttl.ms is not valid. Found 'None'. Exp"),
    (lambda mq, topic: mq.fetch(topic, start=9), "does not hold this offset. Found 9. Expected 0 to [01]"),
    (lambda mq, topic: mq.fetch(topic, start={0: 0, 1: 9}), "does not hold this offset. Found 9. Expected 0 to "),
    (lambda mq, topic: mq.dead_letters.redrive(topic), "' is no dead-letter topic. Found"),
    (
        lambda mq, topic: mq.sql(f"SELECT * FROM `{topic}`", wait_ms=20_000),
        "is a topic. Read it with: FROM log_committed WHERE topic = '",
    ),
    (lambda mq, topic: mq.sql("SELECT 1", as_of="yesterday"), "Found 'yesterday'. Expected the number of a step, or a"),  # type: ignore[arg-type]
    (lambda mq, topic: mq.topics.create(topic, 7, exist_ok=True), r"topics\.alter\.$"),
]


def test_refusals_name_what_was_found_and_expected(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    mq.publish(topic, pa.table({"value": ["a"]}))
    for mistake, answer in MISTAKES:
        with pytest.raises(LakeMQError, match=answer):
            mistake(mq, topic)
