"""The stored tables, and the only I/O on them."""
