-- Delays: how late did each reminder come?
SELECT unix_millis(timestamp) AS due_ms, unix_millis(decided_at) - unix_millis(timestamp) AS late_ms
FROM log_committed WHERE topic = 'reminders' AND origin = 'delay' ORDER BY due_ms
