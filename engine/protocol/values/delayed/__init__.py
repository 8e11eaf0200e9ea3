"""Delayed messages, and how those of a far time are packed in memory."""
