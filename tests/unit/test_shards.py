"""The numbers of shards of groups and transactional ids: chosen when a namespace is created, and never changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.maintenance.replay_comparison import compare_with_replay
from lakemq.engine.namespace.loading.snapshot import take_snapshot
from lakemq.engine.protocol.hashing import shard
from lakemq.tables.specs.groups import GROUPS
from lakemq.tables.specs.offsets import CONSUMER_OFFSETS
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.transactions import TRANSACTIONS

CHOSEN_SHARDS = {"offsets.topic.num.partitions": 7, "transaction.state.log.num.partitions": 3}


def read_shards(mq: Connection, spec: TableSpec) -> set[int]:
    return set(mq.namespace.store.open(spec).read().column("shard").to_pylist())


def test_a_namespace_keeps_the_numbers_of_shards_it_was_created_with(tmp_path: Path) -> None:
    path, group, transactional_id = str(tmp_path / "mq"), "test-group", "my-group"
    lakemq.connect(path, create=True, config=CHOSEN_SHARDS).close()
    with lakemq.connect(path, create=True) as mq, mq.serving():  # the defaults, 50 and 50, come too late
        mq.topics.create("t")
        mq.groups.create(group)
        mq.publish("t", pa.table({"value": ["a"]}))
        with mq.consumer(group, assign=["t"]) as consumer:
            consumer.commit({("t", 0): 1})
        with mq.transaction(transactional_id) as transaction:
            transaction.publish("t", pa.table({"value": ["b"]}))
        assert mq.groups.describe(group).shard == shard(group, 7) != shard(group, 50)
        assert mq.transactions.describe(transactional_id).shard == shard(transactional_id, 3)
    with lakemq.connect(path) as mq:
        assert read_shards(mq, CONSUMER_OFFSETS) == {shard(group, 7)}
        assert read_shards(mq, GROUPS) == {shard(group, 7)}
        assert read_shards(mq, TRANSACTIONS) == {shard(transactional_id, 3)}
        replayed = compare_with_replay(take_snapshot(mq.namespace.store), mq.namespace.config)
        assert not any(replayed.differing.values())


def test_first_creator_of_a_namespace_chooses_the_numbers_of_shards(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    lakemq.connect(path, create=True, config=CHOSEN_SHARDS).close()
    # the first creation was interrupted
    (tmp_path / "mq" / "journal" / "_delta_log" / "00000000000000000000.json").unlink()
    with lakemq.connect(path, create=True, config={"offsets.topic.num.partitions": 11}) as mq, mq.serving():
        mq.groups.create("g")
        assert mq.groups.describe("g").shard == shard("g", 7)
