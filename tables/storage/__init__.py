"""How it is stored: objects, the logs of Delta tables, the mailbox. The only I/O there is."""
