"""The public API: the connection that `lakemq.connect` returns. Rows of docs/architecture.md: publish 1."""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pyarrow as pa

from lakemq.tables.storage.coordination.leader_locks import LeaderLocks
from lakemq.tables.storage.object_stores.store_options import configure_spark

from ..namespace import crash
from ..namespace.clock import Clock, StoreClock, SystemClock
from ..namespace.data_file import new_file_id
from ..namespace.namespace import Namespace
from ..namespace.process import end_block, new_client_id, new_id
from ..namespace.store_errors import explain_silence
from ..protocol.errors import IllegalState
from ..protocol.values.state import State
from .arguments import parse_as_of, parse_choice, parse_text, parse_topic_name, parse_whole_number
from .dead_letters import DeadLetters
from .delayed import DelayedMessages
from .fetch.fetcher import Fetcher
from .groups.groups import Groups
from .groups.lag import read_consumption
from .log_access import LogAccess
from .open_objects import OpenObjects
from .operator_tools import Observer, read_member_notes
from .producer.options import parse_producer_options
from .producer.producer import Producer, TransactionalProducer
from .producer.record_producer import RecordProducer
from .publish.arrow import ArrowPublisher, KeylessRoundRobin, RowPublisher, parse_application
from .quality.gate import Gates
from .requests.direct_line import DirectLine
from .requests.requester import Requester
from .rows.publication import ON_ERROR, OnError, Publication
from .rows.receipts import PublishedRows
from .rows.routing import RouteCache
from .schedules import Schedules
from .topics import Topics
from .transactions.operations import Transactions
from .transactions.scope import TRANSACTION_TIMEOUT_MS, TransactionalIds, TransactionScope, parse_timeout_ms

if TYPE_CHECKING:
    from typing import Unpack

    from pyspark.sql import DataFrame, SparkSession

    from ..sequencer.sequencer import Sequencer
    from ..sequencer.serving import Serving
    from .producer.options import ProducerKeywords
    from .publish.inbox import DrainReport
    from .publish.spark import SparkPublisher

T = TypeVar("T")


