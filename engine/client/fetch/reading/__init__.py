"""Read the rows of a plan, in Arrow or in Spark."""
