"""Views of the log: messages with their offsets, and dead letters with their causes."""

from __future__ import annotations

_LONGEST_MS = 100 * 365 * 86_400_000
"""The longest time to live in a view, so that an invalid one from another client does not make queries fail."""

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
WHERE s.kind = 'data' AND s.deleted = 0
  AND s.base_offset + (m.row - s.first_row) >= coalesce(s.log_start, 0)"""

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

_LOG_COMMITTED = f"{_LOG.replace('{segments}', STABLE)}\n  AND {COMMITTED}"

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

VIEWS: dict[str, str] = {
    "log": _LOG.replace("{segments}", _SEGMENTS),
    "log_committed": _LOG_COMMITTED,
    "dead_lettered": _DEAD_LETTERED,
}
