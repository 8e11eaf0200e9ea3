"""The views of a namespace, in the SQL that Spark and DuckDB share; `{database}` stands for the database's name."""

__all__ = ["LOG_VIEWS", "VIEWS", "VIEW_COLUMNS"]


# The columns of the views, as Spark schema strings. A test compares them with what the queries give.


_MESSAGE = "timestamp timestamp, key binary, value binary, headers array<struct<key:string,value:binary>>"
_PLACE = "topic string, partition int, offset bigint"
_LOG_COLUMNS = (
    f"{_PLACE}, {_MESSAGE}, producer_id bigint, producer_epoch int, sequence bigint, transactional boolean, "
    "origin string, dead_letter string, source_offset bigint, decided_at timestamp, expires_at timestamp"
)
_TRANSACTION_COLUMNS = (
    "transactional_id string, state string, reason string, updated_at timestamp, started_at timestamp, "
    "open_ms bigint, timeout_ms bigint, producer_id bigint, producer_epoch int, topics array<string>, "
    "groups array<string>, batch_id bigint, step bigint, position int"
)
_OWNED = "`group` string, topic string, partition int, state string, owner string"

VIEW_COLUMNS: dict[str, str] = {
    "topic_stats": "topic string, partitions int, records bigint, committed_records bigint, records_per_s double, "
    "first_timestamp timestamp, last_timestamp timestamp, config string",
    "topic_schemas": "topic string, version int, type string, schema string, step bigint, in_force boolean",
    "admin_changes": "changed_at timestamp, kind string, subject string, client string, decision string, step bigint, "
    "position int",
    "live_producers": "producer_id bigint, producer_epoch int, transactional_id string, state string, "
    "seen_at timestamp, recent_batches int",
    "log": _LOG_COLUMNS,
    "log_committed": _LOG_COLUMNS,
    "dead_lettered": f"{_PLACE}, consumer_group string, reason string, error string, delivery_count int, "
    f"source_topic string, source_partition int, source_offset bigint, dead_at timestamp, {_MESSAGE}",
    "open_transactions": _TRANSACTION_COLUMNS,
    "transaction_history": _TRANSACTION_COLUMNS,
    "consumer_lag": "`group` string, topic string, partition int, committed_offset bigint, next_offset bigint, "
    "counted_from string, last_stable_offset bigint, high_watermark bigint, lag bigint, deleted bigint, "
    "committed_at timestamp, metadata string",
    "group_lag": "`group` string, topic string, partitions bigint, lag bigint, largest_lag bigint, "
    "committed_at timestamp",
    "group_members": "`group` string, member_id string, instance_id string, client_id string, host string, "
    "process_id bigint, topics array<string>, pattern string, assignors array<string>, joined_at timestamp",
    "group_assignments": f"{_OWNED}, target string, lost_by string, epoch bigint, start_offset bigint, "
    "since timestamp, reason string",
    "assignment_history": f"{_OWNED}, epoch bigint, since timestamp, until timestamp, reason string",
    "handoffs": "`group` string, topic string, partition int, from_member string, to_member string, "
    "began_at timestamp, ended_at timestamp, took_ms bigint, reason string, redelivered bigint, "
    "from_offset bigint, from_acknowledged_ahead string, to_offset bigint, to_acknowledged_ahead string",
    "pending_delayed": "topic string, due_hour timestamp, state string, messages bigint, ranges bigint, "
    "first_due timestamp, last_due timestamp",
    "pending_delayed_rows": "topic string, partition int, key binary, "
    "headers array<struct<key:string,value:binary>>, timestamp timestamp, deliver_at timestamp, state string",
    "delayed_history": "topic string, partition int, state string, messages bigint, first_due timestamp, "
    "last_due timestamp, ended_at timestamp, late_ms bigint, ended_by string",
    "current_schedules": "name string, topic string, cron string, time_zone string, missed string, state string, "
    "reason string, next_at timestamp, last_at timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>",
}


def _current(table: str, *keys: str) -> str:
    """Return the rows of a changelog that hold now: the newest of each key, unless that is removed."""
    return f"""\
(
  SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY {", ".join(f"g.{key}" for key in keys)} ORDER BY step DESC) AS age
    FROM {{database}}.{table} g
  ) n
  WHERE n.age = 1 AND NOT n.removed
)"""


# Views of the log: messages with their offsets, and dead letters with their causes.


FINAL_FILES = 1 << 62
"""Ids of files of `final_messages` are this or more: data rows that name one are not published rows any more."""

_LONGEST_MS = 100 * 365 * 86_400_000
"""The longest time to live in a view, so that an invalid one from another client does not make queries fail."""

