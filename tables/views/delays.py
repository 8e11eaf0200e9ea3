"""Views of delayed messages: what waits, and what became of it."""

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
    "pending_delayed": _PENDING_DELAYED,
    "pending_delayed_rows": _PENDING_DELAYED_ROWS,
    "delayed_history": _DELAYED_HISTORY,
}
