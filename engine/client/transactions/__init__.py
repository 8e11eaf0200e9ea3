"""Transactions as a client has them: who holds a transactional id, what is open, how it ends."""
