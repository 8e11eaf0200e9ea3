"""Spark, for those who bring none of their own: a session that knows Delta."""

from __future__ import annotations

from lakemq.jobs.session import MissingJars, MissingJava, spark_session

__all__ = ["MissingJars", "MissingJava", "spark_session"]
