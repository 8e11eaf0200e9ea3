"""Create the consumers of one connection: members of groups, and consumers of assigned partitions."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lakemq.tables.storage.coordination.beats import Beats

from ...namespace.clock import Clock
from ...namespace.namespace import Namespace
from ...namespace.process import new_id
from ...protocol.errors import InvalidRequest
from ...protocol.parameters import GROUP
from ...protocol.unsupported_settings import normalize_option_names
from ...protocol.values.assignments import TopicIdPartition
from ...protocol.values.state import State
from ..arguments import (
    check_option_names,
    invalid_argument,
    parse_choice,
    parse_group_name,
    parse_topic_names,
    parse_topics_and_partitions,
    parse_whole_number,
)
from ..fetch.fetcher import Fetcher, StepWaiter
from ..fetch.plan import Bounds, Isolation, check_isolation
from ..fetch.rows import RowGroupCache
from ..groups.stalls import find_open_transactions
from ..requests.requester import Requester
from .consumer import ConsumerParts, RangeFetcher
from .group_consumer import GroupConsumer, MemberConsumer, read_member_options
from .membership import HeartbeatThread, Membership
from .open_members import OpenMember
from .options import ASSIGN_OPTIONS, MEMBER_OPTIONS, PROTOCOLS, RebalanceListener
from .position_consumer import AssignedConsumer, AssignedPartitions
from .position_reader import Reset
from .queue_consumer import QueueConsumer

_MEMBER_WAIT_MS = 1_000
"""Longest wait of a member, after which its poll notes again that the member polls."""


class ConsumerFactory:
    """Checks the arguments of `mq.consumer`, and creates the consumer. Thread-safe."""

    def __init__(
        self,
        namespace: Namespace,
        requester: Requester,
        fetcher: Fetcher,
        clock: Clock,
        check_open: Callable[[], None],
    ) -> None:
        """check_open: raises IllegalState once the connection is closed."""
        config = namespace.config
        self._defaults = config.member_defaults
        self._default_protocol = str(config.group_defaults.get("group.protocol", GROUP["group.protocol"].default))
        self._requester, self._fetcher, self._clock, self._check_open = requester, fetcher, clock, check_open
        self._heartbeats = HeartbeatThread(Beats(namespace.files), new_id)

    def create_for_partitions(self, group: Any, assign: Any, options: dict[str, Any]) -> AssignedConsumer:
        """Return a consumer of these partitions and of all partitions of these topics.

        Raises what `mq.consumer` raises.
        """
        group, topic_partitions = parse_group_name(group), parse_topics_and_partitions("assign", assign)
        options = normalize_option_names(options, ASSIGN_OPTIONS)
        check_option_names(options, ASSIGN_OPTIONS)
        options = {**{key: value for key, value in self._defaults.items() if key in ASSIGN_OPTIONS}, **options}
        topics = [topic for topic, partition in topic_partitions if partition is None]
        partitions = [(topic, partition) for topic, partition in topic_partitions if partition is not None]
        if self._fetcher.query_groups(lambda state: group in state.groups_with_members):
            raise InvalidRequest(
                "The group has members, and its partitions are assigned to these.",
                found="assign",
                expected="topics, to join the group",
            )
        parts = self._build_parts(group, options, self._fetcher.new_waiter(threading.Event()))
        timeout_ms = parse_whole_number("default_timeout_ms", options.get("default_timeout_ms", 60_000), 0)
        assigned = AssignedPartitions(parts, self._find_bounds, topics, partitions, timeout_ms)
        return AssignedConsumer(parts, assigned, options.get("auto_offset_reset", "earliest"))

    def create_member(
        self,
        group: Any,
        topics: Any,
        protocol: Any,
        options: dict[str, Any],
        register: Callable[[OpenMember], object],
    ) -> MemberConsumer:
        """Return a consumer that has joined the group. register: is given what closes it with the connection.

        Raises what `mq.consumer` raises.
        """
        group, topics = parse_group_name(group), parse_topic_names("topics", topics)
        if protocol is None:
            protocol = self.find_protocol(group, self._default_protocol)
        config = {"group.protocol": parse_choice("protocol", protocol, PROTOCOLS)}
        options = normalize_option_names(options, MEMBER_OPTIONS)
        check_option_names(options, MEMBER_OPTIONS)
        options = {**self._defaults, **options}
        if bool(topics) == (options.get("pattern") is not None):
            raise InvalidRequest(
                "Nothing, or two things, to consume from.", expected="one of topics, pattern and assign"
            )
        listener = options.get("listener")
        if not isinstance(listener, RebalanceListener | None):
            raise invalid_argument("listener", listener, "a RebalanceListener")
        member_options = read_member_options(topics, config, options)
        isolation: Isolation = options.get("isolation", "read_committed")
        _read_timeout(options)
        self._check_topics_exist(topics)
        membership = Membership(
            self._requester,
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
        register(open_member)
        open_member.warn_of_others(self._fetcher.query_groups)
        return consumer

    def _build_parts(self, group: str, options: dict[str, Any], waiter: StepWaiter) -> ConsumerParts:
        """Return what the parts of one consumer share. It caches row groups: the next poll reads on in them."""
        isolation: Isolation = options.get("isolation", "read_committed")
        check_isolation(isolation)
        fetcher = RangeFetcher(partial(self._fetcher.fetch_ranges, RowGroupCache()), isolation)
        timeout_ms = _read_timeout(options)
        return ConsumerParts(
            group, self._requester, fetcher, self._clock, waiter, self._explain_transactions, timeout_ms
        )

    def find_protocol(self, group: Any, default: str) -> str:
        """Return the protocol of a group; default: if the group does not exist."""
        name = parse_group_name(group)
        protocol = self._fetcher.query_groups(lambda state: _find_protocol(state, name))
        return default if protocol is None else protocol

    def close(self) -> None:
        """Send no more heartbeats for any member."""
        self._heartbeats.stop()

    def _explain_transactions(self, partitions: Sequence[TopicIdPartition]) -> list[str]:
        """Return a sentence for each open transaction at which readers of committed messages stand.

        A consumer follows neither producers nor transactions, so this reads them for this call alone.
        """
        state = self._fetcher.make_whole_reader().refresh()
        return [str(stall) for stall in find_open_transactions(state, partitions, state.now_ms)]

    def _check_topics_exist(self, topics: Iterable[str]) -> None:
        self._check_open()
        self._fetcher.query(lambda state: [state.topic(name).topic_id for name in topics])

    def _find_bounds(
        self, topics: Iterable[str], isolation: Isolation, newest: bool = True
    ) -> dict[tuple[str, int], Bounds]:
        self._check_open()
        return self._fetcher.find_bounds(topics, isolation, newest)


def _read_timeout(options: Mapping[str, Any]) -> int | None:
    timeout_ms = options.get("consumer_timeout_ms")
    return None if timeout_ms is None else parse_whole_number("consumer_timeout_ms", timeout_ms, 0)


def _find_protocol(state: State, name: str) -> str | None:
    group = state.groups.get(name)
    return None if group is None else str(group.setting("group.protocol"))
