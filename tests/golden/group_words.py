"""Words of stories about groups: their members, partitions and committed offsets."""

from collections.abc import Mapping, Sequence
from typing import Any

from golden.queue_words import parse_tp
from protocol_harness import Harness

from lakemq.engine.client.groups.lag import list_partition_lags
from lakemq.engine.protocol.values.assignments import Group
from lakemq.engine.protocol.values.groups import (
    Assigned,
    ConfigureGroup,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.offsets import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetCommit,
    ResetOffsets,
    ResetPartition,
)


class GroupWords:
    mq: Harness

    def ask_commit_offsets(
        self,
        producer: Any,
        offsets_by_tp: dict[str, int],
        group: str = "g",
        metadata: str | None = None,
        member: str | None = None,
        epoch: int | None = None,
        generation: int | None = None,
    ) -> AnyRequest:
        """Commit offsets. epoch: by default that of the partition's owner; generation: by default the current one."""
        note = metadata * 5_000 if metadata else None
        offsets = [
            OffsetCommit(*parse_tp(tp), offset, note, epoch=self._epoch(group, tp) if epoch is None else epoch)
            for tp, offset in offsets_by_tp.items()
        ]
        current = self.mq.state.groups.get(group)
        if generation is None and current is not None and member is not None:
            generation = current.generation
        return CommitOffsets(group, offsets, producer.ref if producer else None, member, generation)

    def _epoch(self, group: str, tp: str) -> int | None:
        current = self.mq.state.groups.get(group)
        topic, partition = parse_tp(tp)
        topic_id = self.mq.state.topic_ids.get(topic, 0)
        assignment = current.assignments.get((topic_id, partition)) if current else None
        return assignment.epoch if assignment else None

    def ask_join(
        self,
        _: Any,
        member: str,
        group: str = "g",
        topics: Sequence[str] = ("t",),
        reset: str = "earliest",
        instance: str | None = None,
        session_ms: int = 45_000,
        max_poll_ms: int = 300_000,
        config: Mapping[str, Any] | None = None,
        knows: bool = False,
        pattern: str | None = None,
        is_member: bool = False,
        assignors: Sequence[str] = (),
    ) -> AnyRequest:
        """Join a group. knows: the process was lost, and says which partitions it had."""
        bound = self.list_lost_partitions(member, group) if knows else []
        settings = dict(config or {})
        if group not in self.mq.state.groups:
            settings = {"group.protocol": "cooperative", **settings}
        return JoinGroup(
            group,
            member,
            list(topics),
            pattern,
            instance,
            session_ms,
            max_poll_ms,
            reset,
            settings,
            bound,
            is_member,
            assignors=list(assignors),
        )

    def list_lost_partitions(self, member: str, group: str = "g") -> list[Assigned]:
        """Return the partitions that a member had when it was lost."""
        assignments = sorted(self.mq.state.groups[group].assignments.items())
        return [Assigned(*tp, assignment.epoch) for tp, assignment in assignments if assignment.lost_by == member]

    def ask_leave(self, _: Any, member: str | None, group: str = "g", instance: str | None = None) -> AnyRequest:
        return LeaveGroup(group, [member] if member else [], [instance] if instance else [])

    def ask_release(
        self, _: Any, member: str, group: str = "g", of: Sequence[str] | None = None, epoch: int | None = None
    ) -> AnyRequest:
        """Give up partitions; by default all that the member must give up."""
        current = self.mq.state.groups[group]
        if of is None:
            topic_partitions = [tp for tp in current.list_partitions_of(member) if tp in current.paused]
        else:
            topic_partitions = [(self.mq.state.topic_ids[topic], partition) for topic, partition in map(parse_tp, of)]
        epochs = [current.assignments[tp].epoch if epoch is None else epoch for tp in topic_partitions]
        return ReleasePartitions(
            group, member, [Assigned(*p, e) for p, e in zip(topic_partitions, epochs, strict=True)]
        )

    def ask_configure(self, _: Any, group: str, config: Mapping[str, Any], create: bool = False) -> AnyRequest:
        return ConfigureGroup(
            group, {"group.protocol": "cooperative", **config} if create and config else dict(config), create
        )

    def ask_delete_group(self, _: Any, group: str) -> AnyRequest:
        return DeleteGroup(group)

    def ask_delete_offsets(self, _: Any, of: Sequence[str], group: str = "g") -> AnyRequest:
        """Delete offsets of partitions or topics."""
        return DeleteOffsets(group, [parse_tp(text) if "-" in text else (text, None) for text in of])

    def ask_reset(
        self, _: Any, group: str, to: str, by: int = 0, of: dict[str, int | None] | None = None, dry_run: bool = False
    ) -> AnyRequest:
        """Reset offsets. of: partitions or topics -> the new offset; by default all that the group has."""
        pairs = [(parse_tp(text) if "-" in text else (text, None), offset) for text, offset in (of or {}).items()]
        topic_partitions = None if of is None else [ResetPartition(*tp, offset) for tp, offset in pairs]
        return ResetOffsets(group, to, by, topic_partitions, dry_run)  # type: ignore[arg-type]

    def ask_fetch_offsets(self, _: Any, group: str, of: str | None = None, stable: bool = True) -> AnyRequest:
        return FetchOffsets(group, [parse_tp(of)] if of else None, stable)

    def see_owned(self, expected: dict[str, list[str]]) -> dict[str, list[str]]:
        """Return the partitions of members, with a mark at those that they must give up."""
        return {
            member: [
                self._name(tp) + (" (paused)" if tp in group.paused else "") for tp in group.list_partitions_of(member)
            ]
            for member in expected
            for group in [next((g for g in self.mq.state.groups.values() if member in g.members), Group(""))]
        }

    def _name(self, tp: tuple[int, int]) -> str:
        return f"{self.mq.state.topics[tp[0]].topic}-{tp[1]}"

    def see_partitions(self, expected: dict[str, str]) -> dict[str, str]:
        """Return the states of partitions of group `g`."""
        by_name = {self._name(tp): owned for tp, owned in self.mq.state.groups["g"].assignments.items()}
        return {name: by_name[name].status.value if name in by_name else "none" for name in expected}

    def see_starts(self, expected: dict[str, int | None]) -> dict[str, int | None]:
        """Return where the owners of partitions of group `g` began."""
        by_name = {self._name(tp): owned for tp, owned in self.mq.state.groups["g"].assignments.items()}
        return {name: by_name[name].start_offset for name in expected}

    def see_group(self, expected: dict[str, Any]) -> dict[str, Any]:
        """Return facts about group `g`: state, generation, leader, epochs."""
        group = self.mq.state.groups["g"]
        leader = group.leader.member_id if group.leader else None
        facts = {"state": group.status.value, "leader": leader, "members": sorted(group.members)}
        return {name: facts[name] if name in facts else getattr(group, name) for name in expected}

    def see_groups(self, _: Any) -> list[str]:
        return sorted(self.mq.state.groups)

    def see_deleted(self, expected: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """Return how many offsets were deleted before groups were done with them."""
        state = self.mq.state
        lags = {group: list_partition_lags(state, group) for group in expected if state.list_group_partitions(group)}
        return {
            group: {f"{lag.topic}-{lag.partition}": lag.deleted for lag in lags.get(group, ()) if lag.deleted}
            for group in expected
        }

    def see_offsets(self, expected: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """Return the offsets that groups have committed."""
        topics = self.mq.state.topics
        return {
            group: {
                f"{topics[t].topic}-{p}": committed.offset
                for (t, p), committed in self.mq.state.offsets.get(group, {}).items()
            }
            for group in expected
        }
