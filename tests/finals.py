"""What `final_messages` must hold, read by delta-rs alone, against what a fetch shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.values.topics import Topic

SHOWN = ("partition", "offset", "timestamp", "key", "value", "headers")


def read_final_messages(mq: Connection) -> pa.Table:
    return DeltaTable(f"{mq.namespace.path}/final_messages").to_pyarrow_table()


def are_all_final(mq: Connection) -> bool:
    """Return whether all messages whose outcome is known are in the table."""
    topics = mq.state().topics.values()
    if any((topic.final_offsets < topic.last_stable_offsets).any() for topic in topics):
        return False
    rows = read_final_messages(mq)
    found = (_drop_deleted(rows.filter(pc.field("topic_id") == topic.topic_id), topic) for topic in topics)
    return all(part.num_rows == len(mq.fetch(topic.topic)) for topic, part in zip(topics, found, strict=True))


def find_difference(mq: Connection) -> str:
    """Return a topic whose messages in the table are not those of a fetch; empty if there is none.

    A file that begins before a log start may stay with its earlier rows.
    """
    rows, topics = read_final_messages(mq), mq.state().topics
    if deleted := set(rows.column("topic_id").to_pylist()) - set(topics):
        return f"deleted topic {min(deleted)}"
    for topic in topics.values():
        found = _drop_deleted(rows.filter(pc.field("topic_id") == topic.topic_id), topic)
        if _sort(found) != _sort(mq.fetch(topic.topic).to_arrow()):
            return topic.topic
    return ""


def check_final_messages(mq: Connection) -> int:
    """Check that the table has the committed messages that are not deleted, each added once. Return how many."""
    assert not find_difference(mq)
    check_each_added_once(mq)
    return int(read_final_messages(mq).num_rows)


def check_each_added_once(mq: Connection) -> None:
    """Check that no commit with new data has added a message that another one has added: a stream reads these."""
    table = DeltaTable(f"{mq.namespace.path}/final_messages")
    folder, places = Path(mq.namespace.path, "final_messages"), Counter[tuple[int, int, int]]()
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        file = pq.read_table(folder / unquote(action["path"]), columns=["topic_id", "partition", "offset"])
        places.update(zip(*(file.column(name).to_pylist() for name in file.column_names), strict=True))
    twice = [place for place, count in places.items() if count > 1]
    assert not twice, twice[:5]


def _drop_deleted(rows: pa.Table, topic: Topic) -> pa.Table:
    starts = pa.array(topic.log_starts)
    return rows.filter(pc.greater_equal(rows.column("offset"), starts.take(rows.column("partition"))))


def _sort(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the messages in order, without the headers that a fetch adds to dead letters."""
    messages = rows.select(SHOWN).sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    for message in messages:
        headers = message["headers"] or []
        message["headers"] = [header for header in headers if not header["key"].startswith("dead-letter.")]
    return list(messages)
