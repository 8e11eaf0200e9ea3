"""Consuming: what a group has read of its partitions, and reading on from there."""
