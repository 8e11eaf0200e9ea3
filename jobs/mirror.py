"""Move from Kafka: copy topics, exactly once and in order, and the offsets of groups. A job, and `lakemq mirror`.

    spark-submit --properties-file conf/spark-defaults.conf --py-files dist/lakemq.zip \\
        --jars "$(python -m lakemq.jobs.jars --print),$(python -m lakemq.jobs.jars kafka --print)" \\
        jobs/mirror.py --path data/mq --bootstrap-servers broker:9092 --topics 'orders|invoices'

The mirror works in rounds. A round copies what Kafka has when it begins, as micro-batches of Structured Streaming.
Spark stores in its checkpoint which offsets a batch has, before it is published. Batch n is published as version n of
the checkpoint's id, all topics in one step. So a batch that a killed mirror has published is not published again.

A group continues at the first copy whose offset in Kafka is not below the group's. Copies have other offsets than their
messages: a log of Kafka may begin later than at 0, and has gaps where transactions ended and where compaction removed
messages. So each copy has its offset in Kafka in a header, and the place of a group is searched by it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.options import Pattern
from lakemq.engine.client.groups.groups import commit_for_group, read_commit_metadata
from lakemq.engine.client.sql.arrow_query import wait_for_projection
from lakemq.engine.namespace import crash
from lakemq.engine.namespace.extras import needs
from lakemq.errors import IllegalState, LakeMQError, RequestTimedOut, UnknownTopicOrPartition
from lakemq.jobs.entry import (
    Counts,
    connect_namespace,
    make_job_parser,
    parse_arguments,
    run,
    run_as_script,
    whole_number,
)
from lakemq.jobs.jars import KAFKA_JARS, MissingJars
from lakemq.jobs.serve import catch_stop_signals
from lakemq.tables.specs.messages import LIKE_SECONDS_US, MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.object_stores.files import open_files
from lakemq.tables.storage.object_stores.store_options import configure_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lakemq.engine.client.rows.receipts import PublishedRows

log = logging.getLogger("lakemq.mirror")

OFFSET_HEADER = "kafka.offset"
"""Header of a copy: its offset in Kafka, in decimal."""

TIMESTAMP_HEADER = "kafka.timestamp"
"""Header of a copy whose timestamp in Kafka LakeMQ refuses: that timestamp, in decimal milliseconds."""

_RENAMED = "kafka."
"""So begin the names of headers in copies that would delay these."""

_MIRRORED = "kafka.offset="
"""So begins the metadata of offsets that a mirror has committed; the group's offset in Kafka follows."""

_SETTINGS = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
)
"""Settings that topics keep. Not message.timestamp.type: with LogAppendTime, copies would lose their timestamps."""

