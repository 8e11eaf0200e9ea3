"""Spark: `spark_session` makes a session with Delta and the format `lakemq`; `register` adds it to your own session."""

from lakemq.engine.namespace.extras import needs

with needs("spark"):
    from lakemq.engine.client.format.source import register
    from lakemq.jobs.session import MissingJars, MissingJava, spark_session

__all__ = ["MissingJars", "MissingJava", "register", "spark_session"]
