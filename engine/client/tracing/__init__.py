"""OpenTelemetry, if the application uses it: spans of calls, and the trace context in headers of messages."""
