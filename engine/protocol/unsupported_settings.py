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
_NO_INTERNAL_TOPICS = "there are no internal topics: offsets of groups and transactions are rows of tables"
_SHARDS = "one sequencer decides for all groups and transactional ids; the column shard has Kafka's number among 50"
_ANY_TIME = (
    "a topic takes any timestamp, and a publish warns of those that retention.ms does not allow for;"
    " message.timestamp.type of the topic may be LogAppendTime"
)

UNSUPPORTED: dict[str, str] = {
    "replication.factor": _STORES,
    "default.replication.factor": _STORES,
    "min.insync.replicas": _STORES,
    "unclean.leader.election.enable": _STORES,
    "client.rack": _STORES,
    "log.dir*": _STORES,
    **dict.fromkeys(("broker.*", "flush.*", "local.*", "log.flush.*", "num.*", "remote.*", "replica.*"), _STORES),
    **dict.fromkeys(("acks", "request.required.acks"), _ALWAYS_ALL),
    "bootstrap.servers": _NO_WIRE,
    "metadata.broker.list": _NO_WIRE,
    "listeners": _NO_WIRE,
    "message.format.version": _NO_WIRE,
    **dict.fromkeys(("advertised.*", "connections.*", "reconnect.*", "sasl.*", "security.*", "socket.*"), _NO_WIRE),
    **dict.fromkeys(("ssl.*", "receive.*", "send.*"), _NO_WIRE),
    "segment.*": _NO_SEGMENTS,
    "log.*": f"{_NO_SEGMENTS}; a setting of topics has its name without log",
    "num.partitions": "the number of partitions is given when a topic is created",
    "compression.*": "data files are Parquet, packed by column",
    "message.timestamp.*": _ANY_TIME,
    "metadata.max.age.ms": "a client reads the routes again when the sequencer says that they have changed",
    "interceptor.classes": "call your own function before you send and after you poll",
    "group.max.size": "a group takes any number of members",
    "offsets.topic.num.partitions": _SHARDS,
    "transaction.state.log.num.partitions": _SHARDS,
    **dict.fromkeys(("offsets.topic.*", "transaction.state.*"), _NO_INTERNAL_TOPICS),
}
"""Name, or the beginning of names before a `*` -> why LakeMQ does not have it."""

_BYTES = "keys and values are bytes or text: encode them before you send, and decode what you poll"
_COMMITS = "call consumer.commit() when you have processed a batch; in queue groups there is ack_mode='auto'"
_POLL = "give max_records and timeout_ms to consumer.poll()"
_CONNECTION = "it is a setting of the connection: lakemq.connect(path, config={...})"
_ISOLATION = "give isolation to mq.consumer, or, for a queue group, mq.groups.create(group, config={...})"
_CREATE = "create topics with mq.topics.create"
_AGE = "retention.ms and retention.bytes, of a topic or as a default of the namespace"
_SESSIONS = "a session_timeout_ms is from 6000 to 1800000"
_REDELIVERY = "max.redelivery.count of a queue group; it counts deliveries after the first"
_TTL = "ttl.ms of a topic"
_ACCESS = "who may read and write is for the permissions of the store to say"

REPLACEMENTS: dict[str, str] = {
    # Kafka
    "group.id": "name the group in mq.consumer(group)",
    "client.id": "give client_id to mq.consumer; a producer needs none",
    "group.instance.id": "give instance_id to mq.consumer",
    "enable.auto.commit": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "partition.assignment.strategy": "give assignor to mq.consumer",
    "max.poll.records": _POLL,
    "consumer.timeout.ms": "loop over consumer.until_end(), or call consumer.poll(timeout_ms=...) until nothing comes",
    "fetch.*": _POLL,
    "max.partition.fetch.bytes": _POLL,
    "key.*": _BYTES,
    "value.*": _BYTES,
    "isolation.level": _ISOLATION,
    "request.timeout.ms": _CONNECTION,
    "default.api.timeout.ms": "request.timeout.ms of lakemq.connect(path, config={...})",
    "allow.auto.create.topics": _CREATE,
    "auto.create.topics.enable": _CREATE,
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
    "message.max.bytes": "max.message.bytes of a topic",
    "share.acknowledgement.mode": "ack.mode of a queue group",
    "share.auto.offset.reset": "give auto_offset_reset to mq.consumer",
    "share.isolation.level": _ISOLATION,
    "group.share.delivery.count.limit": _REDELIVERY,
    "group.consumer.*": "sessions, heartbeats and assignors are options of mq.consumer",
    "group.min.session.timeout.ms": _SESSIONS,
    "group.max.session.timeout.ms": _SESSIONS,
    "transactional.id": "name it in mq.producer(transactional_id)",
    "transactional.id.timeout.ms": "a transaction is aborted after transaction_timeout_ms of mq.producer and "
    "mq.transaction, at most transaction.max.timeout.ms; an id that is not used is forgotten after "
    "transactional.id.expiration.ms",
    "transaction.timeout.ms": "give transaction_timeout_ms to mq.producer or mq.transaction",
    "transactional.id.expiration.ms": _CONNECTION,
    "transaction.max.timeout.ms": _CONNECTION,
    "producer.id.expiration.ms": _CONNECTION,
    "partitioner.class": "the topic's setting partitioner says how keys become partitions",
    "retry.*": "unanswered requests are repeated at once, until delivery_timeout_ms",
    "log.retention.*": _AGE,
    "offsets.retention.minutes": "offsets.retention.ms",
    # Solace PubSub+
    "access.type": "group.protocol of a group says how its members share partitions",
    "partition.count": "give partitions to mq.topics.create",
    "partition.rebalance.delay": "rebalance.delay.ms, in milliseconds",
    "partition.rebalance.max.handoff.time": "max.handoff.ms, in milliseconds",
    "max.delivered.unacked.msgs.per.flow": "it is a setting of the group: mq.groups.create(group, config={...})",
    "max.redelivery": _REDELIVERY,
    "max.redelivery.count": _REDELIVERY,
    "delivery.delay": "give delay_ms or deliver_at to send, schedule or publish",
    "topic.subscription": "give subscriptions to mq.topics.create",
    "partitions": "give partitions to mq.topics.create or mq.topics.alter, or --partitions to the command",
    "max.ttl": _TTL,
    "respect.ttl*": _TTL,
    "dead.msg.queue": "dead.letter.topic of a topic",
    "max.msg.size": "max.message.bytes of a topic",
    "max.msg.spool.usage": "retention.bytes of a topic",
    "permission": _ACCESS,
    "owner": _ACCESS,
}
"""Name, or the beginning of names before a `*` -> what to use instead."""

_BEGINNINGS = {key[:-1]: text for key, text in {**UNSUPPORTED, **REPLACEMENTS}.items() if key.endswith("*")}


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
    near = spelled_so or difflib.get_close_matches(str(name), names, n=1, cutoff=0.85)  # a slip of the pen
    begin = max((key for key in _BEGINNINGS if plain.startswith(key)), key=len, default=None)
    if not near and begin:
        place = "setting of LakeMQ" if f"{begin}*" in UNSUPPORTED else f"{kind} here"
        return InvalidConfig(f"{name} is no {place}: {_BEGINNINGS[begin]}.")
    # below 0.7 the nearest name has often nothing to do with it: of linger.ms it is lease.ms
    near = near or difflib.get_close_matches(str(name), names, n=1, cutoff=0.7)
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
