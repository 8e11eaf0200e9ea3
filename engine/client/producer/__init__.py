"""The producer: records gather in batches, which a thread publishes in the background, in order and exactly once."""
