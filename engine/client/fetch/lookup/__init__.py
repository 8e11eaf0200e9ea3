"""Look up which files hold which offsets: in the tables, and in the steps after them."""
