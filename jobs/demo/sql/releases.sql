-- Delays: when did each reminder come?
SELECT CAST(CAST(value AS STRING) AS INT) AS number, decided_at AS released_at
FROM log_committed WHERE topic = 'reminders' AND origin = 'delay' ORDER BY number
