"""The rules of delayed messages, and of their release."""
