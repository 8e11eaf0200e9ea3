"""Run assignors beside the steps, and find those of other packages."""