# Messages where they were published, and those that data rows name in files of `final_messages`. Both kinds of rows
# change in one commit to `segments`, which engines read first: what it does not call final yet is shown by the first
# query alone. The tables have what it names for five minutes more, or for `merge.grace.ms` if that is less, and are
# read until then.
_LOG = f"""\
SELECT s.topic, s.partition, s.base_offset + (m.row - s.first_row) AS offset,
       coalesce(timestamp_millis(s.append_time_ms), m.timestamp) AS timestamp,
       m.key, m.value, m.headers,
       s.producer_id, s.producer_epoch, s.base_sequence + (m.row - s.first_row) AS sequence,
       s.transactional, s.origin, s.dead_letter, s.source_offset + (m.row - s.first_row) AS source_offset,
       timestamp_millis(s.decided_at_ms) AS decided_at,
       CASE WHEN coalesce(m.ttl_ms, s.ttl_ms) BETWEEN 0 AND {_LONGEST_MS}
            THEN timestamp_millis(s.ttl_from_ms + coalesce(m.ttl_ms, s.ttl_ms)) END AS expires_at
FROM (
{{segments}}
) s
JOIN {{database}}.messages m
  ON m.file_id + m.partition = s.file_id + s.file_partition AND m.file_id BETWEEN s.file_id AND s.file_id
 AND m.row >= s.first_row AND m.row < s.first_row + s.record_count
WHERE s.kind = 'data' AND s.deleted = 0 AND s.file_id < {FINAL_FILES}
  AND s.base_offset + (m.row - s.first_row) >= coalesce(s.log_start, 0){{where}}
UNION ALL
SELECT f.topic, f.partition, f.offset, f.timestamp, f.key, f.value, f.headers,
       f.producer_id, f.producer_epoch, f.sequence, f.transactional, f.origin, f.dead_letter, f.source_offset,
       f.decided_at, f.expires_at
FROM {{database}}.final_messages f
WHERE f.step <= (SELECT max(step) FROM {{database}}.segments WHERE kind = 'final') AND coalesce(f.ttl_ms, 0) >= 0"""

_SEGMENTS = """\
  SELECT *,
         max(CASE WHEN kind = 'log_start' THEN base_offset END) OVER (PARTITION BY topic_id, partition) AS log_start,
         max(CASE WHEN kind = 'topic_deleted' THEN 1 ELSE 0 END) OVER (PARTITION BY topic_id) AS deleted,
         max(CASE WHEN kind IN ('commit', 'abort') THEN kind END)
           OVER (PARTITION BY topic_id, partition, producer_id, producer_epoch) AS outcome
  FROM {database}.segments"""

STABLE = f"""\
  SELECT *,
         min(CASE WHEN kind = 'data' AND transactional AND outcome IS NULL THEN base_offset END)
           OVER (PARTITION BY topic_id, partition) AS unstable_from
  FROM (
{_SEGMENTS}
  ) o"""

COMMITTED = """\
(NOT transactional OR coalesce(outcome, '') = 'commit') AND (unstable_from IS NULL OR base_offset < unstable_from)"""
"""Condition that a segment of STABLE is visible with read_committed."""

_LOG_COMMITTED = _LOG.replace("{segments}", STABLE).replace("{where}", f"\n  AND {COMMITTED}")

_WHOLE_LOG = _LOG.replace("{segments}", _SEGMENTS).replace("{where}", "")

_DEAD_LETTERED = f"""\
SELECT l.topic, l.partition, l.offset, get_json_object(dead_letter, '$.group') AS consumer_group,
       get_json_object(dead_letter, '$.reason') AS reason, get_json_object(dead_letter, '$.error') AS error,
       CAST(get_json_object(dead_letter, '$.delivery_count') AS INT) AS delivery_count,
       get_json_object(dead_letter, '$.topic') AS source_topic,
       CAST(get_json_object(dead_letter, '$.partition') AS INT) AS source_partition, source_offset,
       decided_at AS dead_at, timestamp, key, value, headers
FROM (
{_WHOLE_LOG}
) l
WHERE l.origin = 'dead_letter'"""

LOG_VIEWS: dict[str, str] = {
    "log": _WHOLE_LOG,
    "log_committed": _LOG_COMMITTED,
    "dead_lettered": _DEAD_LETTERED,
}


# Views of topics and producers: the size, the rate and the schemas of topics, and their live producers.


RATE_MS = 60_000
"""The period before a topic's newest message over which `records_per_s` is measured."""

