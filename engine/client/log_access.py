"""The calls of a connection that read topics: fetches, and consumers. Rows of docs/architecture.md: fetch 1."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from lakemq.tables.storage.coordination.beats import Beats

from ..namespace.clock import Clock
from ..namespace.namespace import Namespace
from ..namespace.process import ProcessBound, new_id
from ..protocol.errors import InvalidRequest
from ..protocol.parameters import GROUP
from ..protocol.unsupported_settings import normalize_option_names
from ..protocol.values.assignments import TopicIdPartition
from ..protocol.values.state import State
from ..protocol.values.topics import Bounds
from .arguments import (
    check_option_names,
    check_unit,
    invalid_argument,
    parse_choice,
    parse_fetch_position,
    parse_flag,
    parse_group_name,
    parse_list,
    parse_mapping,
    parse_partition,
    parse_timestamp,
    parse_topic_name,
    parse_topic_names,
    parse_topics_and_partitions,
    parse_whole_number,
    parse_whole_numbers,
)
from .consume.consumer import Consumer
from .consume.group_consumer import GroupConsumer, MemberConsumer, read_member_options
from .consume.group_stream import GroupStream
from .consume.membership import HeartbeatThread, Membership
from .consume.options import ASSIGN_OPTIONS, MEMBER_OPTIONS, PROTOCOLS, Names, Protocol, RebalanceListener
from .consume.parts import ConsumerParts
from .consume.position_consumer import AssignedConsumer
from .consume.position_reader import AssignedPartitions, Reset
from .consume.queue_consumer import QueueConsumer
from .consume.worker import BACKOFF_MS, Backoff, Errors, Handler, HandlerLoop, WorkerReport, parse_retry_rule
from .fetch.fetch_result import FetchResult
from .fetch.fetcher import Fetcher, RangeFetcher, StepWaiter
from .fetch.plan import FetchPosition, Isolation, check_isolation
from .fetch.rows import RowGroupCache
from .groups.stalls import find_open_transactions
from .open_objects import OpenObjects
from .requests.requester import Requester
from .transactions.scope import TransactionScope

if TYPE_CHECKING:
    from typing import Unpack

    from .consume.options import MemberKeywords, ReaderKeywords

_MEMBER_WAIT_MS = 1_000
"""Longest wait of a member, after which its poll notes again that the member polls."""


class LogAccess(ProcessBound):
    """Reads topics: with a fetch, or as a consumer. Every `Connection` can do this. Thread-safe."""

    def __init__(
        self,
        namespace: Namespace,
        requester: Requester,
        fetcher: Fetcher,
        open_objects: OpenObjects,
        clock: Clock,
        make_transaction: Callable[..., TransactionScope],
        has_spark: bool,
    ) -> None:
        """make_transaction: returns a transaction, as `mq.transaction`; has_spark: streams get DataFrames."""
        self.namespace, self.requester = namespace, requester
        self._fetcher, self._open, self._clock = fetcher, open_objects, clock
        self._heartbeats = HeartbeatThread(Beats(namespace.files), new_id)
        self._make_transaction, self._has_spark = make_transaction, has_spark
        self._check_open = open_objects.check_open

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
            MissingExtra: with parse, the extra `schemas` is not installed.
        """
        self._check_open()
        topic, start, end = (
            parse_topic_name("topic", topic),
            parse_fetch_position("start", start),
            parse_fetch_position("end", end),
        )
        check_isolation(isolation)
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
        check_isolation(isolation)
        poll_ms = parse_whole_number("poll_ms", poll_ms, 0)
        first = self._fetcher.plan(topic, isolation, start, "latest")
        return self._fetcher.follow_log(first, isolation, poll_ms, self._check_open)

    def beginning_offsets(self, topic: str) -> dict[int, int]:
        """Return partition -> first offset that still exists.

        Args:
            topic: name of the topic.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
        """
        return {partition: bounds.first for partition, bounds in self._bounds(topic, "read_committed").items()}

    def end_offsets(self, topic: str, isolation: Isolation = "read_committed") -> dict[int, int]:
        """Return partition -> offset after the last message that a fetch of this isolation sees.

        Args:
            topic: name of the topic.
            isolation: `read_committed` or `read_uncommitted`.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
        """
        return {partition: bounds.end for partition, bounds in self._bounds(topic, isolation).items()}

    def _bounds(self, topic: str, isolation: Isolation) -> dict[int, Bounds]:
        check_isolation(isolation)
        all_bounds = self._find_bounds([parse_topic_name("topic", topic)], isolation)
        return {partition: bounds for (_, partition), bounds in all_bounds.items()}

    def offsets_for_times(self, topic: str, times: Mapping[int, int | datetime]) -> dict[int, tuple[int, int] | None]:
        """Return partition -> (offset, timestamp_ms) of the first message not before a time.

        Args:
            topic: name of the topic.
            times: partition -> time, as epoch milliseconds or datetime.

        Returns:
            A dict; None for a partition without such a message.

        Raises:
            UnknownTopicOrPartition: the topic, or a partition, does not exist.
            InvalidRequest: a time is not valid.
        """
        self._check_open()
        requested = {
            parse_partition(p): parse_timestamp("times", time) for p, time in parse_mapping("times", times).items()
        }
        for time in requested.values():
            check_unit("A time", time)
        return self._fetcher.offsets_for_times(parse_topic_name("topic", topic), requested)

    # -- consuming --------------------------------------------------------------------------------------

    @overload
    def consumer(
        self,
        group: str,
        *,
        topics: Names = ...,
        protocol: Literal["queue"] | None = None,
        **options: Unpack[MemberKeywords],
    ) -> QueueConsumer: ...

    @overload
    def consumer(
        self,
        group: str,
        *,
        topics: Names = ...,
        protocol: Literal["cooperative", "classic"],
        **options: Unpack[MemberKeywords],
    ) -> GroupConsumer: ...

    @overload
    def consumer(
        self, group: str, *, assign: Sequence[str | tuple[str, int]], **options: Unpack[ReaderKeywords]
    ) -> AssignedConsumer: ...

    @overload
    def consumer(
        self,
        group: str,
        *,
        topics: Names = ...,
        protocol: Protocol | None = None,
        **options: Unpack[MemberKeywords],
    ) -> Consumer: ...

    def consumer(
        self,
        group: str,
        *,
        topics: Names = (),
        pattern: str | None = None,
        assign: Sequence[str | tuple[str, int]] = (),
        protocol: Protocol | None = None,
        auto_offset_reset: str | None = None,
        isolation: Isolation | None = None,
        instance_id: str | None = None,
        client_id: str | None = None,
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        max_poll_interval_ms: int | None = None,
        assignor: str | Sequence[str] | None = None,
        ack_mode: str | None = None,
        listener: RebalanceListener | None = None,
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
            **unknown: is refused. The error names the option that may be meant.

        Returns:
            A `QueueConsumer` or a `GroupConsumer`, by the protocol; with `assign` an `AssignedConsumer`. Close it, or
            use it as a context manager. Type checkers take it for a `QueueConsumer` if you name no protocol.

        Raises:
            InvalidGroupId, InvalidTopic, InvalidRequest, InvalidSessionTimeout, InvalidRegularExpression: an argument
                is not valid, or does not go with another.
            InvalidConfig: the option is not known, does not apply, or the group has another setting.
            InconsistentGroupProtocol: the group has members of another protocol, or would have no assignor that all
                its members support.
            UnknownTopicOrPartition: the topic does not exist.
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
        }
        options = {**{name: value for name, value in named.items() if value is not None}, **unknown}
        assigned = parse_list("assign", assign)
        if assigned and (parse_list("topics", topics) or protocol is not None):
            raise InvalidRequest(
                "A member gets its partitions from the group: assign goes with no topics and no protocol.",
                found="assign and more",
                expected="one of topics, pattern and assign",
            )
        name = parse_group_name(group)
        if assigned:
            return self._create_for_partitions(name, assigned, options)
        return self._create_member(name, parse_topic_names("topics", topics), protocol, options)

    def _create_for_partitions(self, group: str, assign: Any, options: dict[str, Any]) -> AssignedConsumer:
        """Return a consumer of these partitions and of all partitions of these topics."""
        topic_partitions = parse_topics_and_partitions("assign", assign)
        options = normalize_option_names(options, ASSIGN_OPTIONS)
        check_option_names(options, ASSIGN_OPTIONS)
        defaults = self.namespace.config.member_defaults
        options = {**{key: value for key, value in defaults.items() if key in ASSIGN_OPTIONS}, **options}
        topics = [topic for topic, partition in topic_partitions if partition is None]
        partitions = [(topic, partition) for topic, partition in topic_partitions if partition is not None]
        if self._fetcher.query_groups(lambda state: group in state.groups_with_members):
            raise InvalidRequest(
                "The group has members, and its partitions are assigned to these.",
                found="assign",
                expected="topics, to join the group",
            )
        parts = self._build_parts(group, options, self._fetcher.new_waiter(threading.Event()))
        assigned = AssignedPartitions(parts, self._find_bounds, topics, partitions)
        return AssignedConsumer(parts, assigned, options.get("auto_offset_reset", "earliest"))

    def _create_member(self, group: str, topics: list[str], protocol: Any, options: dict[str, Any]) -> MemberConsumer:
        """Return a consumer that has joined the group, and leaves it with the connection."""
        if protocol is None:
            default = self.namespace.config.group_defaults.get("group.protocol", GROUP["group.protocol"].default)
            protocol = self._find_protocol(group, str(default))
        config = {"group.protocol": parse_choice("protocol", protocol, PROTOCOLS)}
        options = normalize_option_names(options, MEMBER_OPTIONS)
        check_option_names(options, MEMBER_OPTIONS)
        options = {**self.namespace.config.member_defaults, **options}
        if bool(topics) == (options.get("pattern") is not None):
            raise InvalidRequest(
                "Nothing, or two things, to consume from.", expected="one of topics, pattern and assign"
            )
        listener = options.get("listener")
        if not isinstance(listener, RebalanceListener | None):
            raise invalid_argument("listener", listener, "a RebalanceListener")
        member_options = read_member_options(topics, config, options)
        isolation: Isolation = options.get("isolation", "read_committed")
        self._fetcher.query(lambda state: [state.topic(name).topic_id for name in topics])
        membership = Membership(
            self.requester,
            self._heartbeats,
            self._fetcher.query_groups,
            new_id,
            group,
            isolation,
            member_options,
            self._fetcher.describe_deletion,
        )
        # a poll also keeps the member's place in its group, so it must not wait for long although no step comes
        parts = self._build_parts(group, options, self._fetcher.new_waiter(membership.news, _MEMBER_WAIT_MS))
        consumer: MemberConsumer
        if config["group.protocol"] == "queue":
            consumer = QueueConsumer(parts, membership, listener)
        else:
            reset: Reset = member_options.auto_offset_reset  # type: ignore[assignment]
            consumer = GroupConsumer(parts, membership, reset, listener)
        open_member = consumer._open_member
        open_member.watch(consumer, self._heartbeats.abandoned)
        self._open.register(open_member, self._open.members.add)
        open_member.warn_of_others(self._fetcher.query_groups)
        return consumer

    def _build_parts(self, group: str, options: dict[str, Any], waiter: StepWaiter) -> ConsumerParts:
        """Return what the parts of one consumer share. It caches row groups: the next poll reads on in them."""
        isolation: Isolation = options.get("isolation", "read_committed")
        check_isolation(isolation)
        fetcher = RangeFetcher(partial(self._fetcher.fetch_ranges, RowGroupCache()), isolation)
        return ConsumerParts(group, self.requester, fetcher, self._clock, waiter, self._explain_transactions)

    def _find_protocol(self, group: str, default: str) -> str:
        """Return the protocol of a group; default: if the group does not exist."""

        def find(state: State) -> str:
            existing = state.groups.get(group)
            return default if existing is None else str(existing.setting("group.protocol"))

        return self._fetcher.query_groups(find)

    def _explain_transactions(self, partitions: Sequence[TopicIdPartition]) -> list[str]:
        """Return a sentence for each open transaction at which readers of committed messages stand.

        A consumer follows neither producers nor transactions, so this reads them for this call alone.
        """
        state = self._fetcher.make_whole_reader().refresh()
        return [str(stall) for stall in find_open_transactions(state, partitions, state.now_ms)]

    def _find_bounds(
        self, topics: Iterable[str], isolation: Isolation, newest: bool = True
    ) -> dict[tuple[str, int], Bounds]:
        self._check_open()
        return self._fetcher.find_bounds(topics, isolation, newest)

    def run_worker(
        self,
        handler: Handler,
        topics: Names,
        *,
        group: str,
        concurrency: int = 8,
        retry_for: Errors = Exception,
        reject_for: Errors = (),
        backoff_ms: Backoff = BACKOFF_MS,
        time_limit_ms: int | None = None,
        stop_timeout_ms: int = 20_000,
        stop: threading.Event | None = None,
        **options: Unpack[MemberKeywords],
    ) -> WorkerReport:
        """Call a handler for each message of a queue group, in several threads, until the worker is stopped.

        A message is acknowledged when its handler returns. If the handler raises an error, the message is delivered
        again, or becomes a dead letter that shows the error. Messages of a key are handled one after the other.

        In the main thread, SIGTERM and SIGINT stop the worker. Handlers that run may end; all other messages go back.

        Args:
            handler: is called with each message. A coroutine function runs on one event loop.
            topics: topics to consume.
            group: name of the group, which is a `queue` group.
            concurrency: how many messages are handled at the same time, 1 to 1000.
            retry_for: errors after which a message is delivered again. All others reject it.
            reject_for: errors that reject a message, although they are in `retry_for`.
            backoff_ms: how long a message waits before its second, third, ... delivery; the last number counts for all
                later ones. Or a function of the message and the error. None: as `nack.backoff.ms` of the group says.
            time_limit_ms: after this time the message fails with a TimeoutError. A coroutine is cancelled. A thread
                cannot be stopped: it goes on, and takes no other message meanwhile. Default: no limit.
            stop_timeout_ms: how long handlers may go on after a stop. The messages of later ones go back.
            stop: stops the worker when it is set.
            **options: options of `consumer`, but `pattern`, `ack_mode` and `listener`.

        Returns:
            How many messages were acknowledged, given back and rejected.

        Raises:
            BaseException: a handler raised an error that is no Exception, such as SystemExit. Its message goes back.
            IllegalState: handlers beyond their limit have taken all threads; or the connection was closed.
            LakeMQError: an error of `consumer`. Errors that may pass are waited out and logged.
        """
        self._check_open()
        allowed = [name for name in MEMBER_OPTIONS if name not in ("pattern", "ack_mode", "listener")]
        check_option_names(options, allowed)
        join = partial(self.consumer, group, topics=topics, protocol="queue", **{**options, "ack_mode": "explicit"})
        rule = parse_retry_rule(retry_for, reject_for, backoff_ms)
        loop = HandlerLoop(
            handler,
            lambda listener: join(listener=listener),
            self._clock,
            rule,
            concurrency,
            time_limit_ms,
            stop_timeout_ms,
            stop,
        )
        return loop.run()

    def stream(
        self, group: str, *, topics: Names = (), protocol: Protocol | None = None, **options: Unpack[MemberKeywords]
    ) -> GroupStream:
        """Return a stream that calls a function with micro-batches. Processes of the group share the partitions.

        With a Spark session, the function gets DataFrames, otherwise Arrow tables: see GroupStream.foreach_batch.

        Args:
            group: name of the group.
            topics: topics to consume.
            protocol: of the group. Default: as the group is; `cooperative` where it is new.
            **options: options of `consumer`.

        Raises:
            InvalidRequest, InvalidConfig: an argument is not valid.
        """
        self._check_open()
        named = parse_topic_names("topics", topics)
        chosen: Any = protocol if protocol is not None else self._find_protocol(parse_group_name(group), "cooperative")

        def join_group() -> MemberConsumer:
            consumer = self.consumer(group, topics=named, protocol=chosen, **options)
            assert isinstance(consumer, MemberConsumer)
            return consumer

        return GroupStream(join_group, self._make_transaction, self._clock, self._has_spark)
