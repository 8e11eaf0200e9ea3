"""Reports of what happened in a namespace."""