_TOPIC_STATS = f"""\
SELECT t.topic, t.partition_count AS partitions, CAST(coalesce(sum(l.records), 0) AS BIGINT) AS records,
       CAST(coalesce(sum(l.committed), 0) AS BIGINT) AS committed_records,
       CAST(coalesce(sum(l.recent), 0) AS DOUBLE) / {RATE_MS / 1000:g} AS records_per_s,
       timestamp_millis(min(l.first_ms)) AS first_timestamp, timestamp_millis(max(l.last_ms)) AS last_timestamp,
       t.config
FROM {_current("topics", "topic_id")} t
LEFT JOIN (
  SELECT s.topic_id, s.records, s.min_timestamp_ms AS first_ms, s.max_timestamp_ms AS last_ms,
         CASE WHEN s.is_committed THEN s.records ELSE 0 END AS committed,
         CASE WHEN s.max_timestamp_ms <= s.newest_ms - {RATE_MS} THEN 0.0
              WHEN s.min_timestamp_ms > s.newest_ms - {RATE_MS} THEN s.records
              ELSE s.records * (s.max_timestamp_ms - s.newest_ms + {RATE_MS})
                   / (s.max_timestamp_ms - s.min_timestamp_ms) END AS recent
  FROM (
    SELECT topic_id, min_timestamp_ms, max_timestamp_ms,
           record_count - greatest(coalesce(log_start, 0) - base_offset, 0) AS records,
           {COMMITTED} AS is_committed,
           max(max_timestamp_ms) OVER (PARTITION BY topic_id) AS newest_ms
    FROM (
{STABLE}
    ) r
    WHERE kind = 'data' AND last_offset >= coalesce(log_start, 0)
  ) s
) l
  ON l.topic_id = t.topic_id
GROUP BY t.topic, t.partition_count, t.config"""

_LIVE_PRODUCERS = f"""\
SELECT p.producer_id, p.producer_epoch, t.transactional_id, t.state, timestamp_millis(p.seen_at_ms) AS seen_at,
       array_size(p.units) AS recent_batches
FROM {_current("producers", "producer_id")} p
LEFT JOIN {_current("transactional_ids", "transactional_id")} t
  ON t.producer_id = p.producer_id"""

# All versions of all schemas. The newest one is in force, unless the topic's setting `schema` is empty now.
_TOPIC_SCHEMAS = f"""\
SELECT t.topic, t.listed.version AS version, t.listed.type AS type, t.listed.schema AS schema, t.listed.step AS step,
       t.newest = t.listed.version AND t.config LIKE '%"schema":%' AND NOT t.config LIKE '%"schema":""%' AS in_force
FROM (
  SELECT n.topic, n.config, array_size(n.schemas) AS newest, explode_outer(n.schemas) AS listed
  FROM {_current("topics", "topic_id")} n
) t
WHERE t.listed IS NOT NULL"""

_ADMIN_CHANGES = """\
SELECT timestamp_millis(decided_at_ms) AS changed_at, kind, subject, client, decision, step, position
FROM {database}.admin_log"""

_TOPICS_VIEWS: dict[str, str] = {
    "admin_changes": _ADMIN_CHANGES,
    "topic_stats": _TOPIC_STATS,
    "topic_schemas": _TOPIC_SCHEMAS,
    "live_producers": _LIVE_PRODUCERS,
}


# Views of transactions: open ones, and the history of all.


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

_TRANSACTIONS_VIEWS: dict[str, str] = {
    "open_transactions": _OPEN_TRANSACTIONS,
    "transaction_history": _TRANSACTION_HISTORY,
}


# Views of groups: lag, members, assignments and their history.


# Every partition of a group with its committed offset, or before the first commit with its start offset. A row of
# `consumer_offsets` also holds the ranges that a queue group has acknowledged past its committed offset. Elsewhere
# engine/namespace/progress.py counts the lag; a test compares the two.
_CONSUMER_LAG = f"""\
SELECT c.group, c.topic, c.partition, c.committed_offset, c.next_offset, c.counted_from, c.last_stable_offset,
       c.high_watermark,
       greatest(c.high_watermark - c.next_offset, 0)
         - CAST(sum(CASE WHEN c.stretch.state = 'acknowledged'
                         THEN greatest(c.stretch.first_offset + c.stretch.record_count
                                       - greatest(c.stretch.first_offset, c.next_offset), 0)
                         ELSE 0 END) AS BIGINT) AS lag,
       c.deleted, timestamp_millis(c.committed_at_ms) AS committed_at, c.metadata
FROM (
  SELECT g.group, g.topic, g.partition, g.committed_offset,
         greatest(coalesce(g.committed_offset, g.start_offset, p.log_start_offset), p.log_start_offset) AS next_offset,
         CASE WHEN g.committed_offset IS NOT NULL THEN 'committed'
              WHEN g.start_offset IS NOT NULL THEN 'start' ELSE 'log_start' END AS counted_from,
         p.last_stable_offset, p.high_watermark, g.deleted, g.committed_at_ms, g.metadata,
         explode_outer(g.ranges) AS stretch
  FROM (
    SELECT coalesce(o.group, a.group) AS group, coalesce(o.topic_id, a.topic_id) AS topic_id,
           coalesce(o.topic, a.topic) AS topic, coalesce(o.partition, a.partition) AS partition, o.committed_offset,
           a.start_offset, coalesce(o.deleted_count, 0) + coalesce(a.deleted_count, 0) AS deleted, o.committed_at_ms,
           o.metadata, o.ranges
    FROM {_current("consumer_offsets", "group", "topic_id", "partition")} o
    FULL OUTER JOIN {_current("assignments", "group", "topic_id", "partition")} a
      ON a.group = o.group AND a.topic_id = o.topic_id AND a.partition = o.partition
  ) g
  JOIN {_current("partitions", "topic_id", "partition")} p
    ON p.topic_id = g.topic_id AND p.partition = g.partition
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

_GROUP_MEMBERS = f"""\
SELECT m.group, m.member_id, m.instance_id, m.client_id, m.host, m.process_id, m.topics, m.pattern,
       m.assignors,
       timestamp_millis(m.joined_at_ms) AS joined_at
