"""Plan a fetch: from positions to offsets, and from offsets to row ranges of data files."""
