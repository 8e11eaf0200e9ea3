"""Spark's data source `lakemq`: batches and streams, with the option names of Spark's Kafka source."""
