-- Is each message in the partition that the hash of its key says?
SELECT count_if(partition <> pmod(xxhash64(key), 8)) AS misplaced, count(*) AS keyed
FROM log_committed WHERE topic = 'flights' AND key IS NOT NULL
