"""Metrics of a namespace, in the OpenMetrics format that Prometheus scrapes."""
