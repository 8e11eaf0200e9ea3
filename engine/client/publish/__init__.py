"""Publishing: rows are checked, placed, written to data files once, and named in a request."""
