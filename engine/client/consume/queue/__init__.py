"""Members of `queue` groups: acquire messages, and acknowledge each."""
