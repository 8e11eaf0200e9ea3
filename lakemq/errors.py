"""All errors of LakeMQ, for users: `except lakemq.errors.UnknownTopicOrPartition`."""

from lakemq.engine.protocol.errors import *  # noqa: F403  # says to type checkers that users import the names from here
