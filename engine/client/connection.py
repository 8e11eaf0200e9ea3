"""The public API: the connection that `lakemq.connect` returns."""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pyarrow as pa

from lakemq.tables.storage.coordination.beats import Beats
from lakemq.tables.storage.coordination.leader_locks import LeaderLocks

from ..namespace.data_file import new_file_id
from ..namespace.namespace import Namespace
from ..namespace.processes import crash
from ..namespace.processes.clock import Clock, SystemClock
from ..protocol.errors import IllegalState, InvalidConfig, InvalidRequest
from ..protocol.values.consuming.offset_checks import check_commits
from ..protocol.values.consuming.offsets import OffsetCommit
from ..protocol.values.state import State
from .arguments import (
    parse_as_of,
    parse_choice,
    parse_fetch_position,
    parse_flag,
    parse_list,
    parse_mapping,
    parse_partition,
    parse_text,
    parse_timestamp,
    parse_topic_name,
    parse_topic_names,
    parse_whole_number,
    parse_whole_numbers,
)
from .consume.consumer import Consumer
from .consume.consumers import ConsumerFactory
from .consume.group_stream import GroupStream
from .consume.listener import RebalanceListener
from .consume.member.member_consumer import MemberConsumer
from .dead_letters import DeadLetters
from .delayed.delayed import DelayedMessages
from .direct_line import DirectLine
from .fetch.fetch_result import FetchResult
from .fetch.fetcher import Fetcher
from .fetch.planning.plan import Bounds, FetchPosition, Isolation
from .follow_line import FollowLine
from .groups.groups import Groups
from .groups.rates import read_consumption
from .groups.resets import OffsetResets
from .observer import Observer
from .open_objects import OpenObjects
from .producer.options import parse_producer_options
from .producer.producer import Producer
from .producer.record_producer import RecordProducer
from .producer.transactional import TransactionalProducer
from .publish.arrow import ArrowPublisher, KeylessRoundRobin
from .publish.row_publisher import RowPublisher, parse_application
from .quality.gate import Gates
from .requester import Requester
from .rows.publication import ON_ERROR, OnError, Publication
from .rows.receipts import PublishedRows
from .rows.routing import RouteCache
from .topics import Topics
from .transactions.ids import TRANSACTION_TIMEOUT_MS, TransactionalIds
from .transactions.operations import Transactions
from .transactions.scope import TransactionScope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..sequencer.sequencer import Sequencer
    from ..sequencer.serving import Serving
    from .publish.inbox import DrainReport
    from .publish.spark import SparkPublisher

T = TypeVar("T")


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex


