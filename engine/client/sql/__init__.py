"""SQL over a namespace without a JVM: DuckDB runs queries that are written in Spark's SQL."""
