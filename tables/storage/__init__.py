"""The storage layer: objects, Delta tables and their logs, the mailbox. All I/O is here."""
