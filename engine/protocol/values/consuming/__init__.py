"""Groups, their members and assignments, and the offsets that they commit."""
