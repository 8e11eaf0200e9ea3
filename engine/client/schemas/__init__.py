"""Schemas of topics: they check values on publish, type them on fetch, and are compared when they change."""
