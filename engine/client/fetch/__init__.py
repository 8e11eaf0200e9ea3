"""Fetching: what a reader sees, which rows of which files that is, and reading them."""
