"""The view `admin_changes` says who changed what, and when, from the journal alone."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

import lakemq


@pytest.mark.slow
def test_changes_on_request_name_their_client_and_others_are_left_out(tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq, mq.serving():
        mq.topics.create("t")
        mq.publish("t", pa.table({"value": ["a", "b"]}))
        mq.topics.alter("t", {"retention.ms": 5_000_000_000})
        with mq.consumer("by-member", topics=["t"], protocol="queue") as consumer:
            consumer.poll(timeout_ms=100)
        mq.groups.create("by-request", {"group.protocol": "classic"})
        with mq.consumer("by-request", assign=["t"]) as reader:
            reader.commit({("t", 0): 1})
        mq.groups.reset_offsets("by-request", ["t"], "earliest")
        mq.topics.delete_records("t", {0: 1})
        mq.topics.delete("t")
        query = "SELECT kind, subject, client FROM admin_changes ORDER BY step, position"
        changes = mq.sql(query, wait_ms=60_000).to_pylist()
    assert [(change["kind"], change["subject"]) for change in changes] == [
        ("topic_created", "t"),
        ("topic_altered", "t"),
        ("group_configured", "by-request"),
        ("offsets_committed", "by-request"),
        ("records_deleted", "t"),
        ("offsets_removed", "by-member"),
        ("offsets_removed", "by-request"),
        ("topic_deleted", "t"),
    ]
    assert all(f"-{os.getpid()}-" in change["client"] for change in changes)
