"""Consumers of assigned partitions: each reads on from its positions."""
