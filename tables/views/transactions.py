"""Views of transactions: open ones, and the history of all."""

from __future__ import annotations

_TRANSACTION = """\
transactional_id, state, reason, timestamp_millis(updated_at_ms) AS updated_at,
       timestamp_millis(started_at_ms) AS started_at, {until} - started_at_ms AS open_ms,
       timeout_ms, producer_id, producer_epoch, topics, groups, batch_id, step, position"""

_OPEN_TRANSACTIONS = f"""\
SELECT {_TRANSACTION.replace("{until}", "unix_millis(now())")}
FROM (
  SELECT *, row_number() OVER (PARTITION BY transactional_id ORDER BY step DESC, position DESC) AS age
  FROM {{database}}.transactions
) t
WHERE age = 1 AND state = 'Ongoing'"""

_TRANSACTION_HISTORY = f"""\
SELECT {_TRANSACTION.replace("{until}", "updated_at_ms")}
FROM {{database}}.transactions"""

VIEWS: dict[str, str] = {
    "open_transactions": _OPEN_TRANSACTIONS,
    "transaction_history": _TRANSACTION_HISTORY,
}
