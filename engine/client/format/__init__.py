"""Spark's data source `lakemq`: batches and streams, by the option names of Spark's Kafka source."""
