"""A real Kafka for tests. Its jars come from Maven once, and stay in the user's cache folder."""

import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyspark
from fetched_programs import fetch_once, find_free_port, run_server
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from lakemq.jobs import jars

VERSION = "4.3.1"
CLUSTER_ID = "bGFrZW1xJ3MgY2x1c3Rlcg"
PYSPARK = Path(pyspark.__file__).parent

_POM = f"""\
<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{VERSION}</version></dependency></dependencies></project>"""
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=200
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def fetch_jars() -> Path:
    """Return the folder of the jars of broker and clients."""

    def install(folder: Path) -> None:
        (folder / "pom.xml").write_text(_POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(command, cwd=folder, check=True)

    return fetch_once(f"kafka-{VERSION}", "mvn", f"kafka_2.13-{VERSION}.jar", install).parent


class Record(NamedTuple):
    """A message of Kafka."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


class Kafka:
    """A broker, and Kafka's own clients in a JVM of their own."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], gateway: JavaGateway) -> None:
        self.process = process
        self.address, self._gateway, self._kafka = f"127.0.0.1:{port}", gateway, gateway.jvm.org.apache.kafka
        self._admin = self._kafka.clients.admin.AdminClient.create(self._properties({}))
        self._producer = self._new_producer({})

    def _properties(self, options: Mapping[str, str]) -> Any:
        properties = self._gateway.jvm.java.util.Properties()
        for name, value in {"bootstrap.servers": self.address, **options}.items():
            properties.setProperty(name, value)
        return properties

    def _new_producer(self, options: Mapping[str, str]) -> Any:
        name = "org.apache.kafka.common.serialization.ByteArraySerializer"
        serializers = {"key.serializer": name, "value.serializer": name}
        return self._kafka.clients.producer.KafkaProducer(self._properties(serializers | dict(options)))

    def _tp(self, topic: str, partition: int) -> Any:
        return self._kafka.common.TopicPartition(topic, partition)

    def create_topic(self, topic: str, partitions: int, **config: str) -> None:
        """config: settings, with `_` instead of `.`."""
        jvm = self._gateway.jvm
        made = self._kafka.clients.admin.NewTopic(
            topic, jvm.java.util.Optional.of(partitions), jvm.java.util.Optional.empty()
        )
        made.configs({name.replace("_", "."): value for name, value in config.items()})
        self._admin.createTopics([made]).all().get()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and return when the broker does not know it any more."""
        self._admin.deleteTopics([topic]).all().get()
        deadline_s = time.monotonic() + 60
        while topic in {*self._admin.listTopics().names().get()}:
            assert time.monotonic() < deadline_s, f"{topic} is still there"

    def add_partitions(self, topic: str, count: int) -> None:
        """Let the topic have so many partitions."""
        to = self._kafka.clients.admin.NewPartitions.increaseTo(count)
        self._admin.createPartitions({topic: to}).all().get()

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete what is before an offset, as retention does."""
        # py4j finds no static method that has the name of another one
        jvm, name = self._gateway.jvm, "org.apache.kafka.clients.admin.RecordsToDelete"
        methods = jvm.java.lang.Class.forName(name).getMethods()
        arguments = self._gateway.new_array(jvm.java.lang.Object, 1)
        arguments[0] = before
        target = next(m for m in methods if m.getName() == "beforeOffset" and m.getParameterCount()).invoke(
            None, arguments
        )
        self._admin.deleteRecords({self._tp(topic, partition): target}).all().get()

    def send(
        self,
        topic: str,
        partition: int,
        messages: Sequence[tuple[str, str | None]],
        producer: Any = None,
        timestamp_ms: int | None = None,
        more_headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Send messages of an hour ago, each a key and a value, and wait until they are stored."""
        producer, jvm = producer or self._producer, self._gateway.jvm
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000 - 3_600_000
        for number, (key, value) in enumerate(messages):
            headers = jvm.org.apache.kafka.common.header.internals.RecordHeaders()
            for name, text in {"number": str(number), **more_headers}.items():
                headers.add(name, text.encode())
            producer.send(
                jvm.org.apache.kafka.clients.producer.ProducerRecord(
                    topic,
                    partition,
                    timestamp_ms + number,
                    key.encode(),
                    None if value is None else value.encode(),
                    headers,
                )
            )
        producer.flush()

    def begin_transaction(self, topic: str, partition: int, messages: Sequence[tuple[str, str | None]]) -> Any:
        """Send messages in a transaction, which stays open. Returns its producer."""
        producer = self._new_producer(
            {"transactional.id": f"id-{uuid.uuid4().hex}", "transaction.timeout.ms": "600000"}
        )
        producer.initTransactions()
        producer.beginTransaction()
        self.send(topic, partition, messages, producer=producer)
        return producer

    def send_in_transaction(
        self, topic: str, partition: int, messages: Sequence[tuple[str, str | None]], commits: bool
    ) -> None:
        """Send messages in a transaction, and commit or abort it."""
        producer = self.begin_transaction(topic, partition, messages)
        producer.commitTransaction() if commits else producer.abortTransaction()
        producer.close()

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a group without members."""
        metadata = self._kafka.clients.consumer.OffsetAndMetadata
        committed = {self._tp(*tp): metadata(at) for tp, at in offsets.items()}
        self._admin.alterConsumerGroupOffsets(group, committed).all().get()

    def end(self, topic: str, partition: int) -> int:
        """Return the end of a partition."""
        latest = self._kafka.clients.admin.OffsetSpec.latest()
        tp = self._tp(topic, partition)
        return int(self._admin.listOffsets({tp: latest}).all().get()[tp].offset())

    def read(self, topic: str, partition: int) -> list[Record]:
        """Return all committed messages of a partition that Kafka still has."""
        name = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        options = {"key.deserializer": name, "value.deserializer": name, "isolation.level": "read_committed"}
        consumer = self._kafka.clients.consumer.KafkaConsumer(self._properties(options))
        tp, end = self._tp(topic, partition), self.end(topic, partition)
        consumer.assign([tp])
        consumer.seekToBeginning([tp])
        records = []
        while consumer.position(tp) < end:
            for record in consumer.poll(self._gateway.jvm.java.time.Duration.ofMillis(200)).records(tp):
                headers = tuple((header.key(), header.value()) for header in record.headers().toArray())
                records.append(Record(record.offset(), record.key(), record.value(), headers, record.timestamp()))
        consumer.close()
        return records


@contextmanager
def serve_kafka(folder: Path) -> Iterator[Kafka]:
    """Run a broker in an empty folder until the block ends, with Kafka's own clients in a JVM of their own."""
    port, controller_port = find_free_port(), find_free_port()
    properties = folder / "server.properties"
    properties.write_text(_PROPERTIES.format(folder=folder, port=port, controller_port=controller_port))
    java = [jars.java_command(), "-Xmx768m", "-cp", f"{fetch_jars()}/*"]
    format_storage = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
    subprocess.run(format_storage, check=True, timeout=120, capture_output=True)
    py4j_jar = next((PYSPARK / "jars").glob("py4j-*.jar"))
    with run_server([*java, "kafka.Kafka", str(properties)], port, folder) as process:
        client_port = launch_gateway(
            jarpath=str(py4j_jar),
            classpath=f"{fetch_jars()}/*",
            die_on_exit=True,
            java_path=jars.java_command(),
            javaopts=["-Xmx300m"],
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=client_port, auto_convert=True))
        try:
            yield Kafka(port, process, gateway)
        finally:
            gateway.shutdown()
