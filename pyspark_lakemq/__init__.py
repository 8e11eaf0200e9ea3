"""Where Spark finds the format `lakemq`: it looks for packages named `pyspark_...` that have a DefaultSource."""

from __future__ import annotations

from lakemq.engine.client.format.source import LakeMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