_ROUND_EVERY_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Between two attempts while Kafka or the sequencer does not answer."""

_KAFKA_OUTAGES = (
    "org.apache.kafka.common.errors.RetriableException",
    "java.util.concurrent.TimeoutException",
)
"""Errors that pass when brokers are back."""

_UNRESOLVED = "No resolvable bootstrap urls"
"""So begins the error of Kafka's client when it finds no broker's address. It has the class of wrong options."""

_PROJECTED_S = 60.0

_NO_COPY = 2**63
"""Above all offsets."""

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class MirrorOptions:
    """What to mirror: topics and groups whose whole names match patterns.

    command_config: file with options of Kafka's client. name: of the mirror, whose checkpoint remembers its progress.
    outage_timeout_ms: how long Kafka or the sequencer may not answer before the mirror ends.
    """

    bootstrap_servers: str
    topics: str
    groups: str = ".*"
    command_config: str | None = None
    name: str = "kafka"
    max_records: int = 1_000_000
    until_caught_up: bool = False
    outage_timeout_ms: int = 600_000


class KafkaCluster:
    """Topics, groups and offsets of a Kafka cluster, through Kafka's admin client on Spark's class path."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, command_config: str | None) -> None:
        jvm: Any = spark._jvm
        self._jvm, self._kafka = jvm, jvm.org.apache.kafka
        properties = jvm.java.util.Properties()
        if command_config is not None:
            properties.load(jvm.java.io.FileInputStream(command_config))
        properties.setProperty("bootstrap.servers", bootstrap_servers)
        self.client_options = {name: properties.getProperty(name) for name in properties.stringPropertyNames()}
        self._properties = properties

    @cached_property
    def _admin(self) -> Any:
        """Kafka's admin client. Not made before it is needed: it fails while no broker's name can be resolved."""
        return self._kafka.clients.admin.AdminClient.create(self._properties)

    def close(self) -> None:
        if "_admin" in vars(self):
            self._admin.close()

    def read_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of the cluster, as "", and of topics. A topic that is created again has another id.

        Brokers before 2.8 have none of topics.
        """
        described = self._admin.describeTopics([*topics]).allTopicNames().get()
        ids = {topic: described[topic].topicId().toString() for topic in topics}
        ids[""] = self._admin.describeCluster().clusterId().get()
        return {name: id_ for name, id_ in ids.items() if id_ != self._kafka.common.Uuid.ZERO_UUID.toString()}

    def list_topics(self, pattern: Pattern) -> dict[str, int]:
        """Return topic -> number of partitions of the topics that match, without Kafka's internal ones."""
        names = pattern.find_matches([*self._admin.listTopics().names().get()])
        described = self._admin.describeTopics(names).allTopicNames().get()
        return {name: described[name].partitions().size() for name in names}

    def read_settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic that LakeMQ has, too, also those that Kafka's brokers set by default."""
        resources = self._kafka.common.config.ConfigResource
        resource = resources(resources.Type.TOPIC, topic)
        entries = self._admin.describeConfigs([resource]).all().get()[resource]
        settings = {name: entry.value() for name in _SETTINGS if (entry := entries.get(name)) is not None}
        if settings.get("cleanup.policy") == "":  # nothing is deleted
            settings |= {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        return settings

    def read_bounds(self, topics: Mapping[str, int]) -> tuple[Offsets, Offsets]:
        """Return the first offset of each partition, and its end, behind what open transactions hold back."""
        spec = self._kafka.clients.admin.OffsetSpec
        return self._list_offsets(topics, spec.earliest()), self._list_offsets(topics, spec.latest())

    def _list_offsets(self, topics: Mapping[str, int], spec: Any) -> Offsets:
        requested = self._jvm.java.util.HashMap()
        for topic, count in topics.items():
            for partition in range(count):
                requested.put(self._kafka.common.TopicPartition(topic, partition), spec)
        offsets = self._admin.listOffsets(requested).all().get()
        return {(tp.topic(), tp.partition()): offsets[tp].offset() for tp in offsets}

    def list_groups(self, pattern: Pattern) -> list[str]:
        """Return the consumer groups that match."""
        return pattern.find_matches([listed.groupId() for listed in self._admin.listConsumerGroups().all().get()])

    def read_group_offsets(self, group: str) -> Offsets:
        """Return the committed offsets of a group."""
        committed = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        return {(tp.topic(), tp.partition()): committed[tp].offset() for tp in committed if committed[tp] is not None}


class _StopRequested(Exception):
    """The mirror is told to stop, and begins no further batch."""


class _Outage:
    """How long to wait for a cluster or a sequencer that does not answer: longer and longer, up to a time in all."""

    def __init__(self, timeout_ms: int, steady_s: Callable[[], float]) -> None:
        self._timeout_s, self._steady_s = timeout_ms / 1000, steady_s
        self._begun_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def end(self) -> None:
        """Note that everything answers."""
        if self._begun_s is not None:
            log.info("The mirror goes on after %.0f s", self._steady_s() - self._begun_s)
        self._begun_s, self._pause_s = None, _FIRST_PAUSE_S

    def lengthen(self, trouble: str) -> float:
        """Return how long to wait now. Raises RequestTimedOut: it has lasted too long."""
        now_s = self._steady_s()
        self._begun_s = now_s if self._begun_s is None else self._begun_s
        left_s = self._begun_s + self._timeout_s - now_s
        if left_s <= 0:
            raise RequestTimedOut(
                f"The mirror has waited for {self._timeout_s:g} s, and ends. Run it again to go on. {trouble}"
            )
        pause_s = min(self._pause_s, left_s)
        log.warning("%s The mirror tries again in %.0f s, and ends after %.0f s.", trouble, pause_s, left_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


class Mirror:
    """Copies topics of a Kafka cluster into a namespace, in rounds, and then the offsets of groups."""

    def __init__(
        self,
        mq: Connection,
        spark: SparkSession,
        cluster: KafkaCluster,
        options: MirrorOptions,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        from lakemq.engine.client.format.publishing import checkpoint_of_query

        self._mq, self._spark, self._cluster, self._options = mq, spark, cluster, options
        self._checkpoint = checkpoint_of_query(mq.namespace.path, options.name)
        self._checkpoint_files = open_files(self._checkpoint, mq.namespace.storage_options)
        self._topics, self._groups = Pattern(options.topics), Pattern(options.groups)
        self._copied = self._replaced_timestamps = 0
        self._outage = _Outage(options.outage_timeout_ms, steady_s)

    def run(self, stop: Event) -> Counts:
        """Copy rounds until `stop` is set, or one round; then translate the groups. Returns counts.

        While Kafka or the sequencer does not answer, it waits. A batch whose outcome is unknown is published again
        under its number.

        Raises:
            UnknownTopicOrPartition: no topic of Kafka matches.
            IllegalState: the offsets of a topic do not continue those that were copied, or its copy was deleted.
            RequestTimedOut: Kafka or the sequencer has not answered for `outage_timeout_ms`.
            LakeMQError: messages are refused, such as MessageTooLarge. Their batch is not published.
        """
        while True:
            try:
                topics = self._run_round(stop)
                if self._options.until_caught_up or stop.is_set():
                    return self._end(topics)
                self._outage.end()
                pause_s = _ROUND_EVERY_S
            except Exception as error:
                trouble = describe_outage(error)
                if trouble is None or stop.is_set():
                    raise
                pause_s = self._outage.lengthen(trouble)
            stop.wait(pause_s)

    def _run_round(self, stop: Event) -> dict[str, int]:
        """Copy what Kafka has now. Returns topic -> number of partitions."""
        topics = self._create_topics()
        if self._count_lag(topics) and not stop.is_set():
            self._copy(topics, stop)
            log.info("%d topics: %d offsets behind Kafka", len(topics), self._count_lag(topics))
        return topics

    def _end(self, topics: Mapping[str, int]) -> Counts:
        """Translate the groups. Returns counts."""
        translated, refused = self._translate_groups(topics)
        counts = {"topics": len(topics), "records": self._copied, "lag": self._count_lag(topics)}
        more = {"groups": translated, "groups_refused": refused, "timestamps_replaced": self._replaced_timestamps}
        return counts | more

    def _create_topics(self) -> dict[str, int]:
        """Create missing topics and partitions. Returns topic -> number of partitions.

        Raises IllegalState: a copy is gone. A new one would lack what Spark's checkpoint has as copied.
        """
        topics = self._cluster.list_topics(self._topics)
        if not topics:
            raise UnknownTopicOrPartition("No topic of Kafka matches.", found=self._options.topics)
        existing = {topic.topic: topic.partitions for topic in self._mq.topics.list()}
        self._check_source(topics, existing)
        if deleted := sorted({topic for topic, _ in self._read_offsets("offsets")} & topics.keys() - existing.keys()):
            raise IllegalState(
                "Copies were deleted, and the mirror copies no message again. Leave these topics out of --topics, and"
                " mirror them with another --name.",
                found=", ".join(deleted),
            )
        for topic, count in topics.items():
            if topic not in existing:
                config = self._cluster.read_settings(topic) | {"partitioner": "murmur2"}
                self._mq.topics.create(topic, count, config)
                log.info("Created topic %s with %d partitions", topic, count)
            elif existing[topic] < count:
                self._mq.topics.alter(topic, partitions=count)
        return topics

    def _check_source(self, topics: Iterable[str], existing: Iterable[str]) -> None:
        """Compare the ids of the cluster and its topics with those of the copies, and keep the ids of new topics.

        existing: topics of LakeMQ. Raises IllegalState: offsets of another cluster, or of a topic that was created
        again, are other offsets.
        """
        newest = self._find_newest("source")
        kept = {} if newest is None else json.loads(self._checkpoint_files.get(f"source/{newest}"))
        ids = self._cluster.read_ids(topics)
        changed = {name: id_ for name, id_ in ids.items() if kept.get(name, id_) != id_}
        if "" in changed:
            raise IllegalState(
                f"The mirror {self._options.name} copies another cluster. Give the brokers of that one, or mirror this"
                " one with another --name; topics with the same names need another namespace.",
                found=changed[""],
                expected=kept[""],
            )
        begun = {topic for topic, _ in self._read_offsets("offsets")}
        for topic in changed:
            if topic in begun or (topic in existing and any(self._mq.end_offsets(topic).values())):
                raise IllegalState(
                    f"Topic {topic} was deleted in Kafka and created again. Delete its copy, leave it out of --topics,"
                    " and mirror it with another --name.",
                    found=f"its id {changed[topic]}",
                    expected=kept[topic],
                )
        if ids.items() - kept.items():
            self._checkpoint_files.put(f"source/{(newest or 0) + 1}", json.dumps(kept | ids).encode())

    def _count_lag(self, topics: Mapping[str, int]) -> int:
        """Return how many offsets of Kafka are not copied. Raises IllegalState: they do not continue those copied."""
        firsts, ends = self._cluster.read_bounds(topics)
        copied, planned, lag = self._read_offsets("commits"), self._read_offsets("offsets"), 0
        for tp, end in ends.items():
            position = copied.get(tp)
            if tp not in planned and self._mq.end_offsets(tp[0]).get(tp[1]):
                raise IllegalState(
                    f"The topic has messages that the mirror {self._options.name} has not copied. Delete the topic, or"
                    " mirror with the name and the namespace that it was mirrored with.",
                    found=f"{tp[0]}-{tp[1]}",
                )
            if position is not None and position > end:
                raise IllegalState(
                    "The partition ends before the copied messages: the topic was created again in Kafka. Delete the"
                    " copy, leave the topic out of --topics, and mirror it with another --name.",
                    found=f"{tp[0]}-{tp[1]} ends at {end}",
                    expected=f"at least {position}",
                )
            if position is not None and position < firsts[tp]:
                log.warning("%s-%d: Kafka has deleted %d offsets before they were copied", *tp, firsts[tp] - position)
            lag += end - max(position or 0, firsts[tp])
        return lag

    def _read_offsets(self, folder: str) -> Offsets:
        """Return the end of the newest batch that is published (`commits`) or planned (`offsets`)."""
        newest = self._find_newest(folder)
        if newest is None:
            return {}
        line = self._checkpoint_files.get(f"offsets/{newest}").decode().splitlines()[-1]
        return {(topic, int(p)): offset for topic, offsets in json.loads(line).items() for p, offset in offsets.items()}

    def _find_newest(self, folder: str) -> int | None:
        """Return the highest number that an object of this folder has as its name."""
        names = (name.rpartition("/")[2] for name in self._checkpoint_files.list(f"{folder}/"))
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def _copy(self, topics: Mapping[str, int], stop: Event) -> None:
        """Copy what Kafka has now, batch by batch, until `stop` is set."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        from lakemq.engine.client.format.publishing import publish_batch
        from lakemq.jobs.source_stream import SourceStream

        def check_source() -> None:
            # After the rows were read: a topic that is created again between planning and reading has other messages at
            # the planned offsets.
            self._check_source(topics, topics)

        def publish(batch: DataFrame, stream_id: str, number: int) -> PublishedRows:
            if stop.is_set():
                raise _StopRequested
            name, observation = self._options.name, Observation()
            log.info("batch %d of %s: %d offsets behind Kafka", number, name, self._count_lag(topics))
            counted = batch.observe(observation, F.count_if(~is_accepted_timestamp()).alias("replaced"))
            done = publish_batch(self._mq, to_copies(counted), sorted(topics), name, (stream_id, number), check_source)
            self._outage.end()
            if done.record_count and (count := observation.get["replaced"]):
                self._replaced_timestamps += count
                log.warning(
                    "batch %d of %s: %d messages have the time of their arrival, and in the header %s the timestamp of"
                    " Kafka: it is before 1970, after 9999 or in seconds",
                    number,
                    name,
                    count,
                    TIMESTAMP_HEADER,
                )
            return done

        stream = SourceStream(self._mq, self._options.name, publish, self._checkpoint, crash.from_environment())
        try:
            stream.publish_available(self._read_topics(topics))
        except _StopRequested:
            pass
        finally:
            self._copied += stream.record_count

    def _read_topics(self, topics: Mapping[str, int]) -> DataFrame:
        """Return the stream of committed messages. A partition of Kafka is a task, in order."""
        options = {f"kafka.{name}": value for name, value in self._cluster.client_options.items()} | {
            "kafka.isolation.level": "read_committed",
            "subscribe": ",".join(topics),
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self._options.max_records),
            "fetchOffset.numRetries": "1",  # the mirror tries again, and says so
            # Kafka's retention may delete what a batch was to copy; it would also have gone after it was copied
            "failOnDataLoss": "false",
        }
        return self._spark.readStream.format("kafka").options(**options).load()

    def _translate_groups(self, topics: Mapping[str, int]) -> tuple[int, int]:
        """Commit the places of groups. Returns how many groups were translated, and how many were refused."""
        translated = refused = 0
        redriven = list_redriven(self._mq)
        for group in self._cluster.list_groups(self._groups):
            offsets = self._cluster.read_group_offsets(group)
            committed = {tp: at for tp, at in offsets.items() if tp[1] < topics.get(tp[0], 0)}
            if not committed:
                continue
            try:
                self._translate(group, committed, redriven)
                translated += 1
            except LakeMQError as error:
                if error.retriable:
                    raise
                log.warning("Group %s is not translated: %s", group, error)
                refused += 1
        return translated, refused

    def _translate(
        self, group: str, committed: Offsets, redriven: Mapping[TopicPartition, Sequence[tuple[int, int]]]
    ) -> None:
        """Commit the places of a group, but for partitions in which it has committed by itself: it has moved already.

        Raises:
            UnknownMemberId: the group has members. They may be ahead of Kafka.
            LakeMQError: the group cannot be changed for another reason.
        """
        metadata = read_commit_metadata(self._mq.requester, group)
        moved = {tp for tp, text in metadata.items() if not text.startswith(_MIRRORED)}
        commits = {
            tp: (find_copy(self._mq, *tp, offset, redriven.get(tp, ())), f"{_MIRRORED}{offset}")
            for tp, offset in committed.items()
            if tp not in moved
        }
        if kept := sorted(moved & committed.keys()):
            log.warning("Group %s stays where it has committed in LakeMQ: %s", group, kept)
        commit_for_group(self._mq.requester, group, commits)


def is_accepted_timestamp() -> Column:
    """Return whether LakeMQ accepts the timestamp of a row of Spark's Kafka source."""
    from pyspark.sql import functions as F

    us = F.unix_micros("timestamp")
    is_like_seconds = us.between(LIKE_SECONDS_US.start, LIKE_SECONDS_US.stop - 1)
    return us.between(MIN_TIMESTAMP_US, MAX_TIMESTAMP_US) & ~is_like_seconds


def to_copies(rows: DataFrame) -> DataFrame:
    """Return the messages to publish of rows of Spark's Kafka source, with OFFSET_HEADER.

    A timestamp that LakeMQ refuses is null, so that the message gets the time of its arrival. TIMESTAMP_HEADER keeps
    it. Headers that would delay the copy, and so change its place, get other names.
    """
    from pyspark.sql import functions as F

    from lakemq.engine.client.publish.message_rows import HEADERS_DDL
    from lakemq.engine.client.rows.delay_rule import DELAY_HEADERS

    def build_header(name: str, number: Column) -> Column:
        value = number.cast("string").cast("binary").alias("value")
        return F.array(F.struct(F.lit(name).alias("key"), value)).cast(HEADERS_DDL)

    def rename(header: Column) -> Column:
        name, delays = header["key"], header["key"].isin(*DELAY_HEADERS)
        renamed = F.when(delays, F.concat(F.lit(_RENAMED), name)).otherwise(name)
        return F.struct(renamed.alias("key"), header["value"].alias("value"))

    none, is_accepted = F.array().cast(HEADERS_DDL), is_accepted_timestamp()
    own = F.coalesce(F.col("headers").cast(HEADERS_DDL), none)
    would_delay = F.arrays_overlap(own["key"], F.array(*map(F.lit, DELAY_HEADERS)))
    headers = F.concat(
        F.when(would_delay, F.transform(own, rename)).otherwise(own),
        F.when(is_accepted, none).otherwise(build_header(TIMESTAMP_HEADER, F.unix_millis("timestamp"))),
        build_header(OFFSET_HEADER, F.col("offset")),
    )
    timestamp = F.when(is_accepted, F.col("timestamp")).alias("timestamp")
    return rows.select("topic", "partition", "key", "value", headers.alias("headers"), timestamp)


def describe_outage(error: Exception) -> str | None:
    """Return a sentence if an error passes when Kafka, the sequencer or the store answers again; else None."""
    if isinstance(error, LakeMQError):
        return str(error) if error.retriable else None
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        of_class, is_unresolved = java.getClass(), str(java.getMessage()).startswith(_UNRESOLVED)
        while of_class is not None:
            if of_class.getName() in _KAFKA_OUTAGES or is_unresolved:
                return f"Kafka does not answer: {java.getMessage()}."
            of_class = of_class.getSuperclass()
        java = java.getCause()
    return None


def find_copy(
    mq: Connection, topic: str, partition: int, kafka_offset: int, redriven: Sequence[tuple[int, int]] = ()
) -> int:
    """Return where a group continues that has committed this offset in Kafka.

    That is at the first message whose offset in Kafka is not lower, or that was not copied; at the end if there is
    none. Copies are ascending by their offsets in Kafka, with gaps. From one copy to another there are at most as many
    messages as offsets in Kafka, if all are copies. That bounds the search, and is checked. So without gaps there is
    little to search.

    Invariant: the message before the result is a copy below the offset, or there is none. So no copy is left out, also
    if other messages lie between copies: the search takes each of these as a place to continue at.

    redriven: offsets of messages that came back from dead letters, with the headers of their copies: first and last.
    """

    @cache
    def read_next(offset: int) -> tuple[int, int]:
        """Return offset and Kafka's offset of the first message from here on; _NO_COPY: it was not copied."""
        fetched = mq.fetch(topic, start={partition: offset}, partitions=[partition], include_expired=True)
        table = next(fetched.pieces(limit=1), None)
        if table is None or not table.num_rows:
            return end, _NO_COPY
        at = table.column("offset")[0].as_py()
        headers = table.column("headers")[0].as_py() or ()
        numbers = [header["value"] or b"" for header in headers if header["key"] == OFFSET_HEADER]
        is_copy = numbers and numbers[-1].isdigit() and not any(first <= at <= last for first, last in redriven)
        return at, int(numbers[-1]) if is_copy else _NO_COPY

    def is_below(offset: int) -> bool:
        return read_next(offset)[1] < kafka_offset

    low, end = mq.beginning_offsets(topic)[partition], mq.end_offsets(topic)[partition]
    if low == end:
        return end
    (first, first_copied), (_, last_copied) = read_next(low), read_next(end - 1)
    high = min(end, first + max(0, kafka_offset - first_copied)) if first_copied != _NO_COPY else low
    if high < end and is_below(high):
        high = end
    if last_copied != _NO_COPY:
        least = end - 1 - max(0, last_copied - kafka_offset)
        if low < least <= high and is_below(least - 1):
            low = least
    return low + bisect_left(range(low, high), True, key=lambda offset: not is_below(offset))


def list_redriven(mq: Connection) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return the first and last offsets of messages that came back from dead letters. Raises RequestTimedOut."""
    wait_for_projection(mq.namespace.store, _PROJECTED_S, mq.serving)
    is_redriven = (pc.field("kind") == "data") & (pc.field("origin") == "redrive")
    rows = mq.namespace.store.open(SEGMENTS).read(["topic", "partition", "base_offset", "last_offset"], is_redriven)
    ranges: dict[TopicPartition, list[tuple[int, int]]] = {}
    for row in rows.to_pylist():
        tp = row["topic"], row["partition"]
        ranges.setdefault(tp, []).append((row["base_offset"], row["last_offset"]))
    return ranges


def open_session(master: str | None = None) -> SparkSession:
    """Return a Spark session with Kafka's source. Raises MissingExtra, MissingJars, MissingJava, IllegalState."""
    with needs("spark"):  # not at the top: if the extra is missing, the job must report that in its last line
        from py4j.protocol import Py4JJavaError

        from lakemq.jobs.session import silence_error_logs, spark_session
        from lakemq.jobs.source_stream import prepare_session
    silence_error_logs()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    extra = None if is_submitted else {"spark.jars": ",".join(map(str, KAFKA_JARS.read_kept()))}
    spark = spark_session("lakemq mirror", master, extra)
    prepare_session(spark)
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    try:
        loader.loadClass("org.apache.spark.sql.kafka010.KafkaSourceProvider")
    except Py4JJavaError:
        raise MissingJars(
            f"{KAFKA_JARS.title} are not in this session. Give spark-submit --jars"
            ' "$(python -m lakemq.jobs.jars --print),$(python -m lakemq.jobs.jars kafka --print)"'
        ) from None
    return spark


def mirror(mq: Connection, spark: SparkSession, options: MirrorOptions) -> Counts:
    """Mirror until SIGTERM or SIGINT, or once. Returns counts. Raises what `Mirror.run` raises."""
    configure_spark(spark, mq.namespace.files.root, mq.namespace.storage_options)
    cluster = KafkaCluster(spark, options.bootstrap_servers, options.command_config)
    try:
        with catch_stop_signals() as stop:
            return Mirror(mq, spark, cluster, options).run(stop)
    finally:
        cluster.close()


EXAMPLES = """\
--path data/mq --bootstrap-servers broker:9092 --topics orders
--path data/mq --bootstrap-servers broker:9092 --topics shop[.].* --command-config ssl.properties
"""


def parser() -> argparse.ArgumentParser:
    parser = make_job_parser("mirror", "Copy topics and offsets of groups from Kafka.", EXAMPLES, needs_spark=True)
    parser.add_argument("--master", help="Spark's master, unless spark-submit sets it")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="brokers of Kafka")
    parser.add_argument("--topics", required=True, metavar="PATTERN", help="topics, by whole names")
    parser.add_argument("--groups", default=".*", metavar="PATTERN", help="groups (%(default)s)")
    parser.add_argument("--command-config", metavar="FILE", help="properties of Kafka's client")
    parser.add_argument("--name", default="kafka", help="permanent name of the mirror (%(default)s)")
    parser.add_argument("--max-records", type=whole_number, default=1_000_000, metavar="N", help="messages of a batch")
    parser.add_argument("--until-caught-up", action="store_true", help="end when all that Kafka has now is copied")
    help_ = "how long Kafka or the sequencer may not answer before the mirror ends (%(default)s)"
    parser.add_argument("--outage-timeout-ms", type=whole_number, default=600_000, metavar="MS", help=help_)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(parser(), arguments)

    def job() -> Counts:
        spark = open_session(options.master)
        chosen = MirrorOptions(**{field.name: getattr(options, field.name) for field in fields(MirrorOptions)})
        with connect_namespace(options, spark) as mq, mq.serving():
            return mirror(mq, spark, chosen)

    return run("mirror", options, job)


if __name__ == "__main__":
    run_as_script(main)
