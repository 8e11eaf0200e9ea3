"""Invariants of messages and tables that must always hold (docs/semantics.md I)."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from decided import read_steps
from deltalake import DeltaTable
from faults.messages import Acknowledged
from finals import check_what_is_final
from stateful.projections import assert_projections_are_the_replay

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.protocol.rows.admin_log import build_admin_log
from lakemq.engine.protocol.values.journal import StepBatch
from lakemq.tables.specs.journal import ADMIN_LOG, JOURNAL
from lakemq.tables.specs.registry import TABLES


def check_log(mq: Connection, topic: str, acknowledged: Iterable[Acknowledged]) -> pa.Table:
    """I1, I2, I5: acknowledged messages are there exactly once, in the acknowledged place; dense offsets; order per
    publisher.

    Returns the messages.
    """
    messages = mq.fetch(topic).to_arrow()
    place_of: dict[str, tuple[int, int]] = {}
    partitions: dict[int, list[str]] = defaultdict(list)
    columns = (messages.column(c).to_pylist() for c in ("value", "partition", "offset"))
    for raw, partition, offset in zip(*columns, strict=True):
        value = raw.decode()
        assert value not in place_of, f"{value} is there twice: {place_of[value]}, {(partition, offset)}"
        place_of[value] = (partition, offset)
        assert offset == len(partitions[partition]), f"partition {partition} has a hole before {offset}"
        partitions[partition].append(value)
    for message in acknowledged:
        assert message.value in place_of, f"{message} was acknowledged and is not there"
        acknowledged_place = (
            message.partition,
            message.offset if message.offset is not None else place_of[message.value][1],
        )
        assert place_of[message.value] == acknowledged_place, (
            f"{message} was acknowledged elsewhere: {place_of[message.value]}"
        )
    for partition, values in partitions.items():
        assert_in_order(partition, values)
    assert {p: len(v) for p, v in partitions.items()} == {p: e for p, e in mq.end_offsets(topic).items() if e}
    return messages


def assert_in_order(partition: int, values: Iterable[str]) -> None:
    """I5: the earlier of two messages of a publisher has the lower offset."""
    last: dict[str, str] = {}
    for value in values:
        publisher = value.partition("/")[0]
        assert last.get(publisher, "") < value, f"partition {partition}: {value} after {last[publisher]}"
        last[publisher] = value


def check_all(path: str, topic: str, acknowledged: Iterable[Acknowledged]) -> pa.Table:
    """Check all invariants after the last sequencer has ended, and return the messages.

    I12: the projections are the replay of all steps, which `journal` must hold (journal.retention.ms). SQL shows the
    messages of a fetch. A18: so does `final_messages` below the final offsets. No letter waits.
    """
    with lakemq.connect(path) as mq:
        mq.step_until_idle(wait_ms=20_000)
        messages = check_log(mq, topic, acknowledged)
        check_projections(mq)
        check_what_is_final(mq)
        columns, rows = run_query(
            mq.namespace, f"""SELECT "partition", "offset", "value" FROM log_committed WHERE topic = '{topic}'"""
        )
        assert columns == ["partition", "offset", "value"]
        fetched = zip(*(messages.column(c).to_pylist() for c in columns), strict=True)
        assert Counter(rows) == Counter(fetched)
        assert mq.namespace.mailbox.list_waiting(10) == []
        return messages


def assert_whole(path: str) -> None:
    """Check that every file that a table names exists, even while a leader works."""
    for spec in TABLES:
        folder = Path(path, spec.name)
        uris = DeltaTable(folder).file_uris()
        missing = [uri for uri in uris if not Path(unquote(uri.removeprefix("file://"))).exists()]
        assert not missing, f"{spec.name} misses {len(missing)} of {len(uris)} files, {Path(missing[0]).name} first"


def check_projections(mq: Connection) -> None:
    """I12, of a namespace in which everything is projected. No step was decided twice, or by two leaders."""
    store = mq.namespace.store
    rows = store.open(JOURNAL).read(["step", "position"])
    places = zip(*(rows.column(c).to_pylist() for c in rows.column_names), strict=True)
    twice = [place for place, count in Counter(places).items() if count > 1]
    assert not twice, f"decided twice, as (step, position): {twice[:5]}"
    steps = read_steps(store)
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    epochs = [step.leader_epoch for step in steps]
    assert epochs == sorted(epochs), "a leader decided after its successor"
    assert_projections_are_the_replay(store, steps)
    changes = store.open(ADMIN_LOG).read().sort_by([(key, "ascending") for key in ADMIN_LOG.keys])
    assert changes.to_pylist() == build_admin_log(StepBatch(steps)).to_pylist()
