"""Views of topics and producers: the size, the rate and the schemas of topics, and their live producers."""

from __future__ import annotations

from .log import COMMITTED, STABLE

RATE_MS = 60_000
"""The period before a topic's newest message over which `records_per_s` is measured."""

_TOPIC_STATS = f"""\
SELECT t.topic, t.partition_count AS partitions, CAST(coalesce(sum(l.records), 0) AS BIGINT) AS records,
       CAST(coalesce(sum(l.committed), 0) AS BIGINT) AS committed_records,
       CAST(coalesce(sum(l.recent), 0) AS DOUBLE) / {RATE_MS / 1000:g} AS records_per_s,
       timestamp_millis(min(l.first_ms)) AS first_timestamp, timestamp_millis(max(l.last_ms)) AS last_timestamp,
       t.config
FROM (
  SELECT *, row_number() OVER (PARTITION BY topic_id ORDER BY step DESC) AS age
  FROM {{database}}.topics
) t
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
WHERE t.age = 1 AND NOT t.removed
GROUP BY t.topic, t.partition_count, t.config"""

_LIVE_PRODUCERS = """\
SELECT p.producer_id, p.producer_epoch, t.transactional_id, t.state, timestamp_millis(p.seen_at_ms) AS seen_at,
       array_size(p.units) AS recent_batches
FROM (
  SELECT *, row_number() OVER (PARTITION BY producer_id ORDER BY step DESC) AS age
  FROM {database}.producers
) p
LEFT JOIN (
  SELECT *, row_number() OVER (PARTITION BY transactional_id ORDER BY step DESC) AS age
  FROM {database}.transactional_ids
) t
  ON t.producer_id = p.producer_id AND t.age = 1 AND NOT t.removed
WHERE p.age = 1 AND NOT p.removed"""

# All versions of all schemas. The newest one is in force, unless the topic's setting `schema` is empty now.
_TOPIC_SCHEMAS = """\
SELECT t.topic, t.listed.version AS version, t.listed.type AS type, t.listed.schema AS schema, t.listed.step AS step,
       t.newest = t.listed.version AND t.config LIKE '%"schema":%' AND NOT t.config LIKE '%"schema":""%' AS in_force
FROM (
  SELECT n.topic, n.config, array_size(n.schemas) AS newest, explode_outer(n.schemas) AS listed
  FROM (
    SELECT *, row_number() OVER (PARTITION BY topic_id ORDER BY step DESC) AS age
    FROM {database}.topics
  ) n
  WHERE n.age = 1 AND NOT n.removed
) t
WHERE t.listed IS NOT NULL"""

# Who changed what on request: the journal has the client of each decision. JSON escapes quotes within values, so no
# value passes for a field.
_ADMIN_CHANGES = """\
SELECT timestamp_millis(j.decided_at_ms) AS changed_at, j.kind, j.subject, split_part(j.request_id, '/', 1) AS client,
       j.decision, j.step, j.position
FROM {database}.journal j
WHERE j.request_id IS NOT NULL
  AND (j.kind IN ('topic_created', 'topic_altered', 'topic_deleted', 'records_deleted', 'group_forgotten',
                  'offsets_removed', 'delays_cancelled', 'dead_letters_settled')
       OR (j.kind = 'group_configured' AND NOT j.decision LIKE '%"by_member":true%')
       OR (j.kind = 'offsets_committed' AND j.decision LIKE '%"reason":"reset"%')
       OR (j.kind = 'transaction_moved' AND j.decision LIKE '%"reason":"operator"%'))"""

VIEWS: dict[str, str] = {
    "admin_changes": _ADMIN_CHANGES,
    "topic_stats": _TOPIC_STATS,
    "topic_schemas": _TOPIC_SCHEMAS,
    "live_producers": _LIVE_PRODUCERS,
}
