"""The tour of the README: a year of flights through a namespace of its own, every step of it checked."""
