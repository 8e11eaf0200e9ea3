"""Members of groups: joining, heartbeats, and the partitions that the group assigns."""
