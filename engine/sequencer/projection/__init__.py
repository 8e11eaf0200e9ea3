"""Projection: decided steps become rows of the tables."""
