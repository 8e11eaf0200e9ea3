"""What decides, publishes and fetches."""
