"""The engine: it decides, publishes and fetches."""
