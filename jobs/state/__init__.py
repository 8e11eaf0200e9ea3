"""What a namespace does now: leader, status, key spread and handoffs."""
