-- Transactions: what became of each batch?
SELECT transactional_id, state, reason, started_at, updated_at
FROM transaction_history
WHERE transactional_id LIKE 'alerts-%' AND state IN ('CompleteCommit', 'CompleteAbort')
ORDER BY updated_at, transactional_id
