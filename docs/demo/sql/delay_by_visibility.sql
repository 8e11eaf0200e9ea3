-- SQL: does fog delay departures?
WITH flights AS (
  SELECT get_json_object(CAST(value AS STRING), '$.origin') AS origin, date_trunc('HOUR', timestamp) AS hour,
         CAST(get_json_object(CAST(value AS STRING), '$.dep_delay') AS INT) AS dep_delay
  FROM log_committed WHERE topic = 'flights'
), weather AS (
  SELECT CAST(key AS STRING) AS origin, timestamp AS hour,
         CAST(get_json_object(CAST(value AS STRING), '$.visib') AS DOUBLE) AS miles
  FROM log_committed WHERE topic = 'weather'
)
SELECT CASE WHEN miles < 1 THEN 'below 1' WHEN miles < 3 THEN '1 to 3'
            WHEN miles < 6 THEN '3 to 6' WHEN miles < 10 THEN '6 to 10' ELSE '10' END AS visibility,
       count(*) AS flights, CAST(sum(dep_delay) AS BIGINT) AS delay_minutes
FROM flights JOIN weather USING (origin, hour)
WHERE dep_delay IS NOT NULL AND miles IS NOT NULL
GROUP BY 1 ORDER BY min(miles)
