"""The columns of the views, as Spark schema strings. A test compares them with what the queries give."""

from __future__ import annotations

_MESSAGE = "timestamp timestamp, key binary, value binary, headers array<struct<key:string,value:binary>>"
_PLACE = "topic string, partition int, offset bigint"
_LOG = (
    f"{_PLACE}, {_MESSAGE}, producer_id bigint, producer_epoch int, sequence bigint, transactional boolean, "
    "origin string, dead_letter string, source_offset bigint, decided_at timestamp, expires_at timestamp"
)
_TRANSACTION = (
    "transactional_id string, state string, reason string, updated_at timestamp, started_at timestamp, "
    "open_ms bigint, timeout_ms bigint, producer_id bigint, producer_epoch int, topics array<string>, "
    "groups array<string>, batch_id bigint, step bigint, position int"
)
_OWNED = "`group` string, topic string, partition int, state string, owner string"

VIEW_COLUMNS: dict[str, str] = {
    "topic_stats": "topic string, partitions int, records bigint, committed_records bigint, records_per_s double, "
    "first_timestamp timestamp, last_timestamp timestamp, config string",
    "topic_schemas": "topic string, version int, type string, schema string, step bigint, in_force boolean",
    "admin_changes": "changed_at timestamp, kind string, subject string, client string, decision string, step bigint, "
    "position int",
    "live_producers": "producer_id bigint, producer_epoch int, transactional_id string, state string, "
    "seen_at timestamp, recent_batches int",
    "log": _LOG,
    "log_committed": _LOG,
    "dead_lettered": f"{_PLACE}, consumer_group string, reason string, error string, delivery_count int, "
    f"source_topic string, source_partition int, source_offset bigint, dead_at timestamp, {_MESSAGE}",
    "open_transactions": _TRANSACTION,
    "transaction_history": _TRANSACTION,
    "consumer_lag": "`group` string, topic string, partition int, committed_offset bigint, next_offset bigint, "
    "counted_from string, last_stable_offset bigint, high_watermark bigint, lag bigint, deleted bigint, "
    "committed_at timestamp, metadata string",
    "group_lag": "`group` string, topic string, partitions bigint, lag bigint, largest_lag bigint, "
    "committed_at timestamp",
    "group_members": "`group` string, member_id string, instance_id string, client_id string, host string, "
    "process_id bigint, topics array<string>, pattern string, assignors array<string>, joined_at timestamp",
    "group_assignments": f"{_OWNED}, target string, lost_by string, epoch bigint, start_offset bigint, "
    "since timestamp, reason string",
    "assignment_history": f"{_OWNED}, epoch bigint, since timestamp, until timestamp, reason string",
    "handoffs": "`group` string, topic string, partition int, from_member string, to_member string, "
    "began_at timestamp, ended_at timestamp, took_ms bigint, reason string, redelivered bigint, "
    "from_offset bigint, from_acknowledged_ahead string, to_offset bigint, to_acknowledged_ahead string",
    "pending_delayed": "topic string, due_hour timestamp, state string, messages bigint, ranges bigint, "
    "first_due timestamp, last_due timestamp",
    "pending_delayed_rows": "topic string, partition int, key binary, "
    "headers array<struct<key:string,value:binary>>, timestamp timestamp, deliver_at timestamp, state string",
    "delayed_history": "topic string, partition int, state string, messages bigint, first_due timestamp, "
    "last_due timestamp, ended_at timestamp, late_ms bigint, ended_by string",
}
