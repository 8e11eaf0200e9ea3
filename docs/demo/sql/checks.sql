-- Offsets run from 0 without a gap
SELECT count_if(first_offset <> 0 OR last_offset + 1 <> messages) AS broken, concat(count(*), ' partitions') AS evidence
FROM (
  SELECT topic, partition, min(offset) AS first_offset, max(offset) AS last_offset, count(*) AS messages
  FROM log_committed WHERE topic IN ('flights', 'weather') GROUP BY topic, partition
);

-- The order per key is kept, also in copies
SELECT count_if(timestamp < before OR first_partition <> partition) AS broken,
       concat(count(DISTINCT topic, key), ' keys') AS evidence
FROM (
  SELECT topic, key, partition, timestamp,
         lag(timestamp) OVER (PARTITION BY topic, key ORDER BY offset) AS before,
         min(partition) OVER (PARTITION BY topic, key) AS first_partition
  FROM log_committed WHERE topic IN ('flights', 'alerts') AND key IS NOT NULL
);

-- The group has read every flight
SELECT sum(lag) AS broken, concat(sum(partitions), ' partitions') AS evidence
FROM group_lag WHERE `group` = 'delay-alerts';

-- Every delay over 60 minutes is an alert, exactly once, though a process was killed
WITH late AS (
  SELECT key, value, timestamp FROM log_committed
  WHERE topic = 'flights' AND CAST(get_json_object(CAST(value AS STRING), '$.arr_delay') AS INT) > 60
), alerts AS (
  SELECT key, value, timestamp FROM log_committed WHERE topic = 'alerts'
)
SELECT (SELECT count(*) FROM (SELECT * FROM late EXCEPT ALL SELECT * FROM alerts))
       + (SELECT count(*) FROM (SELECT * FROM alerts EXCEPT ALL SELECT * FROM late)) AS broken,
       concat((SELECT count(*) FROM alerts), ' alerts for ', (SELECT count(*) FROM late), ' delays') AS evidence;

-- The transaction of the killed process was aborted when the process came back
SELECT CASE WHEN count_if(transactional_id = 'alerts-Ben' AND state = 'CompleteAbort' AND reason = 'fenced') > 0
            THEN 0 ELSE 1 END AS broken,
       concat(count_if(state = 'CompleteCommit'), ' transactions committed, ', count_if(state = 'CompleteAbort'),
              ' aborted') AS evidence
FROM transaction_history WHERE transactional_id LIKE 'alerts-%';

-- No reminder comes early
SELECT count_if(decided_at < timestamp) AS broken, concat(count(*), ' released') AS evidence
FROM log_committed WHERE topic = 'reminders' AND origin = 'delay';
