"""Rows on their way into a topic: checked, placed in partitions, sorted into ranges, and named in a request."""
