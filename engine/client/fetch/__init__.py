"""Fetching: read the state, plan which rows of which files to read, and read them."""
