"""Letters of clients: how they come in, by line or mailbox, and how each is answered."""
