"""Deliveries of `queue` groups, and dead letters."""
