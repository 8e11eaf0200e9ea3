"""Carry requests of a client to the leader, and answers back: on a line, or through the mailbox."""
