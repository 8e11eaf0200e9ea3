"""Settings of Kafka and Solace that LakeMQ does not have: the reason, or what to use instead.

`unknown_name_error` builds the refusal of any unknown name.
"""

import difflib
import re
from collections.abc import Collection

from .errors import InvalidConfig

_STORES = "the store takes care of it; LakeMQ has no brokers and no replicas"
_ALWAYS_ALL = "a publish is acknowledged once its step is stored, which is what acks=all means"
_NO_SEGMENTS = "LakeMQ has no log segments on brokers: the leader merges files"
_NO_WIRE = "there is no wire protocol and no listener: the store's permissions control access"
_FILES_PACK = "data files are Parquet, packed by column"
_SHARDS = "one sequencer decides for all groups and transactional ids; the column shard has Kafka's number among 50"
_PER_TOPIC = "the number of partitions is given when a topic is created"
_ANY_TIME = (
    "a topic takes any timestamp, and a publish warns of those that retention.ms does not allow for;"
    " message.timestamp.type of the topic may be LogAppendTime"
)

UNSUPPORTED: dict[str, str] = {
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
            "zookeeper.connect",
            "client.rack",
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
            "offsets.topic.segment.bytes",
            "transaction.state.log.segment.bytes",
            "offsets.load.buffer.size",
            "transaction.state.log.load.buffer.size",
        ),
        _NO_SEGMENTS,
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
            "metadata.broker.list",
            "send.buffer.bytes",
            "receive.buffer.bytes",
            "connections.max.idle.ms",
            "reconnect.backoff.ms",
            "reconnect.backoff.max.ms",
            "socket.timeout.ms",
            "client.dns.lookup",
        ),
        _NO_WIRE,
    ),
    **dict.fromkeys(("compression.type", "compression.gzip.level", "compression.zstd.level"), _FILES_PACK),
    **dict.fromkeys(("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"), _ANY_TIME),
    "num.partitions": _PER_TOPIC,
    "metadata.max.age.ms": "a client reads the routes again when the sequencer says that they have changed",
    "interceptor.classes": "call your own function before you send and after you poll",
    "check.crcs": (
        "letters, steps, and the pages of data files and tables have checksums, which are always verified; so is the"
        " footer of a data file"
    ),
    "exclude.internal.topics": "there are no internal topics",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "a transaction ends at its timeout",
    "group.max.size": "a group takes any number of members",
    **dict.fromkeys(("offsets.topic.num.partitions", "transaction.state.log.num.partitions"), _SHARDS),
    # Solace PubSub+
    "respect.msg.priority": "the messages of a partition keep their order, without priorities",
    "reject.msg.to.sender.on.discard": "a publish that is not stored is always refused, with the reason",
    "egress.enabled": "a topic always delivers; consumer.pause() stops one consumer",
}

_BYTES = "keys and values are bytes or text: encode them before you send, and decode what you poll"
_COMMITS = "call consumer.commit() when you have processed a batch; in queue groups there is ack_mode='auto'"
_POLL = "give max_records and timeout_ms to consumer.poll()"
_GROUPS = "it is a setting of the group: mq.groups.create(group, config={...})"
_SESSIONS = "a session_timeout_ms is from 6000 to 1800000"
_CONNECTION = "it is a setting of the connection: lakemq.connect(path, config={...})"
_ISOLATION = "give isolation to mq.consumer, or, for a queue group, mq.groups.create(group, config={...})"
_CREATE = "create topics with mq.topics.create"
_REDELIVERY = "max.redelivery.count of a queue group; it counts deliveries after the first"
_TTL = "ttl.ms of a topic"

