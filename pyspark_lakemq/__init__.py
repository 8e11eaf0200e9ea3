"""Registers the format `lakemq`: Spark looks for packages named `pyspark_...` that have a DefaultSource."""

from __future__ import annotations

from lakemq.engine.client.format.source import LakeMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
