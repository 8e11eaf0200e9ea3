"""What `final_messages` must hold, read by delta-rs alone, against what a fetch and SQL show."""

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lakemq.engine.client.connection import Connection
from lakemq.testing import MovableClock, wait_until

PATIENCE_S = 100
"""How long a test waits for several passes of a sequencer on a busy machine."""

SHOWN = ("partition", "offset", "timestamp", "key", "value", "headers")


def read_final_messages(mq: Connection) -> pa.Table:
    path, options = f"{mq.namespace.path}/final_messages", dict(mq.namespace.storage_options)
    return DeltaTable(path, storage_options=options).to_pyarrow_table()


def are_all_final(mq: Connection) -> bool:
    """Return whether all messages whose outcome is known are in the table."""
    topics = mq.state().topics.values()
    if any((topic.final_offsets < topic.last_stable_offsets).any() for topic in topics):
        return False
    rows = read_final_messages(mq)
    moved = (_drop_expired(mq, rows.filter(pc.field("topic_id") == topic.topic_id)) for topic in topics)
    counts = [len(mq.fetch(topic.topic)) for topic in topics]
    return [part.num_rows for part in moved] == counts


def check_what_is_final(mq: Connection) -> None:
    """Check that the table has the committed messages below the final offsets, each added once.

    Call it when everything is projected. It is right whatever a leader has left to write.
    """
    rows = read_final_messages(mq)
    for topic in mq.state().topics.values():
        moved = _sort(_drop_expired(mq, rows.filter(pc.field("topic_id") == topic.topic_id)))
        fetched = _sort(mq.fetch(topic.topic).to_arrow())
        assert moved == [row for row in fetched if row["offset"] < topic.final_offsets[row["partition"]]], topic.topic
    check_each_added_once(mq)


def find_difference(mq: Connection) -> str:
    """Return a topic whose messages in the table or in SQL are not those of a fetch; empty if there is none."""
    rows, topics = read_final_messages(mq), mq.state().topics
    in_view = mq.sql("SELECT * FROM log_committed", wait_ms=9_000)
    if deleted := set(rows.column("topic_id").to_pylist()) - set(topics):
        return f"deleted topic {min(deleted)}"
    for topic in topics.values():
        moved = _sort(_drop_expired(mq, rows.filter(pc.field("topic_id") == topic.topic_id)))
        shown = _sort(_drop_expired(mq, in_view.filter(pc.field("topic") == topic.topic)))
        fetched = _sort(mq.fetch(topic.topic).to_arrow())
        if not moved == shown == fetched:
            return topic.topic
    return ""


def list_pending_ranges(mq: Connection) -> list[dict[str, Any]]:
    """Return the final ranges whose messages are still read where they were published.

    Ranges below the log start have no messages. They stay pending until retention removes their rows.
    """
    query = """
        SELECT topic, partition, base_offset FROM segments AS pending WHERE kind = 'final_pending' AND NOT EXISTS (
            FROM segments AS start WHERE start.kind = 'log_start' AND start.topic_id = pending.topic_id
            AND start.partition = pending.partition AND start.last_offset > pending.last_offset
        )"""
    ranges: list[dict[str, Any]] = mq.sql(query, wait_ms=9_000).to_pylist()
    return ranges


def let_readers_move_on(mq: Connection, clock: MovableClock) -> None:
    """Put the clock ahead until no reader begins before the present, by less than a lease at a time."""
    for _ in range(4):
        clock.advance(seconds=3)
    mq.groups.create(f"at-{clock.ahead_ms}", {"group.protocol": "queue"})  # without a decision nothing is projected


def read_from_final_files(mq: Connection, clock: MovableClock) -> None:
    """Put the clock ahead until final messages are read from their files."""

    def check() -> bool:
        let_readers_move_on(mq, clock)
        return are_all_final(mq) and not list_pending_ranges(mq)

    wait_until(check, "reads of final files", PATIENCE_S)


def _drop_expired(mq: Connection, rows: pa.Table) -> pa.Table:
    """Return the rows that a fetch shows: the table keeps expired ones until retention deletes them."""
    now = datetime.fromtimestamp(mq._clock.now_ms() / 1000, UTC)
    return rows.filter(pc.field("expires_at").is_null() | (pc.field("expires_at") > now))


def check_final_messages(mq: Connection) -> int:
    """Check that the table has the committed messages that are not deleted, each added once. Return how many."""
    assert not find_difference(mq)
    check_each_added_once(mq)
    return int(read_final_messages(mq).num_rows)


def check_each_added_once(mq: Connection) -> None:
    """Check that a stream has had each message of the table once, from its beginning.

    It reads the files that commits with new data have added. They stay, also those that were removed or rewritten.
    """
    streamed = count_added_places(mq)
    assert not (twice := [place for place, count in streamed.items() if count > 1]), twice[:5]
    if mq.namespace.files.size(f"final_messages/_delta_log/{0:020d}.json") is not None:
        missing = set(read_places(read_final_messages(mq))) - streamed.keys()
        assert not missing, sorted(missing)[:5]


def count_added_places(mq: Connection) -> Counter[tuple[int, int, int]]:
    """Return how often the log has added each message: topic_id, partition and offset."""
    files = mq.namespace.files
    entries = [name for name in files.list("final_messages/_delta_log") if name.endswith(".json")]
    actions = [json.loads(line) for entry in entries for line in files.get(entry).splitlines()]
    added = [unquote(action["add"]["path"]) for action in actions if "add" in action and action["add"]["dataChange"]]
    places = Counter[tuple[int, int, int]]()
    for path in added:
        with files.open_input(f"final_messages/{path}") as source:
            places.update(read_places(pq.ParquetFile(source).read()))
    return places


def read_places(rows: pa.Table) -> list[tuple[int, int, int]]:
    columns = (rows.column(name).to_pylist() for name in ("topic_id", "partition", "offset"))
    return list(zip(*columns, strict=True))


def _sort(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the messages in order, without the headers that a fetch adds to dead letters."""
    messages = rows.select(SHOWN).sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    for message in messages:
        headers = message["headers"] or []
        message["headers"] = [header for header in headers if not header["key"].startswith("dead-letter.")]
    return list(messages)
