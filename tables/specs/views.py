"""The views of a namespace, in the SQL that Spark and DuckDB share; `{database}` stands for the database's name."""

from __future__ import annotations

# The segments come first in the plan: Spark takes each table's snapshot when the plan reaches it, files are registered
# in `messages` before the segments that point at them, hence every segment seen finds its rows.
# They are scanned once, so that one snapshot says what is there, what was committed and where the stable log ends.
# The key of the join is one bigint, which leaves a row about one candidate. Spark would make `m.file_id = s.file_id` a
# second key; as BETWEEN it is a filter, as the range of rows is.
_LOG = """\
SELECT s.topic, s.partition, s.base_offset + (m.row - s.first_row) AS offset,
       coalesce(timestamp_millis(s.append_time_ms), m.timestamp) AS timestamp,
       m.key, m.value, m.headers,
       s.producer_id, s.producer_epoch, s.base_sequence + (m.row - s.first_row) AS sequence,
       s.transactional, s.origin, s.dead_letter, s.source_offset + (m.row - s.first_row) AS source_offset,
       timestamp_millis(s.decided_at_ms) AS decided_at
FROM (
{segments}
) s
JOIN {database}.messages m
  ON m.file_id + m.partition = s.file_id + s.file_partition AND m.file_id BETWEEN s.file_id AND s.file_id
 AND m.row >= s.first_row AND m.row < s.first_row + s.record_count
WHERE s.kind = 'data' AND s.deleted = 0
  AND s.base_offset + (m.row - s.first_row) >= coalesce(s.log_start, 0)"""

_SEGMENTS = """\
  SELECT *,
         max(CASE WHEN kind = 'log_start' THEN base_offset END) OVER (PARTITION BY topic_id, partition) AS log_start,
         max(CASE WHEN kind = 'topic_deleted' THEN 1 ELSE 0 END) OVER (PARTITION BY topic_id) AS deleted,
         max(CASE WHEN kind IN ('commit', 'abort') THEN kind END)
           OVER (PARTITION BY topic_id, partition, producer_id, producer_epoch) AS outcome
  FROM {database}.segments"""

# A transaction is named by its producer's id and epoch; without a marker it is open.
_STABLE = f"""\
  SELECT *,
         min(CASE WHEN kind = 'data' AND transactional AND outcome IS NULL THEN base_offset END)
           OVER (PARTITION BY topic_id, partition) AS unstable_from
  FROM (
{_SEGMENTS}
  ) o"""

_LOG_COMMITTED = (
    _LOG.replace("{segments}", _STABLE)
    + """
  AND (NOT s.transactional OR s.outcome = 'commit')
  AND (s.unstable_from IS NULL OR s.base_offset < s.unstable_from)"""
)

_TRANSACTION = """\
transactional_id, state, reason, timestamp_millis(updated_at_ms) AS updated_at,
       timestamp_millis(started_at_ms) AS started_at, {until} - started_at_ms AS open_ms,
       timeout_ms, producer_id, producer_epoch, topics, groups, batch_id, step, position"""

_OPEN_TRANSACTIONS = f"""\
SELECT {_TRANSACTION.replace("{until}", "unix_millis(now())")}
FROM (
  SELECT *, row_number() OVER (PARTITION BY transactional_id ORDER BY step DESC, position DESC) AS age
  FROM {{database}}.transactions
) t
WHERE age = 1 AND state = 'Ongoing'"""

_TRANSACTION_HISTORY = f"""\
SELECT {_TRANSACTION.replace("{until}", "updated_at_ms")}
FROM {{database}}.transactions"""

# What a queue group has acknowledged past its committed offset is not left; of what is not stable nothing is.
_CONSUMER_LAG = """\
SELECT c.group, c.topic, c.partition, c.committed_offset, c.last_stable_offset, c.high_watermark,
       greatest(c.last_stable_offset - c.committed_offset, 0)
         - CAST(sum(CASE WHEN c.stretch.state = 'acknowledged'
                         THEN greatest(least(c.stretch.first_offset + c.stretch.record_count, c.last_stable_offset)
                                       - c.stretch.first_offset, 0)
                         ELSE 0 END) AS BIGINT) AS lag,
       timestamp_millis(c.committed_at_ms) AS committed_at, c.metadata
FROM (
  SELECT o.group, o.topic, o.partition, o.committed_offset, p.last_stable_offset, p.high_watermark, o.committed_at_ms,
         o.metadata, explode_outer(o.ranges) AS stretch
  FROM (
    SELECT *, row_number() OVER (PARTITION BY g.group, topic_id, partition ORDER BY step DESC) AS age
    FROM {database}.consumer_offsets g
  ) o
  JOIN (
    SELECT *, row_number() OVER (PARTITION BY topic_id, partition ORDER BY step DESC) AS age
    FROM {database}.partitions
  ) p
    ON p.topic_id = o.topic_id AND p.partition = o.partition
  WHERE o.age = 1 AND p.age = 1 AND NOT o.removed AND NOT p.removed
) c
GROUP BY c.group, c.topic, c.partition, c.committed_offset, c.last_stable_offset, c.high_watermark, c.committed_at_ms,
         c.metadata"""

_GROUP_MEMBERS = """\
SELECT m.group, m.member_id, m.instance_id, m.topics, m.pattern, timestamp_millis(m.joined_at_ms) AS joined_at
FROM (
  SELECT *, row_number() OVER (PARTITION BY g.group, member_id ORDER BY step DESC) AS age
  FROM {database}.members g
) m
WHERE m.age = 1 AND NOT m.removed"""