class Connection(LogAccess):
    """A connection to a namespace. Close it, or use it as a context manager. Thread-safe.

    It belongs to the process that created it. A forked process gets IllegalState.

    Example:
        >>> with lakemq.connect("data/shop") as mq:  # doctest: +SKIP
        ...     mq.topics.create("orders", 4)
    """

    def __init__(
        self,
        namespace: Namespace,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
        crash_point: crash.CrashPoint | None = None,
        client_names: Sequence[str] = (),
    ) -> None:
        """client_names: who asks, as the journal keeps it; by default user and host."""
        self._spark = spark
        if spark is not None:
            configure_spark(spark, namespace.files.root, namespace.storage_options)
        clock = clock or SystemClock()
        self._crash_point, self._sequencer_numbers = crash_point or crash.from_environment(), itertools.count(1)
        timeout_ms, namespace_id = namespace.config.ms("request.timeout.ms"), namespace.namespace_id
        requester = Requester(
            namespace.mailbox,
            clock,
            partial(new_client_id, client_names),
            timeout_ms,
            self._crash_point,
            namespace_id,
            DirectLine(namespace.files, namespace_id, clock),
            partial(explain_silence, namespace.files, namespace_id),
        )
        fetcher = Fetcher(namespace, clock, spark)
        requester.explain = fetcher.explain_missing
        open_objects = OpenObjects(self._serve_while_closing)
        super().__init__(namespace, requester, fetcher, open_objects, clock, self.transaction, spark is not None)
        self._producers, self._publish_clock = open_objects.producers, StoreClock(clock, namespace.files.time_ms)
        self._ids = TransactionalIds(requester, clock, 4 * timeout_ms)
        # not checked for closing: producers look up routes while the connection closes
        self._routes = RouteCache(fetcher.query)
        self._spread = KeylessRoundRobin(int(new_id()[:6], 16))
        self._rows = RowPublisher(
            Gates(namespace.config.expectations),
            namespace,
            self._publish_clock,
            self._arrow_publisher,
            self.spark_publisher,
            fetcher.read_state,
        )

    # -- topics -----------------------------------------------------------------------------------------

    @cached_property
    def topics(self) -> Topics:
        """Create, list, describe, alter and delete topics."""
        return Topics(self.requester, self._look, self._routes.forget)

    def state(self) -> State:
        """Return topics and partitions as of the newest step. Later steps do not change the returned state."""
        self._check_open()
        return self._fetcher.read_state()

    def _open_fetcher(self) -> Fetcher:
        self._check_open()
        return self._fetcher

    def _look(self, what: Callable[[State], T]) -> T:
        return self._open_fetcher().query(what)

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
            on_error: `reject` leaves out rows that cannot be messages; `fail` publishes nothing if there is one, or if
                the topic does not keep messages of these times (see `PublishedRows.warnings`).
            txn_app_id: name of an application for `txn_version`, as in Delta.
            txn_version: with it, a version not above the last one of the application is not published again.
            deliver_at: column of times or epoch milliseconds, or one time for all rows: delays messages until then.
            delay_ms: column, or one number for all rows: delays messages by so long after the call.
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
        application = parse_application(topic, txn_app_id, txn_version)
        publication = Publication(topic, on_error, application, refuses_misdated=on_error == "fail")
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
        """Publish the rows that SQL inserted into `inbox`, exactly once, and return a report.

        Raises:
            IllegalState: no Spark session runs.
        """
        spark = self._find_spark()
        from .publish.inbox import Inbox  # pyspark is heavy, and not every client has it

        return Inbox(self.namespace, self.spark_publisher(), spark, self._crash_point).drain()

    def put_topic_views(self) -> dict[str, str]:
        """Let Spark have a view of `final_messages` for each topic with a schema: `<namespace>_topics.<topic>`.

        A view has the columns of the table, and the fields of the value in the struct `data`. Call it again when
        schemas or topics have changed.

        Returns:
            topic -> name of its view. A topic whose values Spark cannot parse, as those in Avro, is missing.

        Raises:
            IllegalState: no Spark session runs.
            NamespaceError: the session has a database of this name that is not the namespace's.
        """
        spark = self._find_spark()
        from .topic_views import put_topic_views  # not every client has what parses schemas

        return put_topic_views(spark, self.namespace, self.state().topics.values())

    def _find_spark(self) -> SparkSession:
        if self._spark is None:
            raise IllegalState("No Spark session: connect with lakemq.connect(path, spark=...).")
        return self._spark

    def spark_publisher(self) -> SparkPublisher:
        """Return a publisher of DataFrames."""
        from .publish.spark import SparkPublisher  # pyspark is heavy, and not every client has it

        self._open.check_process()
        return SparkPublisher(self.namespace, self.requester, self.state, self._publish_clock, self._crash_point)

    @overload
    def producer(self, transactional_id: None = None, **options: Unpack[ProducerKeywords]) -> Producer: ...

    @overload
    def producer(
        self, transactional_id: str, *, transaction_timeout_ms: int = ..., **options: Unpack[ProducerKeywords]
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
        publisher, clock, closed = self._arrow_publisher(), self._publish_clock, self._producers.discard
        producer: RecordProducer
        if transactional_id is None:
            producer = Producer(publisher, self.requester, clock, chosen, closed)
        else:
            transactional_id = parse_text("transactional_id", transactional_id)
            manager = self._ids.acquire_new(transactional_id, parse_timeout_ms(transaction_timeout_ms))
            producer = TransactionalProducer(publisher, clock, chosen, manager, closed)
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
        timeout_ms = None if transaction_timeout_ms is None else parse_timeout_ms(transaction_timeout_ms)
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
            lambda: self._fetcher.make_whole_reader().refresh,
            self.namespace,
            self._publish_clock,
        )

    @cached_property
    def schedules(self) -> Schedules:
        """Create, list, pause, resume and delete schedules of recurring messages."""
        return Schedules(self.requester, self._whole_state, self._look, self._publish_clock)

    @cached_property
    def groups(self) -> Groups:
        """Describe and change groups: settings, members, committed offsets, lag."""
        return self._make_groups(self._whole_state)

    def _make_groups(self, read_state: Callable[[], State]) -> Groups:
        store, retention_ms = self.namespace.store, self.namespace.config.ms("offsets.retention.ms")

        def time_ms() -> int:
            """Return the store's time; this machine's if the store cannot be written, as with a full disk."""
            try:
                return self.namespace.files.time_ms()
            except OSError:
                return self._publish_clock.now_ms()

        return Groups(
            read_state,
            self.requester,
            self._fetcher.offsets_for_times,
            retention_ms,
            time_ms,
            lambda: read_consumption(store, time_ms()),
            partial(read_member_notes, self.namespace.files, self._fetcher.describe_deletion),
        )

    def observer(self) -> Observer:
        """Return an observer, for a process that looks at groups, transactions and delayed messages again and again."""
        self._check_open()
        fetcher = self._fetcher.make_whole_fetcher()

        def open_fetcher() -> Fetcher:
            self._check_open()
            return fetcher

        dead_letters = self._make_dead_letters(open_fetcher)
        return Observer(fetcher, self._make_groups, self._make_transactions, self._make_delayed, dead_letters)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """Read dead letters of groups, send them back to their topics, or purge them."""
        return self._make_dead_letters(self._open_fetcher)

    def _make_dead_letters(self, fetcher: Callable[[], Fetcher]) -> DeadLetters:
        timeout_ms = self.namespace.config.ms("request.timeout.ms")
        return DeadLetters(self.requester, fetcher, self._publish_clock, timeout_ms)

    def _whole_state(self) -> State:
        self._check_open()
        return self._fetcher.make_whole_reader().refresh()

    def _arrow_publisher(self) -> ArrowPublisher:
        self._open.check_process()
        return ArrowPublisher(
            self.namespace.files,
            self.requester,
            self._routes,
            self._publish_clock,
            new_file_id,
            self.namespace.config.number("inline.max.bytes"),
            self._spread,
            self._crash_point,
        )

    def sql(self, text: str, *, as_of: int | datetime | None = None, wait_ms: int | None = None) -> pa.Table:
        """Run a query over the tables and views of this namespace, without a JVM, and return its result.

        The tables hold what was projected last, which is at most a second old while a sequencer serves. If they have
        not been projected for two seconds, the logger `lakemq.sql` warns.

        Args:
            text: statements in Spark's SQL; the result is that of the last one. They reach no files.
            as_of: read the first projection that holds this step, or the newest one up to this time. Default: now.
            wait_ms: wait until the tables hold all that is decided so far, but at most this long. If no sequencer
                projects, this connection serves meanwhile.

        Returns:
            The columns that the query names. Keys and values of messages are binary.

        Raises:
            InvalidRequest: the query is wrong, the tables do not hold the step yet, or as_of and wait_ms are given.
            StepTooOld: the tables do not go back that far.
            RequestTimedOut: the tables were not projected within wait_ms.
            MissingExtra: the extra `sql` is not installed.
            StorageError, TableDamaged: a file of a table cannot be read, or is damaged.
        """
        from .live_tables import make_live_readers  # many clients run no SQL
        from .sql.arrow_query import run_sql

        self._check_open()
        if as_of is not None:
            as_of = parse_as_of("as_of", as_of)
        if wait_ms is not None:
            wait_ms = parse_whole_number("wait_ms", wait_ms, 0)
        live = make_live_readers(self.namespace, self.observer, self)
        return run_sql(self.namespace, parse_text("text", text), as_of, wait_ms, self.serving, live)

    # -- sequencing -------------------------------------------------------------------------------------

    def serving(self) -> Serving:
        """Run a sequencer in a thread of this process. It stands by while another one leads.

        Close it, or use it as a context manager: it then answers this connection's requests, and hands over the lease.
        If you do not close it, it does so when the interpreter ends, but not after SIGKILL or an unhandled SIGTERM.

        Returns:
            The service. Its `close` ends it.
        """
        self._check_open()
        from ..sequencer.serving import Serving  # few clients serve

        serving = Serving(self._create_while_open, self.namespace.config, self._clock, self.requester.waited_ms)
        return self._open.register(serving, self._open.serving.append)

    def _serve_while_closing(self) -> Serving:
        """Run a sequencer in a thread, also while the connection closes."""
        from ..sequencer.serving import Serving

        return Serving(partial(self._create_sequencer, has_lines=True), self.namespace.config, self._clock)

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
        from ..sequencer.serving import step_until_idle

        wait_ms = None if wait_ms is None else parse_whole_number("wait_ms", wait_ms, 0)
        return step_until_idle(self.sequencer(), self.namespace.config, self._clock, wait_ms)

    def sequencer(self) -> Sequencer:
        """Return a new sequencer of this namespace, for programs that run its steps themselves."""
        self._check_open()
        return self._create_sequencer()

    def _create_while_open(self) -> Sequencer:
        self._check_open()
        return self._create_sequencer(has_lines=True)

    def _create_sequencer(self, has_lines: bool = False) -> Sequencer:
        """has_lines: it answers clients directly, too."""
        from ..sequencer.sequencer import Sequencer

        name = f"{socket.gethostname()}-{os.getpid()}-{next(self._sequencer_numbers)}-{uuid.uuid4().hex[:6]}"
        locks = LeaderLocks(self.namespace.files)
        return Sequencer(
            self.namespace, name, self._clock, new_file_id, self._crash_point, locks=locks, has_lines=has_lines
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
        self._open.close((self._heartbeats.stop, self.requester.close))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not end_block(kind, self.close):
            self._open.producers.give_up()
