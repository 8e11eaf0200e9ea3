"""Delta tables: commits, logs, changelogs, and entries of Spark catalogs."""
