"""Kafka's settings of topics, brokers and producers that nothing here answers to, and why."""

from __future__ import annotations

_STORES = "it is the store's business; LakeMQ has no brokers and no replicas"
_ALWAYS_ALL = "a publish is acknowledged once its step is in the journal, which is what acks=all means"
_NO_SEGMENTS = "LakeMQ has no log segments on brokers: files are merged by whoever leads"
_NO_COMPACTION = "there are no compacted topics; cleanup.policy is delete"
_NO_WIRE = "there is no wire protocol: nothing listens, and who may read and write is the store's to say"
_FILES_PACK = "data files are Parquet, packed by column"
_PER_TOPIC = "the number of partitions is given when a topic is created"

NOT_OURS: dict[str, str] = {
    **dict.fromkeys(
        (
            "replication.factor",
            "default.replication.factor",
            "min.insync.replicas",
            "unclean.leader.election.enable",
            "leader.replication.throttled.replicas",
            "follower.replication.throttled.replicas",
            "replica.lag.time.max.ms",
            "offsets.topic.replication.factor",
            "transaction.state.log.replication.factor",
            "transaction.state.log.min.isr",
            "num.replica.fetchers",
            "auto.leader.rebalance.enable",
            "broker.id",
            "node.id",
            "broker.rack",
            "log.dir",
            "log.dirs",
            "flush.messages",
            "flush.ms",
            "log.flush.interval.messages",
            "log.flush.interval.ms",
            "remote.storage.enable",
            "local.retention.ms",
            "local.retention.bytes",
        ),
        _STORES,
    ),
    **dict.fromkeys(("acks", "request.required.acks"), _ALWAYS_ALL),
    **dict.fromkeys(
        (
            "segment.bytes",
            "segment.ms",
            "segment.jitter.ms",
            "segment.index.bytes",
            "index.interval.bytes",
            "preallocate",
            "file.delete.delay.ms",
            "log.segment.bytes",
            "log.roll.ms",
            "log.roll.hours",
            "log.index.interval.bytes",
            "log.index.size.max.bytes",
            "log.preallocate",
        ),
        _NO_SEGMENTS,
    ),
    **dict.fromkeys(
        ("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms"),
        _NO_COMPACTION,
    ),
    **dict.fromkeys(
        (
            "bootstrap.servers",
            "listeners",
            "advertised.listeners",
            "security.protocol",
            "sasl.mechanism",
            "sasl.jaas.config",
            "ssl.keystore.location",
            "ssl.truststore.location",
            "num.network.threads",
            "num.io.threads",
            "socket.send.buffer.bytes",
            "socket.receive.buffer.bytes",
            "message.format.version",
            "inter.broker.protocol.version",
            "message.downconversion.enable",
        ),
        _NO_WIRE,
    ),
    **dict.fromkeys(("compression.type", "compression.gzip.level", "compression.zstd.level"), _FILES_PACK),
    "num.partitions": _PER_TOPIC,
}
