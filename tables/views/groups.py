"""Views of groups: lag, members, assignments and their history."""

from __future__ import annotations

# Every partition of a group with its committed offset, or before the first commit with its start offset. A row of
# `consumer_offsets` also holds the ranges that a queue group has acknowledged past its committed offset.
_CONSUMER_LAG = """\
SELECT c.group, c.topic, c.partition, c.committed_offset, c.next_offset, c.counted_from, c.last_stable_offset,
       c.high_watermark,
       greatest(c.high_watermark - c.next_offset, 0)
         - CAST(sum(CASE WHEN c.stretch.state = 'acknowledged' THEN c.stretch.record_count ELSE 0 END) AS BIGINT)
         AS lag,
       c.deleted, timestamp_millis(c.committed_at_ms) AS committed_at, c.metadata
FROM (
  SELECT g.group, g.topic, g.partition, g.committed_offset,
         CASE WHEN g.committed_offset IS NOT NULL THEN g.committed_offset
              ELSE greatest(coalesce(g.start_offset, p.log_start_offset), p.log_start_offset) END AS next_offset,
         CASE WHEN g.committed_offset IS NOT NULL THEN 'committed'
              WHEN g.start_offset IS NOT NULL THEN 'start' ELSE 'log_start' END AS counted_from,
         p.last_stable_offset, p.high_watermark, g.deleted, g.committed_at_ms, g.metadata,
         explode_outer(g.ranges) AS stretch
  FROM (
    SELECT coalesce(o.group, a.group) AS group, coalesce(o.topic_id, a.topic_id) AS topic_id,
           coalesce(o.topic, a.topic) AS topic, coalesce(o.partition, a.partition) AS partition, o.committed_offset,
           a.start_offset, coalesce(o.deleted_count, 0) + coalesce(a.deleted_count, 0) AS deleted, o.committed_at_ms,
           o.metadata, o.ranges
    FROM (
      SELECT *
      FROM (
        SELECT *, row_number() OVER (PARTITION BY g.group, topic_id, partition ORDER BY step DESC) AS age
        FROM {database}.consumer_offsets g
      ) n
      WHERE n.age = 1 AND NOT n.removed
    ) o
    FULL OUTER JOIN (
      SELECT *
      FROM (
        SELECT *, row_number() OVER (PARTITION BY g.group, topic_id, partition ORDER BY step DESC) AS age
        FROM {database}.assignments g
      ) n
      WHERE n.age = 1 AND NOT n.removed
    ) a
      ON a.group = o.group AND a.topic_id = o.topic_id AND a.partition = o.partition
  ) g
  JOIN (
    SELECT *, row_number() OVER (PARTITION BY topic_id, partition ORDER BY step DESC) AS age
    FROM {database}.partitions
  ) p
    ON p.topic_id = g.topic_id AND p.partition = g.partition
  WHERE p.age = 1 AND NOT p.removed
) c
GROUP BY c.group, c.topic, c.partition, c.committed_offset, c.next_offset, c.counted_from, c.last_stable_offset,
         c.high_watermark, c.deleted, c.committed_at_ms, c.metadata"""

_GROUP_LAG = f"""\
SELECT l.group, l.topic, CAST(count(*) AS BIGINT) AS partitions, CAST(sum(l.lag) AS BIGINT) AS lag,
       max(l.lag) AS largest_lag, max(l.committed_at) AS committed_at
FROM (
{_CONSUMER_LAG}
) l
GROUP BY l.group, l.topic"""

_GROUP_MEMBERS = """\
SELECT m.group, m.member_id, m.instance_id, m.client_id, m.host, m.process_id, m.topics, m.pattern,
       m.assignors,
       timestamp_millis(m.joined_at_ms) AS joined_at
FROM (
  SELECT *, row_number() OVER (PARTITION BY g.group, member_id ORDER BY step DESC) AS age
  FROM {database}.members g
) m
WHERE m.age = 1 AND NOT m.removed"""

_GROUP_ASSIGNMENTS = """\
SELECT a.group, a.topic, a.partition, a.state, a.owner, a.target, a.lost_by, a.epoch, a.start_offset,
       timestamp_millis(a.since_ms) AS since, a.reason
FROM (
  SELECT *, row_number() OVER (PARTITION BY g.group, topic_id, partition ORDER BY step DESC) AS age
  FROM {database}.assignments g
) a
WHERE a.age = 1 AND NOT a.removed"""

_ASSIGNMENT_HISTORY = """\
SELECT m.group, m.topic, m.partition, m.state, m.owner, m.epoch, timestamp_millis(m.moved_at_ms) AS since,
       timestamp_millis(m.until_ms) AS until, m.reason
FROM (
  SELECT *, lead(moved_at_ms) OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position) AS until_ms
  FROM {database}.assignment_moves g
) m
WHERE m.state <> 'gone'"""

_HANDOFFS = """\
SELECT h.group, h.topic, h.partition, h.from_member, h.to_member, timestamp_millis(h.began_at_ms) AS began_at,
       timestamp_millis(h.ended_at_ms) AS ended_at, h.ended_at_ms - h.began_at_ms AS took_ms, h.reason, h.redelivered,
       h.from_offset, h.from_acknowledged_ahead, h.to_offset, h.to_acknowledged_ahead
FROM (
  SELECT m.group, m.topic_id, m.partition, m.assignment, max(m.topic) AS topic,
         min_by(m.last_state, m.number) AS last_state, min_by(m.last_owner, m.number) AS from_member,
         min_by(m.last_epoch, m.number) AS from_epoch, min_by(m.last_start_offset, m.number) AS from_offset,
         min_by(m.last_acknowledged_ahead, m.number) AS from_acknowledged_ahead,
         max(CASE WHEN m.state = 'ready' THEN m.start_offset END) AS to_offset,
         max(CASE WHEN m.state = 'ready' THEN m.acknowledged_ahead END) AS to_acknowledged_ahead,
         min_by(m.reason, m.number) AS reason,
         min(m.moved_at_ms) AS began_at_ms, max(CASE WHEN m.state = 'ready' THEN m.moved_at_ms END) AS ended_at_ms,
         max(CASE WHEN m.state = 'ready' THEN m.owner END) AS to_member,
         max(CASE WHEN m.state = 'ready' THEN m.epoch END) AS to_epoch,
         max(CASE WHEN m.state = 'gone' THEN 1 ELSE 0 END) AS gone,
         CAST(sum(m.redelivered_count) AS BIGINT) AS redelivered
  FROM (
    SELECT *, row_number() OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position) AS number,
           lag(state) OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position) AS last_state,
           lag(owner) OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position) AS last_owner,
           lag(epoch) OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position) AS last_epoch,
           lag(start_offset) OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position)
             AS last_start_offset,
           lag(acknowledged_ahead) OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position)
             AS last_acknowledged_ahead,
           sum(CASE WHEN state IN ('ready', 'gone') THEN 1 ELSE 0 END)
             OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS assignment
    FROM {database}.assignment_moves g
  ) m
  GROUP BY m.group, m.topic_id, m.partition, m.assignment
) h
WHERE h.last_state = 'ready' AND h.gone = 0 AND (h.to_epoch IS NULL OR h.to_epoch <> h.from_epoch)"""

VIEWS: dict[str, str] = {
    "consumer_lag": _CONSUMER_LAG,
    "group_lag": _GROUP_LAG,
    "group_members": _GROUP_MEMBERS,
    "group_assignments": _GROUP_ASSIGNMENTS,
    "assignment_history": _ASSIGNMENT_HISTORY,
    "handoffs": _HANDOFFS,
}
