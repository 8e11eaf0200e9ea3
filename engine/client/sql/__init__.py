"""SQL over a namespace without a JVM: DuckDB runs queries that are written in Spark's SQL."""

from enum import StrEnum


class SqlDialect(StrEnum):
    """Dialects of queries. They are here, so that `lakemq --help` need not load the modules that run queries."""

    spark = "spark"
    duckdb = "duckdb"
