"""The public API: what `lakemq.connect` returns."""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pyarrow as pa

from lakemq.tables.storage.beats import Beats

from ..namespace import crash
from ..namespace.bell import Bell
from ..namespace.clock import Clock, SystemClock
from ..namespace.data_file import new_file_id
from ..namespace.namespace import Namespace
from ..namespace.process import OwnLock, same_process
from ..protocol.errors import IllegalState, InvalidConfig, InvalidRequest
from ..protocol.values.log import ApplicationVersion
from ..protocol.values.producers import TransactionRef
from ..protocol.values.state import State
from .arguments import (
    fetch_position,
    flag,
    listed,
    mapped,
    moment,
    one_of,
    partition_number,
    text,
    topic_name,
    topic_names,
    whole_number,
    whole_numbers,
)
from .consume.consumer import Consumer
from .consume.consumers import Consumers
from .consume.dead_letters import DeadLetters
from .consume.group_consumer import GroupConsumer
from .consume.group_stream import GroupStream
from .consume.groups import Groups
from .consume.resets import Resets
from .fetch.fetched import Fetched
from .fetch.fetching import Fetching
from .fetch.plan import Bounds, FetchPlan, Isolation, Position
from .publish.arrow import ArrowPublisher, Asked, Body, Spread
from .publish.delayed import DelayedMessages
from .publish.few import few_of_table
from .publish.gate import Gates
from .publish.given import arrow_table, check_dataframe, ordered, selected
from .publish.options import producer_options
from .publish.producer import Producer
from .publish.publication import ON_ERROR, OnError, Publication
from .publish.receipts import PublishedRows
from .publish.request import COLUMNS, body_of
from .publish.routing import RouteCache
from .publish.transactional import TransactionalProducer
from .requester import Requester
from .topics import Topics
from .transactions.ids import TRANSACTION_TIMEOUT_MS, TransactionalIds
from .transactions.operations import Transactions
from .transactions.scope import TransactionScope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..sequencer.sequencer import Sequencer
    from ..sequencer.serving import Serving
    from .publish.inbox import Drained
    from .publish.spark import SparkPublisher
    from .publish.streaming import Streamed

T = TypeVar("T")
Closable = TypeVar("Closable", "Producer", "Serving", "GroupConsumer")


def new_id() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex


