"""What the tutorial and the demo have in common: their data."""
