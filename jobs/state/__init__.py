"""Read the present state of a namespace: leader, status, key spread and handoffs."""