REPLACEMENTS: dict[str, str] = {
    # Kafka: clients
    "group.id": "name the group in mq.consumer(group)",
    "client.id": "give client_id to mq.consumer; a producer needs none",
    "group.instance.id": "give instance_id to mq.consumer",
    "enable.auto.commit": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "partition.assignment.strategy": "give assignor to mq.consumer",
    "group.remote.assignor": "give assignor to mq.consumer",
    "max.poll.records": _POLL,
    "fetch.min.bytes": _POLL,
    "fetch.max.bytes": _POLL,
    "fetch.max.wait.ms": _POLL,
    "max.partition.fetch.bytes": _POLL,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "isolation.level": _ISOLATION,
    "request.timeout.ms": _CONNECTION,
    "default.api.timeout.ms": "request.timeout.ms of lakemq.connect(path, config={...})",
    "allow.auto.create.topics": _CREATE,
    **{
        keyword.replace("_", "."): f"give {keyword} to mq.producer"
        for keyword in (
            "linger_ms",
            "batch_size",
            "buffer_memory",
            "max_block_ms",
            "delivery_timeout_ms",
            "retries",
            "max_in_flight_requests_per_connection",
            "enable_idempotence",
        )
    },
    "max.request.size": "max.message.bytes of a topic",
    "share.acknowledgement.mode": "ack.mode of a queue group",
    "share.auto.offset.reset": "give auto_offset_reset to mq.consumer",
    "share.isolation.level": _ISOLATION,
    "transactional.id": "name it in mq.producer(transactional_id)",
    "transactional.id.timeout.ms": "a transaction is aborted after transaction_timeout_ms of mq.producer and "
    "mq.transaction, at most transaction.max.timeout.ms; an id that is not used is forgotten after "
    "transactional.id.expiration.ms",
    "transaction.timeout.ms": "give transaction_timeout_ms to mq.producer or mq.transaction",
    "partitioner.class": "the topic's setting partitioner says how keys become partitions",
    "retry.backoff.ms": "unanswered requests are repeated at once, until delivery_timeout_ms",
    # Kafka: brokers
    "auto.create.topics.enable": _CREATE,
    **dict.fromkeys(
        (
            "transactional.id.expiration.ms",
            "transaction.max.timeout.ms",
            "producer.id.expiration.ms",
        ),
        _CONNECTION,
    ),
    "group.consumer.session.timeout.ms": "give session_timeout_ms to mq.consumer",
    "group.consumer.heartbeat.interval.ms": "give heartbeat_interval_ms to mq.consumer",
    "group.share.delivery.count.limit": _REDELIVERY,
    "group.share.record.lock.duration.ms": "a member keeps a message until it acknowledges it or is lost; "
    "give session_timeout_ms to mq.consumer",
    "log.retention.ms": "retention.ms, of a topic or as a default of the namespace",
    "log.retention.minutes": "retention.ms, of a topic or as a default of the namespace",
    "log.retention.hours": "retention.ms, of a topic or as a default of the namespace",
    "log.retention.bytes": "retention.bytes, of a topic or as a default of the namespace",
    "log.retention.check.interval.ms": "retention.check.interval.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.message.timestamp.type": "message.timestamp.type",
    "message.max.bytes": "max.message.bytes",
    "offsets.retention.minutes": "offsets.retention.ms",
    "group.min.session.timeout.ms": _SESSIONS,
    "group.max.session.timeout.ms": _SESSIONS,
    # Solace PubSub+
    "access.type": "group.protocol of a group says how its members share partitions",
    "partition.count": "give partitions to mq.topics.create",
    "partition.rebalance.delay": "rebalance.delay.ms, in milliseconds",
    "partition.rebalance.max.handoff.time": "max.handoff.ms, in milliseconds",
    "max.delivered.unacked.msgs.per.flow": _GROUPS,
    "max.redelivery.count": _GROUPS,
    "max.redelivery": _REDELIVERY,
    "redelivery": _REDELIVERY,
    "delivery.count": "delivery_count of each message that a queue group polls",
    "delivery.delay": "give delay_ms or deliver_at to send, schedule or publish",
    "max.bind.count": "a group takes any number of consumers; those without a partition stand by",
    "topic.subscription": "give subscriptions to mq.topics.create",
    "partitions": "give partitions to mq.topics.create or mq.topics.alter, or --partitions to the command",
    "max.ttl": _TTL,
    "respect.ttl": _TTL,
    "respect.ttl.enabled": _TTL,
    "dead.msg.queue": "dead.letter.topic of a topic",
    "max.msg.size": "max.message.bytes",
    "max.msg.spool.usage": "retention.bytes of a topic",
    "max.spool.usage": "retention.bytes of a topic",
    "permission": "who may read and write is for the permissions of the store to say",
    "owner": "who may read and write is for the permissions of the store to say",
}
"""What to use instead of the name."""


def to_dotted_name(name: str) -> str:
    """Return a name in Kafka's spelling, whether it has dashes, underscores or capitals inside."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-_]", ".", name).lower()


def unknown_name_error(name: object, names: Collection[str], kind: str, owner: str | None = None) -> InvalidConfig:
    """Return the refusal of an unknown name, with the reason, the replacement, or a similar name.

    Args:
        name: the name that was used.
        names: the names that exist.
        kind: "setting" or "option", for the sentence.
        owner: what has a setting of this name, and how to set it there, if something has.
    """
    plain = to_dotted_name(name) if isinstance(name, str) else ""
    if plain in UNSUPPORTED:
        return InvalidConfig(f"{name} is no setting of LakeMQ: {UNSUPPORTED[plain]}.")
    spelled_so = [candidate for candidate in names if to_dotted_name(candidate) == plain]
    if not spelled_so and plain in REPLACEMENTS:
        return InvalidConfig(f"{name} is no {kind} here: {REPLACEMENTS[plain]}.")
    if not spelled_so and owner:
        return InvalidConfig(f"{name} is no {kind} here: {owner}.")
    # below 0.7 the nearest name has often nothing to do with it: of linger.ms it is lease.ms
    near = spelled_so or difflib.get_close_matches(str(name), names, n=1, cutoff=0.7)
    if near:
        return InvalidConfig(f"Unknown {kind}; did you mean {near[0]}?", found=name)
    return InvalidConfig(f"Unknown {kind}.", found=name, expected="one of " + ", ".join(sorted(names)))


def normalize_option_names(options: dict[str, object], keywords_known: Collection[str]) -> dict[str, object]:
    """Return the options of a client under their keyword names: `linger.ms` becomes `linger_ms`.

    Other names stay as they are. Raises InvalidConfig if an option is given twice.
    """
    keywords = {to_dotted_name(keyword): keyword for keyword in keywords_known}
    renamed: dict[str, object] = {}
    for name, value in options.items():
        keyword = name if name in keywords_known else keywords.get(to_dotted_name(name), name)
        if keyword in renamed:
            raise InvalidConfig(f"{keyword} is given twice.", found=name)
        renamed[keyword] = value
    return renamed
