"""The consumers of one connection: those that read all of some topics, or what they were assigned, and members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lakemq.tables.storage.beats import Beats

from ...namespace.clock import Clock
from ...protocol.errors import InvalidRequest
from ...protocol.parameters import GROUP
from ...protocol.values.state import State
from ..arguments import group_name, known_options, one_of, refused, topic_names, topics_and_partitions
from ..fetch.fetched import Fetched
from ..fetch.fetching import Fetching
from ..fetch.kept import KeptRows
from ..fetch.plan import Bounds, Isolation, check_isolation
from ..requester import Requester
from .consumer import OPTIONS, Consumer, Reset
from .group_consumer import GroupConsumer, RebalanceListener
from .heart import Heart
from .member_options import MEMBER_OPTIONS, PROTOCOLS, member_options
from .membership import Membership
from .queue_consumer import QueueConsumer


class Consumers:
    """Makes them. Thread-safe."""

    def __init__(
        self,
        requester: Requester,
        fetching: Fetching,
        beats: Beats,
        clock: Clock,
        new_id: Callable[[], str],
        check_open: Callable[[], None],
    ) -> None:
        """check_open: raises IllegalState once the connection is closed."""
        self._requester, self._fetching, self._clock = requester, fetching, clock
        self._new_id, self._check_open = new_id, check_open
        self._heart = Heart(beats, new_id)

    def assigned(self, group: Any, assign: Any, options: dict[str, Any]) -> Consumer:
        """One that reads these partitions, and all of these topics. Raises what `mq.consumer` raises."""
        group, given = group_name(group), topics_and_partitions("assign", assign)
        known_options(options, OPTIONS)
        topics = [topic for topic, partition in given if partition is None]
        places = [(topic, partition) for topic, partition in given if partition is not None]
        if self._fetching.of_groups(lambda state: group in state.manned_groups):
            raise InvalidRequest(
                "The group has members, who are given its partitions.",
                found="assign",
                expected="topics, to be one of them",
            )
        return Consumer(self._requester, self._bounds, self._fetch(), self._clock, group, topics, places, **options)

    def member(
        self,
        group: Any,
        topics: Any,
        protocol: Any,
        options: dict[str, Any],
        closed: Callable[[GroupConsumer], object],
    ) -> GroupConsumer:
        """One that has joined the group. closed: told when it is. Raises what `mq.consumer` raises."""
        group, topics = group_name(group), topic_names("topics", topics)
        if protocol is None:  # as the group is, if there is one
            protocol = self.protocol_of(group, str(GROUP["group.protocol"].default))
        config = {"group.protocol": one_of("protocol", protocol, PROTOCOLS)}
        known_options(options, MEMBER_OPTIONS)
        if bool(topics) == (options.get("pattern") is not None):
            raise InvalidRequest("A consumer asks for topics.", expected="either topics, or assign, or pattern")
        listener = options.get("listener")
        if not isinstance(listener, RebalanceListener | None):
            raise refused("listener", listener, "a RebalanceListener")
        chosen = member_options(topics, config, options)
        isolation: Isolation = options.get("isolation", "read_committed")
        check_isolation(isolation)
        self._check_there(topics)
        of_groups = self._fetching.of_groups
        membership = Membership(self._requester, self._heart, of_groups, self._new_id, group, isolation, chosen)
        if config["group.protocol"] == "queue":
            return QueueConsumer(
                self._requester, membership, self._fetch(), self._clock, group, isolation, listener, closed
            )
        reset: Reset = chosen.auto_offset_reset  # type: ignore[assignment]
        return GroupConsumer(
            self._requester, membership, self._fetch(), self._clock, group, reset, isolation, listener, closed
        )

    def protocol_of(self, group: Any, otherwise: str) -> str:
        """Of the group as it is; otherwise: where there is none."""
        name = group_name(group)
        known = self._fetching.of_groups(lambda state: _protocol_of(state, name))
        return otherwise if known is None else known

    def close(self) -> None:
        """Nobody beats any more."""
        self._heart.stop()

    def _fetch(self) -> Callable[..., Fetched]:
        """For one consumer, which reads on where it was."""
        kept = KeptRows()

        def fetch(topic: str, isolation: Isolation, start: Mapping[int, int], end: Mapping[int, int]) -> Fetched:
            self._check_open()
            return self._fetching.fetched(self._fetching.plan(topic, isolation, start, end), kept)

        return fetch

    def _check_there(self, topics: Iterable[str]) -> None:
        self._check_open()
        self._fetching.look(lambda state: [state.topic(name).topic_id for name in topics])

    def _bounds(self, topics: Iterable[str], isolation: Isolation) -> dict[tuple[str, int], Bounds]:
        self._check_open()
        return self._fetching.bounds(topics, isolation)


def _protocol_of(state: State, group: str) -> str | None:
    known = state.groups.get(group)
    return None if known is None else str(known.setting("group.protocol"))
