"""Run assignors while steps go on, and find those of other packages."""