_GROUP_ASSIGNMENTS = """\
SELECT a.group, a.topic, a.partition, a.state, a.owner, a.target, a.epoch, a.start_offset,
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

# What lies between two assignments is a handoff, the later one its last move; it is named by how many went before it.
_HANDOFFS = """\
SELECT h.group, h.topic, h.partition, h.from_member, h.to_member, timestamp_millis(h.began_at_ms) AS began_at,
       timestamp_millis(h.ended_at_ms) AS ended_at, h.ended_at_ms - h.began_at_ms AS took_ms, h.reason, h.redelivered
FROM (
  SELECT m.group, m.topic_id, m.partition, m.assignment, max(m.topic) AS topic,
         min_by(m.last_state, m.number) AS last_state, min_by(m.last_owner, m.number) AS from_member,
         min_by(m.last_epoch, m.number) AS from_epoch, min_by(m.reason, m.number) AS reason,
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
           sum(CASE WHEN state IN ('ready', 'gone') THEN 1 ELSE 0 END)
             OVER (PARTITION BY g.group, topic_id, partition ORDER BY step, position
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS assignment
    FROM {database}.assignment_moves g
  ) m
  GROUP BY m.group, m.topic_id, m.partition, m.assignment
) h
WHERE h.last_state = 'ready' AND h.gone = 0 AND (h.to_epoch IS NULL OR h.to_epoch <> h.from_epoch)"""

_NEWEST_DELAYED = """\
SELECT *, row_number() OVER (PARTITION BY file_id, first_row, topic_id, reschedules ORDER BY step DESC) AS age
  FROM {database}.delayed"""

_PENDING_DELAYED = f"""\
SELECT d.topic, timestamp_millis(d.due_hour * 3600000) AS due_hour, d.state,
       CAST(sum(d.waiting_count) AS BIGINT) AS messages, CAST(count(*) AS BIGINT) AS ranges,
       timestamp_millis(min(d.first_due_ms)) AS first_due, timestamp_millis(max(d.last_due_ms)) AS last_due
FROM (
  {_NEWEST_DELAYED}
) d
WHERE d.age = 1 AND NOT d.removed
GROUP BY d.topic, d.due_hour, d.state"""

_DEAD_LETTERED = f"""\
SELECT l.topic, l.partition, l.offset, get_json_object(dead_letter, '$.group') AS consumer_group,
       get_json_object(dead_letter, '$.reason') AS reason, get_json_object(dead_letter, '$.error') AS error,
       CAST(get_json_object(dead_letter, '$.delivery_count') AS INT) AS delivery_count,
       get_json_object(dead_letter, '$.topic') AS source_topic,
       CAST(get_json_object(dead_letter, '$.partition') AS INT) AS source_partition, source_offset,
       decided_at AS dead_at, timestamp, key, value, headers
FROM (
{_LOG.replace("{segments}", _SEGMENTS)} AND s.origin = 'dead_letter'
) l"""

_PENDING_DELAYED_ROWS = f"""\
SELECT d.topic, d.partition, m.key, m.headers, m.timestamp,
       CASE WHEN d.reschedules > 0 THEN timestamp_millis(d.first_due_ms) ELSE m.deliver_at END AS deliver_at, d.state
FROM (
  {_NEWEST_DELAYED}
) d
JOIN {{database}}.messages m
  ON m.file_id + m.partition = d.file_id + d.partition AND m.file_id BETWEEN d.file_id AND d.file_id
 AND m.row >= d.first_row + d.released_count AND m.row < d.first_row + d.record_count
WHERE d.age = 1 AND NOT d.removed
  AND (d.cancelled_rows IS NULL OR NOT array_contains(d.cancelled_rows, m.row - d.first_row))"""

# late_ms: of the last message of a range; the others of it were due before.
_DELAYED_HISTORY = f"""\
SELECT d.topic, d.partition, d.state, d.record_count AS messages,
       coalesce(array_size(d.cancelled_rows), 0) AS passed_over,
       coalesce(array_size(d.rescheduled_rows), 0) AS rescheduled,
       timestamp_millis(d.first_due_ms) AS first_due, timestamp_millis(d.last_due_ms) AS last_due,
       timestamp_millis(d.changed_at_ms) AS ended_at,
       CASE WHEN d.state = 'released' THEN d.changed_at_ms - d.last_due_ms END AS late_ms, d.changed_by AS ended_by
FROM (
  {_NEWEST_DELAYED}
) d
WHERE d.age = 1 AND d.removed"""

VIEWS: dict[str, str] = {
    "log": _LOG.replace("{segments}", _SEGMENTS),
    "log_committed": _LOG_COMMITTED,
    "open_transactions": _OPEN_TRANSACTIONS,
    "transaction_history": _TRANSACTION_HISTORY,
    "dead_lettered": _DEAD_LETTERED,
    "consumer_lag": _CONSUMER_LAG,
    "group_members": _GROUP_MEMBERS,
    "group_assignments": _GROUP_ASSIGNMENTS,
    "assignment_history": _ASSIGNMENT_HISTORY,
    "handoffs": _HANDOFFS,
    "pending_delayed": _PENDING_DELAYED,
    "pending_delayed_rows": _PENDING_DELAYED_ROWS,
    "delayed_history": _DELAYED_HISTORY,
}