class Connection:
    """A connection to a namespace. Close it, or use it as a context manager. Thread-safe.

    It belongs to the process that created it. A forked process gets IllegalState.
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
        self._open = OpenObjects(self._start_serving)
        self._check_open, self._producers = self._open.check_open, self._open.producers
        timeout_ms = namespace.config.ms("request.timeout.ms")
        self.requester = Requester(
            namespace.mailbox,
            self._clock,
            new_id,
            timeout_ms,
            self._reached,
            namespace.namespace_id,
            self._new_line(),
        )
        self._fetcher = Fetcher(namespace, self._clock, spark, self._new_follow_line)
        beats = Beats(namespace.files)
        self._consumers = ConsumerFactory(
            self.requester,
            self._fetcher,
            beats,
            self._clock,
            new_id,
            self._check_open,
            namespace.config,
            self._new_follow_line,
        )
        self._ids = TransactionalIds(self.requester, self._clock, 4 * timeout_ms, self._check_offsets)
        # not checked for closing: producers look up routes while the connection closes
        self._routes = RouteCache(self._fetcher.query)
        self._names = itertools.count(1)
        self._spread = KeylessRoundRobin(int(new_id()[:6], 16))
        gates = Gates(namespace.config.expectations)
        self._rows = RowPublisher(gates, self._clock, self._arrow_publisher, self.spark_publisher)

    def _new_line(self) -> DirectLine:
        return DirectLine(self.namespace.files, self.namespace.namespace_id, self._clock)

    def _new_follow_line(self) -> FollowLine:
        return FollowLine(self._new_line(), new_id, self._clock)

    # -- topics -----------------------------------------------------------------------------------------

    @cached_property
    def topics(self) -> Topics:
        """Create, list, describe, alter and delete topics."""
        return Topics(self.requester, self._look, self._routes.forget)

    def state(self) -> State:
        """Return topics and partitions as of the newest step. Later steps do not change the returned state."""
        self._check_open()
        return self._fetcher.read_state()

    def _look(self, what: Callable[[State], T]) -> T:
        self._check_open()
        return self._fetcher.query(what)

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
        on_error: OnError = "reject",
        txn_app_id: str | None = None,
        txn_version: int | None = None,
        deliver_at: Any = None,
        delay_ms: Any = None,
        ttl_ms: Any = None,
    ) -> PublishedRows:
        """Publish all rows of a DataFrame or Arrow table, together or not at all.

        Args:
            topic: a topic, or a destination that topics subscribe to.
            data: a Spark DataFrame, an Arrow table, or any object with Arrow's C stream, such as pandas and Polars
                DataFrames.
            key: name of the key's column; with Spark also an expression. Default: column `key`, if there is one. So for
                the other columns.
            value: column of the payload, binary or text.
            headers: column of the headers, a list of (key, value).
            timestamp: column of the timestamps. Default: now.
            partition: column of explicit partitions. Null: by the key.
            order_by: columns by which the rows of a key are ordered.
            on_error: `reject` leaves out rows that cannot be messages; `fail` publishes nothing if there is one.
            txn_app_id: name of an application for `txn_version`, as in Delta.
            txn_version: with it, a version not above the last one of the application is not published again.
            deliver_at: column of times or epoch milliseconds, or one time for all rows: delays messages until then.
            delay_ms: column, or one number for all rows: delays messages by so long after their timestamps.
            ttl_ms: column, or one number for all rows: how long messages are delivered.

        Returns:
            What was published, with offsets, and receipts of delayed rows.

        Raises:
            RequestTimedOut: the outcome is unknown.
            LakeMQError: the rows were refused. Nothing is published.
        """
        self._check_open()
        topic = parse_topic_name("topic", topic)
        on_error = parse_choice("on_error", on_error, ON_ERROR)  # type: ignore[assignment]
        publication = Publication(topic, on_error, parse_application(topic, txn_app_id, txn_version))
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
        return self._rows.publish(publication, data, columns, order_by)

    def drain_inbox(self) -> DrainReport:
        """Publish the rows that SQL inserted into `inbox`, exactly once. Raises IllegalState without Spark."""
        if self._spark is None:
            raise IllegalState("No Spark session: connect with lakemq.connect(path, spark=...).")
        from .publish.inbox import Inbox  # pyspark is heavy, and not every client has it

        return Inbox(self.namespace, self.spark_publisher(), self._spark, self._reached).drain()

    def spark_publisher(self) -> SparkPublisher:
        """Return a publisher of DataFrames."""
        from .publish.spark import SparkPublisher  # pyspark is heavy, and not every client has it

        self._open.check_process()
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
    ) -> RecordProducer:
        """Return a producer for records and tables.

        Args:
            transactional_id: makes it a transactional producer, and fences an earlier one with the id.
            transaction_timeout_ms: age at which the sequencer aborts an open transaction.
            **options: options of the producer: see docs/settings.md.

        Raises:
            InvalidConfig, InvalidRequest, InvalidTransactionTimeout: an argument is not valid.
            IllegalState: the connection is closed.
        """
        self._check_open()
        chosen = parse_producer_options(options, transactional_id is not None)
        publisher = self._arrow_publisher()
        if transactional_id is None:
            plain = Producer(publisher, self.requester, self._clock, chosen, self._producers.discard)
            return self._open.register(plain, self._producers.add)
        transactional_id = parse_text("transactional_id", transactional_id)
        manager = self._ids.acquire_new(transactional_id, _parse_timeout_ms(transaction_timeout_ms))
        producer = TransactionalProducer(publisher, self._clock, chosen, manager, self._producers.discard)
        return self._open.register(producer, self._producers.add)

    # -- transactions -----------------------------------------------------------------------------------

    def transaction(
        self,
        transactional_id: str,
        *,
        batch_id: int | None = None,
        transaction_timeout_ms: int | None = None,
    ) -> TransactionScope[PublishedRows]:
        """Return a transaction for DataFrames, Arrow tables and offsets, as a context manager. An exception aborts it.

        Args:
            transactional_id: name of the application. Its first use in this process fences earlier users of the id.
            batch_id: number of a stream's micro-batch. Once it is committed, its repeat publishes nothing.
            transaction_timeout_ms: age at which the sequencer aborts the transaction. Default: as in the first use of
                the id in this process; another value is refused.

        Raises:
            InvalidRequest, InvalidConfig, InvalidTransactionTimeout: an argument is not valid.
            IllegalState: the connection is closed.
        """
        self._check_open()
        transactional_id = parse_text("transactional_id", transactional_id)
        batch_id = None if batch_id is None else parse_whole_number("batch_id", batch_id, 0, 2**62)
        timeout_ms = None if transaction_timeout_ms is None else _parse_timeout_ms(transaction_timeout_ms)
        manager, empty_result = self._ids.acquire(transactional_id, timeout_ms), PublishedRows([], duplicate=True)
        return TransactionScope(manager, self._rows.publish_in_transaction, empty_result, batch_id)

    @cached_property
    def transactions(self) -> Transactions:
        """List, describe and abort transactions, as an operator."""
        return self._make_transactions(self._whole_state)

    def _make_transactions(self, read_state: Callable[[], State]) -> Transactions:
        return Transactions(self.requester, read_state, self.namespace.files.time_ms)

    @cached_property
    def delayed(self) -> DelayedMessages:
        """Schedule, list, cancel and reschedule delayed messages."""
        return self._make_delayed(self._whole_state)

    def _make_delayed(self, read_state: Callable[[], State]) -> DelayedMessages:
        return DelayedMessages(
            self._arrow_publisher,
            self.requester,
            read_state,
            self._look,
            self._fetcher.follow_whole_state,
            self.namespace,
            self._clock,
        )

    @cached_property
    def groups(self) -> Groups:
        """Describe and change groups: settings, members, committed offsets, lag."""
        return self._make_groups(self._whole_state)

    def _make_groups(self, read_state: Callable[[], State]) -> Groups:
        resets = OffsetResets(read_state, self._fetcher.offsets_for_times, self._clock.now_ms)
        retention_ms = self.namespace.config.ms("offsets.retention.ms")
        store, time_ms = self.namespace.store, self._store_time_ms
        return Groups(
            read_state, self.requester, resets, retention_ms, time_ms, lambda: read_consumption(store, time_ms())
        )

    def _store_time_ms(self) -> int:
        """Return the store's time; this machine's if the store cannot be written, as with a full disk."""
        try:
            return self.namespace.files.time_ms()
        except OSError:
            return self._clock.now_ms()

    def observer(self) -> Observer:
        """Return an observer, for a process that looks at groups, transactions and delayed messages again and again."""
        self._check_open()
        return Observer(
            self._fetcher.follow_whole_state(),
            self._make_groups,
            self._make_transactions,
            self._make_delayed,
        )

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """Read dead letters of groups, send them back to their topics, or purge them."""
        timeout_ms = self.namespace.config.ms("request.timeout.ms")
        return DeadLetters(self.requester, self._open_fetcher, self._clock, timeout_ms)

    def _open_fetcher(self) -> Fetcher:
        self._check_open()
        return self._fetcher

    def _whole_state(self) -> State:
        self._check_open()
        return self._fetcher.read_whole_state()

    def _check_offsets(self, commits: Sequence[OffsetCommit]) -> None:
        self._fetcher.query(lambda state: check_commits(state, commits))

    def consumer(
        self,
        group: str,
        *,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        assign: Sequence[str | tuple[str, int]] = (),
        protocol: str | None = None,
        auto_offset_reset: str | None = None,
        isolation: str | None = None,
        instance_id: str | None = None,
        client_id: str | None = None,
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        max_poll_interval_ms: int | None = None,
        assignor: str | Sequence[str] | None = None,
        ack_mode: str | None = None,
        listener: RebalanceListener | None = None,
        consumer_timeout_ms: int | None = None,
        default_timeout_ms: int | None = None,
        **unknown: Any,
    ) -> Consumer:
        """Return a consumer: a member of the group, or a reader of the partitions that you assign.

        Give one of `topics`, `pattern` and `assign`. A member shares the partitions of its topics with the group's
        other members. A reader shares with nobody, and its group has no members. `None` stands for the default of an
        option; docs/settings.md has this list as a table, with ranges.

        Args:
            group: name of the group.
            topics: topics whose partitions the group shares among its members.
            pattern: regular expression (RE2) instead of `topics`: all topics whose whole names match, also later ones.
            assign: topics (all their partitions) and (topic, partition) pairs that this consumer reads by itself.
            protocol: `queue` (messages are acknowledged), `cooperative` or `classic` (offsets are committed). Default:
                as the group is; `queue` where the group is new.
            auto_offset_reset: where to begin where the group has committed nothing, or where what it committed was
                deleted: `earliest` (default), `latest`, or `none`, which raises an error.
            isolation: `read_committed` (default) or `read_uncommitted`; in a queue group a setting of the group.
            instance_id: makes the member static: a process that comes back under it has the same partitions.
            client_id: name of the application. A member's id begins with it, the host and the process id, and
                `mq.groups.members` shows all three.
            session_timeout_ms: how long a member may show no life before it is lost. Default 45000, from 6000 to
                1800000. Must exceed `heartbeat_interval_ms`; below three times of it a warning is logged.
            heartbeat_interval_ms: how often the process shows that it lives. Default 3000.
            max_poll_interval_ms: how long a member may go without `poll` before it is lost. Default 300000.
            assignor: the assignor that says which member gets what, or a list of them, the best first. The group takes
                one that all its members support. Default: the member supports all.
            ack_mode: in a queue group `explicit` or `auto`, the group's `ack.mode`. Default: as the group is.
            listener: is called by `poll` when partitions come and go.
            consumer_timeout_ms: `for message in consumer` ends when no message has come for so long. Default: it waits
                until the consumer is closed.
            default_timeout_ms: with `assign`, how long to wait for offsets that an open transaction holds back. Default
                60000.
            **unknown: is refused. The error names the option that may be meant.

        Returns:
            A `QueueConsumer` or a `GroupConsumer`, by the protocol; with `assign` an `AssignedConsumer`. Close it, or
            use it as a context manager.

        Raises:
            InvalidGroupId, InvalidTopic, InvalidRequest, InvalidSessionTimeout, InvalidRegularExpression: an argument
                is not valid, or does not go with another.
            InvalidConfig: the option is not known, does not apply, or the group has another setting.
            InconsistentGroupProtocol: the group has members of another protocol, or would have no assignor that all
                its members support.
            UnknownTopicOrPartition: there is no such topic.
            IllegalState: the connection is closed.
        """
        self._check_open()
        named = {
            "pattern": pattern,
            "auto_offset_reset": auto_offset_reset,
            "isolation": isolation,
            "instance_id": instance_id,
            "client_id": client_id,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": heartbeat_interval_ms,
            "max_poll_interval_ms": max_poll_interval_ms,
            "assignor": assignor,
            "ack_mode": ack_mode,
            "listener": listener,
            "consumer_timeout_ms": consumer_timeout_ms,
            "default_timeout_ms": default_timeout_ms,
        }
        options = {**{name: value for name, value in named.items() if value is not None}, **unknown}
        assigned = parse_list("assign", assign)
        if assigned and (parse_list("topics", topics) or protocol is not None):
            raise InvalidRequest("A member is given its partitions.", found="assign", expected="topics, or assign")
        if assigned:
            return self._consumers.create_for_partitions(group, assigned, options)
        member = self._consumers.create_member(group, topics, protocol, options, self._open.members.discard)
        return self._open.register(member, self._open.members.add)

    def stream(self, group: str, *, topics: Sequence[str] = (), **options: Any) -> GroupStream:
        """Return a stream that calls a function with micro-batches. Processes of the group share the partitions.

        With a Spark session, the function gets DataFrames, otherwise Arrow tables: see GroupStream.foreach_batch.

        Args:
            group: name of the group.
            topics: topics to consume.
            **options: options of `consumer`. The default `protocol` is the group's, else `cooperative`.
        """
        self._check_open()
        named = parse_topic_names("topics", topics)
        options.setdefault("protocol", self._consumers.find_protocol(group, "cooperative"))

        def join_group() -> MemberConsumer:
            consumer = self.consumer(group, topics=named, **options)
            assert isinstance(consumer, MemberConsumer)
            return consumer

        return GroupStream(join_group, self.transaction, self._clock, self._spark is not None)

    def _arrow_publisher(self) -> ArrowPublisher:
        self._open.check_process()
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
        start: FetchPosition = "earliest",
        end: FetchPosition = "latest",
        partitions: list[int] | None = None,
        include_expired: bool = False,
        parse: bool = False,
    ) -> FetchResult:
        """Return the messages from `start` (included) to `end` (not included), by partition and offset.

        A position is `earliest`, `latest`, an offset for all partitions, a mapping partition -> offset, or a time: the
        first message not before it.

        Args:
            topic: name of the topic.
            isolation: `read_committed` or `read_uncommitted`.
            start: position to begin at.
            end: position to end at.
            partitions: partitions to read. Default: all.
            include_expired: return messages whose time to live is over, too, by the time of the newest step.
            parse: add a column `parsed` with the values as columns, by the newest version of the topic's schema. It is
                null where a value does not fit.

        Raises:
            UnknownTopicOrPartition, OffsetOutOfRange, InvalidRequest: an argument is not valid, or there is no schema.
            MissingExtra: values are to be parsed, and the extra `schemas` is not installed.
        """
        self._check_open()
        topic, start, end = (
            parse_topic_name("topic", topic),
            parse_fetch_position("start", start),
            parse_fetch_position("end", end),
        )
        include_expired = parse_flag("include_expired", include_expired)
        partitions = None if partitions is None else parse_whole_numbers("partitions", partitions)
        schema = self._fetcher.find_schema(topic) if parse_flag("parse", parse) else None
        plan = self._fetcher.plan(topic, isolation, start, end, partitions, include_expired)
        return self._fetcher.open_plan(plan, schema=schema)

    def tail(
        self,
        topic: str,
        *,
        start: FetchPosition = "latest",
        isolation: Isolation = "read_committed",
        poll_ms: int = 20,
    ) -> Iterator[pa.Table]:
        """Yield new messages as Arrow tables, without an end. `start` is resolved in this call.

        If records are deleted before they are read, the iterator continues at the log start.

        Args:
            topic: name of the topic.
            start: position to begin at, as in `fetch`.
            isolation: `read_committed` or `read_uncommitted`.
            poll_ms: how often to look where the file system does not notify us.

        Raises:
            UnknownTopicOrPartition: the topic does not exist, or is deleted later.
            OffsetOutOfRange, InvalidRequest: an argument is not valid.
        """
        self._check_open()
        topic, start = parse_topic_name("topic", topic), parse_fetch_position("start", start)
        poll_ms = parse_whole_number("poll_ms", poll_ms, 0)
        first = self._fetcher.plan(topic, isolation, start, "latest")
        return self._fetcher.follow_log(first, isolation, poll_ms, self._check_open)

    def beginning_offsets(self, topic: str) -> dict[int, int]:
        """Return partition -> first offset that still exists."""
        return {partition: bounds.first for partition, bounds in self._bounds(topic, "read_committed").items()}

    def end_offsets(self, topic: str, isolation: Isolation = "read_committed") -> dict[int, int]:
        """Return partition -> offset after the last message that a fetch of this isolation sees."""
        return {partition: bounds.end for partition, bounds in self._bounds(topic, isolation).items()}

    def _bounds(self, topic: str, isolation: Isolation) -> dict[int, Bounds]:
        self._check_open()
        return {
            partition: bounds
            for (_, partition), bounds in self._fetcher.find_bounds(
                [parse_topic_name("topic", topic)], isolation
            ).items()
        }

    def offsets_for_times(self, topic: str, times: Mapping[int, int | datetime]) -> dict[int, tuple[int, int] | None]:
        """Return partition -> (offset, timestamp_ms) of the first message not before a time.

        Args:
            topic: name of the topic.
            times: partition -> time, as epoch milliseconds or datetime.

        Returns:
            A dict; None for a partition without such a message.
        """
        self._check_open()
        requested = {
            parse_partition(p): parse_timestamp("times", time) for p, time in parse_mapping("times", times).items()
        }
        return self._fetcher.offsets_for_times(parse_topic_name("topic", topic), requested)

    def sql(self, text: str, *, as_of: int | datetime | None = None, wait_ms: int | None = None) -> pa.Table:
        """Run a query over the tables and views of this namespace, without a JVM, and return its result.

        The tables hold what was projected last, which is at most a second old while a sequencer serves. If they have
        not been projected for two seconds, the logger `lakemq.sql` warns.

        Args:
            text: statements in Spark's SQL; the result is that of the last one. They reach no files.
            as_of: read the tables as of this step or time. Default: as of now.
            wait_ms: wait until the tables hold all that is decided so far, but at most this long. If no sequencer
                projects, this connection serves meanwhile.

        Returns:
            The columns that the query names. Keys and values of messages are binary.

        Raises:
            InvalidRequest: the query is wrong, or both as_of and wait_ms are given.
            StepTooOld: the tables do not go back that far.
            RequestTimedOut: the tables were not projected within wait_ms.
            MissingExtra: the extra `sql` is not installed.
        """
        from .sql.door import run_sql  # many clients run no SQL

        self._check_open()
        if as_of is not None:
            as_of = parse_as_of("as_of", as_of)
        if wait_ms is not None:
            wait_ms = parse_whole_number("wait_ms", wait_ms, 0)
        return run_sql(self.namespace, parse_text("text", text), as_of, wait_ms, self.serving)

    # -- sequencing -------------------------------------------------------------------------------------

    def serving(self) -> Serving:
        """Run a sequencer in a thread of this process. It stands by while another one leads.

        Close it, or use it as a context manager: it then answers this connection's requests, and hands over the lease.
        If you do not close it, it does so when the interpreter ends, but not after SIGKILL or an unhandled SIGTERM.
        """
        from ..sequencer.serving import Serving  # few clients are sequencers, too

        self._check_open()
        waited_ms = self.requester.waited_ms
        return self._open.register(
            Serving(self._new_server, self.namespace.config, self._clock, waited_ms), self._open.serving.append
        )

    def step_until_idle(self, wait_ms: int | None = None) -> int:
        """Run a sequencer in this call until no request waits, and return the number of letters decided.

        It waits for open transactions at most for their timeouts, and aborts them then. It waits for a missing letter
        at most for request.gap.ms.

        Args:
            wait_ms: how long to wait while another sequencer leads. Default: until it shows that it lives, at most
                lease.ms. The lease of a dead leader is taken over.

        Raises:
            NotLeader: another sequencer leads, and decides the requests.
        """
        from ..sequencer.serving import step_until_idle  # few clients are sequencers, too

        wait_ms = None if wait_ms is None else parse_whole_number("wait_ms", wait_ms, 0)
        return step_until_idle(self.sequencer(), self.namespace.config, self._clock, wait_ms)

    def sequencer(self) -> Sequencer:
        """Return a new sequencer of this namespace, for programs that run its steps themselves."""
        self._check_open()
        return self._new_sequencer()

    def _start_serving(self) -> Serving:
        from ..sequencer.serving import Serving  # few clients are sequencers, too

        return Serving(partial(self._new_sequencer, has_lines=True), self.namespace.config, self._clock)

    def _new_server(self) -> Sequencer:
        self._check_open()
        return self._new_sequencer(has_lines=True)

    def _new_sequencer(self, has_lines: bool = False) -> Sequencer:
        from ..sequencer.sequencer import Sequencer  # few clients are sequencers, too

        name = f"{socket.gethostname()}-{os.getpid()}-{next(self._names)}-{new_id()[:6]}"
        locks = LeaderLocks(self.namespace.files)
        return Sequencer(
            self.namespace, name, self._clock, new_file_id, self._reached, locks=locks, has_lines=has_lines
        )

    # -- end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close group members and producers, send waiting requests, and hand over the lease of our sequencer.

        If `serving` was closed before, but members or producers still need answers, a sequencer runs until they have
        them. An error of one object does not keep the others from being closed.

        Raises:
            IllegalState: the call comes from a callback of a producer. Nothing is closed.
            LakeMQError: the first error of the closed objects.
        """
        self._open.close((self._consumers.close, self.requester.close))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse_timeout_ms(transaction_timeout_ms: int) -> int:
    return parse_whole_number("transaction_timeout_ms", transaction_timeout_ms, error=InvalidConfig)
