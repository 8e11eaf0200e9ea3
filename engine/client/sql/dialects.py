"""The SQL dialects of queries. A module of its own, so that `lakemq --help` need not load what runs them."""

from __future__ import annotations

from enum import Enum


class SqlDialect(str, Enum):
    spark = "spark"
    duckdb = "duckdb"
