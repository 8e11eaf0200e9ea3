"""Transactions in the client: who holds a transactional id, what is open, and how it ends."""