FROM {_current("members", "group", "member_id")} m"""

_GROUP_ASSIGNMENTS = f"""\
SELECT a.group, a.topic, a.partition, a.state, a.owner, a.target, a.lost_by, a.epoch, a.start_offset,
       timestamp_millis(a.since_ms) AS since, a.reason
FROM {_current("assignments", "group", "topic_id", "partition")} a"""

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

_GROUPS_VIEWS: dict[str, str] = {
    "consumer_lag": _CONSUMER_LAG,
    "group_lag": _GROUP_LAG,
    "group_members": _GROUP_MEMBERS,
    "group_assignments": _GROUP_ASSIGNMENTS,
    "assignment_history": _ASSIGNMENT_HISTORY,
    "handoffs": _HANDOFFS,
}


# Views of delayed messages: those that wait, and the outcomes of the others.


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

# If a range was cancelled with its topic, `cancelled_rows` has only the rows that were cancelled before. The number of
# cancelled rows below `released_count` is the position of that number among them, because lambdas differ between SQL
# dialects.
_ENDED = f"""\
SELECT topic, partition, state, record_count, first_due_ms, last_due_ms, changed_at_ms, changed_by,
         coalesce(array_size(rescheduled_rows), 0) AS rescheduled,
         CASE WHEN state = 'aborted' THEN 0
              ELSE released_count - coalesce(
                array_position(array_sort(array_append(cancelled_rows, released_count)), released_count) - 1, 0)
         END AS released
  FROM (
  {_NEWEST_DELAYED}
) d
  WHERE d.age = 1 AND d.removed"""

_DELAYED_HISTORY = f"""\
SELECT topic, partition, state, CAST(messages AS BIGINT) AS messages,
       timestamp_millis(first_due_ms) AS first_due, timestamp_millis(last_due_ms) AS last_due,
       timestamp_millis(changed_at_ms) AS ended_at,
       CASE WHEN state = 'released' AND ended_as = 'released'
            THEN greatest(changed_at_ms - last_due_ms, 0) END AS late_ms,
       changed_by AS ended_by
FROM (
  SELECT e.topic, e.partition, o.state, e.state AS ended_as, e.first_due_ms, e.last_due_ms, e.changed_at_ms,
         e.changed_by,
         CASE WHEN o.state = 'released' THEN e.released
              WHEN o.state = 'rescheduled' THEN e.rescheduled
              WHEN (e.state = 'aborted') = (o.state = 'aborted') THEN e.record_count - e.released - e.rescheduled
              ELSE 0
         END AS messages
  FROM (
  {_ENDED}
) e
  CROSS JOIN (
    SELECT 'released' AS state UNION ALL SELECT 'cancelled' UNION ALL SELECT 'rescheduled' UNION ALL SELECT 'aborted'
  ) o
) h
WHERE messages > 0"""

_DELAYS_VIEWS: dict[str, str] = {
    "pending_delayed": _PENDING_DELAYED,
    "pending_delayed_rows": _PENDING_DELAYED_ROWS,
    "delayed_history": _DELAYED_HISTORY,
}


# Schedules of recurring messages.


_CURRENT_SCHEDULES = f"""\
SELECT name, topic, cron, time_zone, missed, state, reason,
       CASE WHEN state = 'active' THEN timestamp_millis(next_at_ms) END AS next_at,
       timestamp_millis(last_at_ms) AS last_at, key, value, headers
FROM {_current("schedules", "name")} s"""


VIEWS: dict[str, str] = {
    **_TOPICS_VIEWS,
    **LOG_VIEWS,
    **_TRANSACTIONS_VIEWS,
    **_GROUPS_VIEWS,
    **_DELAYS_VIEWS,
    "current_schedules": _CURRENT_SCHEDULES,
}
