"""The rules of groups: joining, reconciling, committed offsets, and operations on groups."""
