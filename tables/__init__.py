"""What is stored, and the only I/O on it."""
