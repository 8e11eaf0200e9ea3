"""Views of delayed messages: those that wait, and the outcomes of the others."""

from __future__ import annotations

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

VIEWS: dict[str, str] = {
    "pending_delayed": _PENDING_DELAYED,
    "pending_delayed_rows": _PENDING_DELAYED_ROWS,
    "delayed_history": _DELAYED_HISTORY,
}