class Connection:
    """A namespace as a user sees it. Thread-safe; close it, or use it as a context manager.

    It belongs to the process that made it: one that was forked from that is refused (IllegalState).
    """

    def __init__(
        self,
        namespace: Namespace,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
        reached: crash.Reached | None = None,
    ) -> None:
        self.namespace, self._spark = namespace, spark
        self._clock = clock or SystemClock()
        self._reached = reached or crash.from_environment()
        self._pid = os.getpid()
        self._serving: list[Serving] = []
        self._producers: set[Producer] = set()
        self._members: set[GroupConsumer] = set()
        self._closing = OwnLock("This connection")
        self._closed = False
        timeout_ms = namespace.config.ms("request.timeout.ms")
        self.requester = Requester(
            namespace.mailbox, self._clock, new_id, timeout_ms, self._reached, namespace.namespace_id
        )
        self._gates = Gates(namespace.config.expectations)
        self._fetching = Fetching(namespace, self._clock, spark)
        beats = Beats(namespace.files)
        self._consumers = Consumers(self.requester, self._fetching, beats, self._clock, new_id, self._check_open)
        self._ids = TransactionalIds(self.requester, self._clock, 4 * timeout_ms)
        # also while the connection closes, for producers that send what they have
        self._routes = RouteCache(self._fetching.look)
        self._names = itertools.count(1)
        self._spread = Spread(int(new_id()[:6], 16))

    # -- topics -----------------------------------------------------------------------------------------

    @cached_property
    def topics(self) -> Topics:
        """Create, list, describe, alter and delete topics."""
        return Topics(self.requester, self._look, self._routes.forget)

    def state(self) -> State:
        """Topics and partitions as of the newest step; others that look for a newer one do not change them."""
        self._check_open()
        return self._fetching.state()

    def _look(self, what: Callable[[State], T]) -> T:
        self._check_open()
        return self._fetching.look(what)

    # -- publishing -------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        data: DataFrame | pa.Table | Any,
        *,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        timestamp: Any = None,
        partition: Any = None,
        order_by: Any = None,
        on_error: OnError = "dead_letter",
        txn_app_id: str | None = None,
        txn_version: int | None = None,
        deliver_at: Any = None,
        delay_ms: Any = None,
        ttl_ms: Any = None,
    ) -> PublishedRows:
        """Publish all rows of a DataFrame or Arrow table, together or not at all.

        data: a DataFrame of Spark; or an Arrow table or whatever speaks Arrow's C stream, as pandas and Polars do.
        key, value, headers, timestamp, partition: names of columns (for a DataFrame also expressions); left out, the
        columns of those names are taken where they are there. deliver_at: a column of times (or of epoch milliseconds),
        or one time for all rows, before which a message is in no log; delay_ms: the same as a delay. ttl_ms: for how
        long they are delivered, a column or one number. order_by: columns by which the rows of a key are ordered.
        txn_app_id, txn_version: Delta's names and rule, a version not above the last is not published again.
        Raises the error it was refused with; nothing of it is published then.
        """
        self._check_open()
        topic = topic_name("topic", topic)
        on_error = one_of("on_error", on_error, ON_ERROR)  # type: ignore[assignment]
        publication = Publication(topic, on_error, _application(topic, txn_app_id, txn_version))
        columns = {
            "key": key,
            "value": value,
            "headers": headers,
            "timestamp": timestamp,
            "partition": partition,
            "deliver_at": deliver_at,
            "delay_ms": delay_ms,
            "ttl_ms": ttl_ms,
        }
        return self._publish(publication, data, columns, order_by)

    def _publish(
        self, publication: Publication, data: DataFrame | pa.Table | Any, columns: Mapping[str, Any], order_by: Any
    ) -> PublishedRows:
        gate = self._gates.of(publication.destination)
        if gate is not None:
            publication = replace(publication, expectations=gate.suite.told)
        rows = arrow_table(data)
        if rows is not None:
            given = ordered(rows, order_by)
            table = selected(given, columns)
            now_ms, to = self._clock.now_ms(), publication.destination
            body: Body
            asked: Asked
            if gate is not None:
                body, wanted = body_of(table, to, now_ms)
                asked = gate.asked(given, wanted)
            else:
                body, asked = few_of_table(table, to, now_ms) or body_of(table, to, now_ms)
            return self._arrow_publisher().publish(publication, body, asked)
        check_dataframe("data", data, "a DataFrame (of Spark, pandas, ...) or an Arrow table")
        return PublishedRows.of(self.spark_publisher().publish(publication, data, columns, order_by, gate))

    def publish_stream(
        self, topic: str, stream: DataFrame, *, query: str, checkpoint: str | None = None, **how: Any
    ) -> Streamed:
        """Publish all that the source of a streaming DataFrame has by now, exactly once by the name of the query.

        how: columns and on_error, as in `publish`. checkpoint: where Structured Streaming keeps its notes; the
        namespace keeps a copy, so that it may be lost. Raises IllegalState, InvalidRequest, and what `publish` raises.
        """
        from .publish.streaming import publish_available  # pyspark is heavy, and not every client has it

        def publish(batch: DataFrame, batch_id: int) -> PublishedRows:
            return self.publish(topic, batch, txn_app_id=query, txn_version=batch_id, **how)

        columns = {name: how.get(name) for name in COLUMNS}
        if unknown := how.keys() - {*COLUMNS, "order_by", "on_error"}:
            raise InvalidRequest("Not an option of a published stream.", found=sorted(unknown)[0])
        one_of("on_error", how.get("on_error", "dead_letter"), ON_ERROR)
        topic, query = topic_name("topic", topic), text("query", query)
        checkpoint = None if checkpoint is None else text("checkpoint", checkpoint)
        check_dataframe("stream", stream, "a streaming DataFrame of Spark")
        self.spark_publisher().check(topic, stream, columns, self._gates.of(topic))
        return publish_available(self.namespace, stream, query, topic, publish, checkpoint, self._reached)

    def drain_inbox(self) -> Drained:
        """Publish what SQL inserted into `inbox`, exactly once. Raises IllegalState, also without a Spark session."""
        if self._spark is None:
            raise IllegalState("No Spark session: connect with lakemq.connect(path, spark=...).")
        from .publish.inbox import Inbox  # pyspark is heavy, and not every client has it

        return Inbox(self.namespace, self.spark_publisher(), self._spark, self._reached).drain()

    def spark_publisher(self) -> SparkPublisher:
        """Of what Spark's tasks write."""
        from .publish.spark import SparkPublisher  # pyspark is heavy, and not every client has it

        same_process(self._pid, "This connection")
        return SparkPublisher(self.namespace, self.requester, self.state, self._clock, self._reached)

    @overload
    def producer(self, transactional_id: None = None, **options: Any) -> Producer: ...

    @overload
    def producer(
        self, transactional_id: str, *, transaction_timeout_ms: int = ..., **options: Any
    ) -> TransactionalProducer: ...

    def producer(
        self,
        transactional_id: str | None = None,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **options: Any,
    ) -> Producer:
        """A producer for records and tables; docs/settings.md has its options.

        transactional_id: it sends inside transactions only, and fences who had the id before. Raises InvalidConfig,
        InvalidRequest, InvalidTransactionTimeout, IllegalState.
        """
        self._check_open()
        chosen = producer_options(options, transactional_id is not None)
        given = self._arrow_publisher(), self.requester, self._clock, chosen
        if transactional_id is None:
            return self._kept(Producer(*given, self._producers.discard), self._producers.add)
        transactional_id = text("transactional_id", transactional_id)
        manager = self._ids.taken_anew(transactional_id, _timeout_ms(transaction_timeout_ms))
        producer = TransactionalProducer(*given, manager, self._producers.discard)
        return self._kept(producer, self._producers.add)

    def _kept(self, one: Closable, keep: Callable[[Closable], None]) -> Closable:
        """To be closed with the connection, unless that is closed already."""
        with self._closing.own:
            if not self._closed:
                keep(one)
                return one
        one.close()
        raise IllegalState("This connection is closed.")

    # -- transactions -----------------------------------------------------------------------------------

    def transaction(
        self,
        transactional_id: str,
        *,
        batch_id: int | None = None,
        transaction_timeout_ms: int | None = None,
    ) -> TransactionScope[PublishedRows]:
        """A transaction for DataFrames, Arrow tables and offsets, as a context manager; an exception aborts it.

        The first one under an id in this process fences whoever had the id before. batch_id: of the micro-batch of a
        stream; once that is committed, its repeat publishes nothing. transaction_timeout_ms: left out, that of the
        first one; another is refused. Raises InvalidRequest, InvalidConfig, InvalidTransactionTimeout, IllegalState.
        """
        self._check_open()
        transactional_id = text("transactional_id", transactional_id)
        batch_id = None if batch_id is None else whole_number("batch_id", batch_id, 0, 2**62)
        timeout_ms = None if transaction_timeout_ms is None else _timeout_ms(transaction_timeout_ms)
        manager, nothing = self._ids.taken(transactional_id, timeout_ms), PublishedRows([], duplicate=True)
        return TransactionScope(manager, self._publish_inside, nothing, batch_id)

    @cached_property
    def transactions(self) -> Transactions:
        """List, describe and abort transactions, as an operator."""
        return Transactions(self.requester, self._whole_state, self.namespace.files.time_ms)

    @cached_property
    def delayed(self) -> DelayedMessages:
        """Schedule delayed messages, see what waits, and cancel by receipt."""
        return DelayedMessages(
            self._arrow_publisher,
            self.requester,
            self._whole_state,
            self._look,
            self._fetching.follow_all,
            self.namespace,
            self._clock,
        )

    @cached_property
    def groups(self) -> Groups:
        """Groups: their settings and members, what they have committed, and how much is left to them."""
        resets = Resets(self._whole_state, self._fetching.offsets_for_times, self._clock.now_ms)
        retention_ms = self.namespace.config.ms("offsets.retention.ms")
        return Groups(self._whole_state, self.requester, resets, retention_ms)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """What groups gave up: look at it, send it back where it comes from, or be done with it."""
        timeout_ms = self.namespace.config.ms("request.timeout.ms")
        return DeadLetters(self.requester, self._open_fetching, self._clock, timeout_ms)

    def _open_fetching(self) -> Fetching:
        self._check_open()
        return self._fetching

    def _whole_state(self) -> State:
        self._check_open()
        return self._fetching.whole_state()

    def _publish_inside(
        self, topic: str, data: DataFrame | pa.Table, transaction: TransactionRef, columns: Mapping[str, Any]
    ) -> PublishedRows:
        named = dict(columns)
        order_by = named.pop("order_by", None)
        unknown = named.keys() - set(COLUMNS)
        if unknown:
            raise InvalidRequest("Not an option of a publish inside a transaction.", found=sorted(unknown)[0])
        wanted = {name: named.get(name) for name in COLUMNS}
        publication = Publication(topic_name("topic", topic), "fail", transaction=transaction)
        return self._publish(publication, data, wanted, order_by)

    def consumer(
        self,
        group: str,
        *,
        topics: Sequence[str] = (),
        assign: Sequence[str | tuple[str, int]] = (),
        protocol: str | None = None,
        **options: Any,
    ) -> Consumer:
        """A member of the group, which shares the partitions of `topics` with others; or a reader of those in `assign`.

        protocol: queue, in which messages are acknowledged (QueueConsumer), or cooperative or classic, in which offsets
        are committed (GroupConsumer); left out, as the group is, queue where it is new. Instead of topics a member may
        have a pattern=, a regular expression (RE2's) that whole names of topics match, those that come later too.
        assign: topics, of which it reads all partitions, and (topic, partition) pairs; it shares with nobody
        (Consumer), and the group has no members. Raises InvalidGroupId, InvalidTopic, InvalidConfig, InvalidRequest,
        InvalidRegularExpression, and what those raise.
        """
        self._check_open()
        given = listed("assign", assign)
        if given and (listed("topics", topics) or protocol is not None):
            raise InvalidRequest("A member is given its partitions.", found="assign", expected="topics, or assign")
        if given:
            return self._consumers.assigned(group, given, options)
        member = self._consumers.member(group, topics, protocol, options, self._members.discard)
        return self._kept(member, self._members.add)

    def stream(self, group: str, *, topics: Sequence[str] = (), **options: Any) -> GroupStream:
        """Micro-batches of the topics for a function, of which each process that runs one has its share.

        options: as of `consumer`; the protocol is that of the group, cooperative where it is new. With a Spark session
        the function is given DataFrames, otherwise tables of Arrow; see GroupStream.foreach_batch.
        """
        self._check_open()
        named = topic_names("topics", topics)
        options.setdefault("protocol", self._consumers.protocol_of(group, "cooperative"))

        def joined() -> GroupConsumer:
            consumer = self.consumer(group, topics=named, **options)
            assert isinstance(consumer, GroupConsumer)
            return consumer

        return GroupStream(joined, self.transaction, self._clock, self._spark is not None)

    def _arrow_publisher(self) -> ArrowPublisher:
        same_process(self._pid, "This connection")
        return ArrowPublisher(
            self.namespace.files,
            self.requester,
            self._routes,
            self._clock,
            new_file_id,
            self.namespace.config.number("inline.max.bytes"),
            self._spread,
            self._reached,
        )

    # -- fetching ---------------------------------------------------------------------------------------

    def fetch(
        self,
        topic: str,
        *,
        isolation: Isolation = "read_committed",
        start: Position = "earliest",
        end: Position = "latest",
        partitions: list[int] | None = None,
        include_expired: bool = False,
    ) -> Fetched:
        """Messages from `start` (included) to `end` (not included), by partition and offset.

        A position is `earliest`, `latest`, an offset for all partitions, partition -> offset, or a time (the first
        message not before it). What has expired, by the time of the newest step, is passed over unless it is to be
        included. Raises UnknownTopicOrPartition, OffsetOutOfRange, InvalidRequest.
        """
        self._check_open()
        topic, start, end = topic_name("topic", topic), fetch_position("start", start), fetch_position("end", end)
        include_expired = flag("include_expired", include_expired)
        partitions = None if partitions is None else whole_numbers("partitions", partitions)
        return self._fetching.fetched(self._fetching.plan(topic, isolation, start, end, partitions, include_expired))

    def tail(
        self,
        topic: str,
        *,
        start: Position = "latest",
        isolation: Isolation = "read_committed",
        poll_ms: int = 20,
    ) -> Iterator[pa.Table]:
        """Messages as they come, without an end: one table for each time there are any. It begins where `start` is now.

        Where records are deleted before it came to them, it goes on at the log start. Raises what `fetch` raises;
        UnknownTopicOrPartition also when the topic is deleted later.
        """
        self._check_open()
        topic, start = topic_name("topic", topic), fetch_position("start", start)
        poll_ms = whole_number("poll_ms", poll_ms, 0)
        first = self._fetching.plan(topic, isolation, start, "latest")
        return self._tail(first, isolation, poll_ms)

    def _tail(self, first: FetchPlan, isolation: Isolation, poll_ms: int) -> Iterator[pa.Table]:
        tables = self._fetching.tables_after(first, isolation)
        bell = Bell(self._fetching.watch_steps, self._clock)
        try:
            while True:
                self._check_open()
                bell.clear()
                table = next(tables)
                if table is None:
                    bell.wait(poll_ms)
                else:
                    bell.found()
                    yield table
        finally:
            bell.close()

    def beginning_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> first offset that is still there."""
        return {p: one.first for p, one in self._bounds(topic, "read_committed").items()}

    def end_offsets(self, topic: str, isolation: Isolation = "read_committed") -> dict[int, int]:
        """Partition -> offset after the last message a fetch of this isolation sees."""
        return {p: one.end for p, one in self._bounds(topic, isolation).items()}

    def _bounds(self, topic: str, isolation: Isolation) -> dict[int, Bounds]:
        self._check_open()
        return {p: one for (_, p), one in self._fetching.bounds([topic_name("topic", topic)], isolation).items()}

    def offsets_for_times(self, topic: str, times: Mapping[int, int | datetime]) -> dict[int, tuple[int, int] | None]:
        """Partition -> offset and timestamp (ms) of its first message not before the time (ms or datetime)."""
        self._check_open()
        asked = {partition_number(p): moment("times", time) for p, time in mapped("times", times).items()}
        return self._fetching.offsets_for_times(topic_name("topic", topic), asked)

    # -- sequencing -------------------------------------------------------------------------------------

    def serving(self) -> Serving:
        """A sequencer in a thread of this process. It stands by while another one leads."""
        from ..sequencer.serving import Serving  # few clients are sequencers, too

        return self._kept(Serving(self.sequencer, self.namespace.config, self._clock), self._serving.append)

    def step_until_idle(self, wait_ms: int = 0) -> int:
        """Decide all that waits, here and now; returns the number of letters. Raises NotLeader.

        A transaction older than its timeout is waited for, for one timeout, and aborted; so is a letter after a gap,
        for request.gap.ms.
        """
        from ..sequencer.serving import step_until_idle  # few clients are sequencers, too

        wait_ms = whole_number("wait_ms", wait_ms, 0)
        return step_until_idle(self.sequencer(), self.namespace.config, self._clock, wait_ms)

    def sequencer(self) -> Sequencer:
        from ..sequencer.sequencer import Sequencer  # few clients are sequencers, too

        self._check_open()
        name = f"{socket.gethostname()}-{os.getpid()}-{next(self._names)}-{new_id()[:6]}"
        return Sequencer(self.namespace, name, self._clock, new_file_id, self._reached)

    # -- end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close members of groups and producers, send what waits, hand over the lease of a sequencer of ours.

        Nothing works afterwards. Each of them is closed whatever becomes of the others. Raises the first error;
        IllegalState in a callback of a producer: nothing is closed.
        """
        if os.getpid() != self._pid:
            return  # all of it is a parent process's
        with self._closing.own:
            if self._closed:
                return
            producers = list(self._producers)
            for producer in producers:
                producer.check_may_wait()
            self._closed = True
        for producer in producers:
            producer.refuse_more()
        errors: list[BaseException] = []
        closing = [*(member.close for member in list(self._members)), *(producer.close for producer in producers)]
        for close in (
            *closing,
            self._consumers.close,
            self.requester.close,
            *(serving.close for serving in self._serving),
        ):
            try:
                close()
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _check_open(self) -> None:
        same_process(self._pid, "This connection")
        if self._closed:
            raise IllegalState("This connection is closed.")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _timeout_ms(transaction_timeout_ms: int) -> int:
    return whole_number("transaction_timeout_ms", transaction_timeout_ms, error=InvalidConfig)


def _application(target: str, app_id: str | None, version: int | None) -> ApplicationVersion | None:
    if (app_id is None) != (version is None):
        raise InvalidRequest("txn_app_id and txn_version go together.", expected="both, or none")
    if app_id is None or version is None:
        return None
    return ApplicationVersion(text("txn_app_id", app_id), whole_number("txn_version", version), target)
