"""The client: the part of the engine that runs in the processes of users."""
